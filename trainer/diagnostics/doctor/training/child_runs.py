"""Trainings of a doctor: started as every run is, by a process and an agent on each host, one after the other."""

import csv
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ....base.log import log
from ....core.checkpoints import checkpoint_io
from ....runs.checkpoints import LAST
from .plan import FOLDER, PlannedRun

OUTPUT = "output.log"
PLAIN_LOOP = "leyden.trainer.diagnostics.doctor.training.plain_loop"
LOOP_RESULT = "plain_loop.json"
_LINES = 3

Command = Callable[[Path], Sequence[str]]
"""Command by a run's folder: the module, and its arguments, that start this host's part of it."""


class NotTrained(Exception):
    """A training that was refused, has failed or did not end in time.

    Args:
        refused: whether its config was refused.
    """

    def __init__(self, text: str, refused: bool = False):
        super().__init__(text)
        self.refused = refused


@dataclass(frozen=True)
class Outcome:
    """What became of a training.

    Args:
        error: why it did not end; None: it did.
    """

    folder: Path
    seconds: float
    error: NotTrained | None

    def check(self) -> Path:
        """The folder of a training that has ended.

        Raises:
            NotTrained: it has not.
        """
        if self.error is not None:
            raise self.error
        return self.folder


class ChildRuns:
    """Starts planned trainings below a doctor's folder.

    Args:
        run_dir: of the doctor.
        deadline: of time.monotonic().
    """

    def __init__(self, run_dir: Path, deadline: float):
        self._folder = run_dir / FOLDER
        self._deadline = deadline

    def run(self, planned: PlannedRun, command: Command, host: str) -> Outcome:
        """Do this host's part of a training."""
        folder, begin = self._folder / planned.name, time.monotonic()
        error = NotTrained(planned.refused, refused=True) if planned.refused else None
        if error is None:
            log.info("%s", planned.name)
            try:
                self.start(*command(folder), output=folder / f"{host}-{OUTPUT}")
            except NotTrained as failed:
                error = failed
        return Outcome(folder, time.monotonic() - begin, error)

    def start(self, module: str, *arguments: str, output: Path) -> None:
        """Run a module of Leyden's until it ends.

        Raises:
            NotTrained: by its exit code, or by the deadline.
        """
        # -P: the current folder may be somebody else's
        command = [sys.executable, "-P", "-m", module, *arguments]
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise NotTrained("was not started: the doctor's time is over")
        with open(output, "wb") as file:
            try:
                code = subprocess.run(
                    command, stdout=file, stderr=subprocess.STDOUT, timeout=left, check=False
                ).returncode
            except subprocess.TimeoutExpired:
                raise NotTrained("did not end in the doctor's time") from None
        if code != 0:
            lines = output.read_text(errors="replace").strip().splitlines()[-_LINES:]
            raise NotTrained(f"exit code {code}: {' / '.join(line.strip() for line in lines)}")

    def plain_loop(self, trained: Outcome) -> float:
        """Samples per second of a hand-written loop on the network of a run.

        Raises:
            NotTrained: the run has not ended, or the loop has failed.
        """
        folder = trained.check()
        self.start(PLAIN_LOOP, str(folder), output=folder / f"plain-{OUTPUT}")
        return float(json.loads((folder / LOOP_RESULT).read_text())["samples_per_second"])


def weights_of(run_dir: Path) -> dict[str, Tensor]:
    """Weights of the newest checkpoint, in the layout of one device."""
    path = run_dir / "checkpoints" / LAST
    content = checkpoint_io.read(path)
    shards = checkpoint_io.shards_of(path, content)
    return (content if shards is None else shards.put_together(content))["model"]


def samples_per_second(run_dir: Path) -> float:
    """Median over the logged intervals of a run, without the first."""
    with open(run_dir / "metrics.csv", newline="") as file:
        logged = [row.get("samples_per_second") for row in csv.DictReader(file)]
    return statistics.median([float(value) for value in logged if value][1:])
