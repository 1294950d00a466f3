"""What tests of real runs share: tiny configs, processes, waiting."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

TINY = ["model=mlp", "model.hidden=[16]", "dataset.image_size=8", "trainer.max_epochs=2"]
"""A training of well under a second."""

Freeze = Callable[..., Path]


class Processes:
    """Starts runs as processes of their own, and leaves none behind."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[str]] = []

    def start(self, run_dir: Path, verb: str = "train", **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "leyden.trainer.launch", str(run_dir), verb],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment},
        )
        self.started.append(process)
        return process

    def run(self, run_dir: Path, verb: str = "train") -> tuple[int, str]:
        process = self.start(run_dir, verb)
        output, _ = process.communicate(timeout=240)
        return process.returncode, output


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Raises AssertionError when the condition has not come true in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    """Processes that a process has started and that still run."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return found


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
