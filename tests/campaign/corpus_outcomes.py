"""The hostile corpus: every entry met by its command, and what must be true of it."""

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import hostile_checkpoints
import hostile_configs
import hostile_data
import hostile_peer
import hostile_runs
from hostile_entries import HARMLESS, Entry, canaries, harmless_folder, trained_run
from measured_command import Measured, Runner

CPU_S = 1.0
"""CPU time that an entry may take beyond its harmless neighbour, on a quiet machine."""
MEMORY_MB = 512.0


@dataclass(frozen=True)
class Outcome:
    """How the command of one entry has ended."""

    entry: Entry
    measured: Measured
    faults: Sequence[str]
    """Empty: it was refused as it should be."""
    cpu_s: float
    """Beyond the harmless neighbour; below 0: less."""
    memory_mb: float


def entries() -> list[Entry]:
    return list(
        chain(
            hostile_configs.overrides(),
            hostile_configs.yaml_files(),
            hostile_configs.slurm_texts(),
            hostile_runs.foreign_runs(),
            hostile_runs.damaged_runs(),
            hostile_runs.other_files(),
            hostile_checkpoints.checkpoints_with_code(),
            hostile_checkpoints.checkpoints_that_lie(),
            hostile_checkpoints.weights(),
            hostile_data.images(),
            hostile_data.archives(),
            hostile_data.label_files(),
            hostile_peer.messages(),
        )
    )


def one_of_each_door(every: int = 1) -> list[Entry]:
    """The first entry of each door, and each n-th of the others."""
    doors: dict[str, list[Entry]] = {}
    for entry in entries():
        doors.setdefault(entry.door, []).append(entry)
    return [entry for found in doors.values() for entry in found[::every]]


class Corpus:
    """Runs entries, and their harmless neighbours before them.

    Args:
        folder: for the commands' folders; emptied behind each.
        cpu_s: CPU time that an entry may take beyond its harmless neighbour.
        times: that each harmless neighbour is measured.
    """

    def __init__(self, folder: Path, runner: Runner, cpu_s: float = CPU_S, times: int = 2):
        self._times = times
        self._cpu_s = cpu_s
        self._folder = folder
        self._runner = runner
        self._trained = trained_run(folder, runner)
        self._number = 0

    def harmless(self, names: Iterable[str]) -> Mapping[str, Measured]:
        """Commands on harmless input; the smallest CPU time of several, and its memory."""
        found: dict[str, Measured] = {}
        for name in names:
            both = [self._run(Entry("harmless", name, HARMLESS[name], [], codes=(0,)))[0] for _ in range(self._times)]
            for one in both:
                assert one.code == 0, (name, one)
            found[name] = min(both, key=lambda one: one.cpu_s)
        return found

    def outcomes(self, some: Sequence[Entry]) -> Iterator[Outcome]:
        neighbours = self.harmless(dict.fromkeys(entry.harmless for entry in some))
        for entry in some:
            outcome = self._outcome(entry, neighbours[entry.harmless])
            if outcome.cpu_s > self._cpu_s:  # CPU time grows beside other processes: both are measured again, in turn
                neighbour, _ = self._run(Entry("harmless", entry.harmless, HARMLESS[entry.harmless], []))
                outcome = self._outcome(entry, neighbour)
            yield outcome

    def _outcome(self, entry: Entry, neighbour: Measured) -> Outcome:
        measured, touched = self._run(entry)
        cpu, memory = measured.cpu_s - neighbour.cpu_s, measured.memory_mb - neighbour.memory_mb
        said = " ".join(measured.output.split())
        faults = [f"executed: {touched}"] if touched else []
        if measured.code not in entry.codes:
            faults.append(f"exit code {measured.code}, not one of {list(entry.codes)}")
        faults += ["a traceback"] if "Traceback" in measured.output else []
        faults += ["a code for the terminal"] if "\x1b" in measured.output else []
        faults += [f"does not say {text!r}" for text in entry.says if " ".join(text.split()) not in said]
        faults += [f"{cpu:.1f} s of CPU beyond harmless input"] if cpu > self._cpu_s else []
        faults += [f"{memory:.0f} MB beyond harmless input"] if memory > MEMORY_MB else []
        return Outcome(entry, measured, faults, cpu, memory)

    def _run(self, entry: Entry) -> tuple[Measured, list[str]]:
        self._number += 1
        around = Path(tempfile.mkdtemp(dir=self._folder, prefix=f"{self._number}-"))
        here = around / "here"
        try:
            harmless_folder(here, self._trained)
            entry.make(here)
            measured = self._runner(entry.words, here)
            return measured, canaries(here)
        finally:
            shutil.rmtree(around, ignore_errors=True)
