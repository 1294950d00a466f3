"""A run of the fault campaign: real processes, watched and judged from outside."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import numpy as np
import psutil
from fault_gate import FOLDER, OPEN, PHASE, RANK, REACHED
from folders import CAMPAIGN, MODULES
from PIL import Image
from runs import wait_until

from leyden.trainer.core.checkpoints import checkpoint_io
from leyden.trainer.runs import checkpoints

MARK = "LEYDEN_CAMPAIGN_MARK"
"""Environment variable that every process of a run inherits."""
END_S = 180.0
"""Limit for a run that a fault has hit to end by itself."""
STRATEGIES = {
    "single": [],
    "ddp": ["strategy=ddp"],
    "butterfly": ["strategy=butterfly"],
    "hybrid": ["strategy=hybrid"],
    "fsdp": ["strategy=fsdp", "strategy.min_parameters=100"],
    "easgd server": ["strategy=easgd", "strategy.form=server", "strategy.tau=3"],
    "asgd": ["strategy=asgd"],
    "pipeline": [],
}
SPLITS = {"train": 320, "val": 64, "test": 64}
STEPS = 60


def write_images(root: Path) -> Path:
    """Three classes of small images, one of three channels brighter than the others."""
    rng = np.random.default_rng(0)
    for split, samples in SPLITS.items():
        for number in range(samples):
            pixels = rng.integers(0, 160, (8, 8, 3), dtype=np.uint8)
            pixels[..., number % 3] += 90
            folder = root / split / f"class{number % 3}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


def options(strategy: str, images: Path) -> list[str]:
    workers = [] if strategy == "single" else ["topology.devices_per_node=2"]
    return [
        "model=mlp", "model.hidden=[16]", "dataset=image_folder", f"dataset.root={images}", "dataset.image_size=8",
        "augment=none", "batch_size=16", "trainer.max_epochs=3", "schedule=constant", "trainer.log_every_n_steps=5",
        "trainer.enable_progress_bar=false", "callbacks.checkpoint.every_n_steps=10",
        "callbacks.checkpoint.keep_last=99", "+callbacks.gate._target_=fault_gate.Gate", *workers,
        *STRATEGIES[strategy],
    ]  # fmt: skip


@dataclass
class FaultRun:
    """One run, in one or several processes, its first start and its resumption.

    Args:
        folder: the run folder; of a pipeline the sweep's.
        words: overrides, for a pipeline, which the command itself composes; others have a frozen config.
        scratch: for the gate and the output.
    """

    folder: Path
    scratch: Path
    words: Sequence[str] = ()
    prefix: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mark = uuid4().hex
        self.gate = self.scratch / "gate"
        self.gate.mkdir(parents=True, exist_ok=True)
        self._starts = 0

    @property
    def run_dirs(self) -> list[Path]:
        """Folders with checkpoints: the run's own, or those of a pipeline's trials."""
        if not self.words:
            return [self.folder]
        return sorted(path for path in self.folder.glob("*") if path.name.isdigit())

    def start(self, phase: str = "", rank: str = "0") -> None:
        """
        Args:
            phase: in which the gate holds a worker; "": none.
        """
        gate = {FOLDER: str(self.gate), PHASE: phase, RANK: rank} if phase else {}
        started = self.folder.is_dir() and any(self.folder.rglob("summary.json"))
        entrypoint = ["leyden.trainer.entrypoints.start", str(self.folder), "resume" if self._starts else "train"]
        if self.words:
            cli = ["resume", str(self.folder)] if self._starts and started else self.words
            entrypoint = ["leyden", *cli]
        self._starts += 1
        self._output = self.scratch / f"output{self._starts}"
        here = [str(CAMPAIGN), str(MODULES)]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LEYDEN_GATE")}
        threads = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(here), MARK: self.mark}
        with open(self._output, "w") as output:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", *entrypoint],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                env={**inherited, **threads, **gate, **self.environment},
            )  # fmt: skip

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def held(self) -> int:
        """Wait for the gate. Returns the process that it holds."""
        reached = self.gate / REACHED
        wait_until(lambda: self.process.poll() is not None or _is_written(reached), END_S)
        assert self.process.poll() is None, f"it has ended before the phase:\n{self.output}"
        return int(reached.read_text())

    def open_gate(self) -> None:
        (self.gate / OPEN).touch()

    def end(self, seconds: float = END_S) -> int:
        """Exit code of a run that ends by itself."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not ended within {seconds:.0f} s:\n{self.output}") from None

    def processes(self) -> list[psutil.Process]:
        """All that descend from the command and still run, whoever their parent is now."""
        return [process for process in psutil.process_iter() if _mark_of(process) == self.mark]

    def orphans(self, seconds: float = 15.0) -> list[str]:
        """Processes that are left after some time in which the kernel may end them."""
        end = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < end:
            time.sleep(0.1)
        return [" ".join(_command(process)) for process in left]

    def kill(self) -> None:
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
                process.kill()
        if hasattr(self, "process"):
            self.process.wait()

    def checkpoints(self) -> list[Path]:
        return [path for run_dir in self.run_dirs for path in checkpoints.saved_checkpoints(run_dir)]


def unreadable(paths: Sequence[Path]) -> Iterator[str]:
    """What has become of checkpoints that can no longer be resumed from."""
    for path in paths:
        try:
            checkpoint_io.read_to_resume(path)
        except (OSError, ValueError) as error:
            yield f"{path.name}: {error}"


def _is_written(path: Path) -> bool:
    return path.exists() and path.read_text().endswith("\n")


def _mark_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK) if process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.Error, OSError):
        return None


def _command(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return [str(process.pid)]
