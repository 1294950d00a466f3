"""A few training steps of a frozen run in processes of their own, whose memory is watched."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from ...runs.summary import read_summary
from .search import Probe

STEPS = 3
"""Optimizer steps of a probe: the states of the optimizer exist after the first."""
_POLL_S = 0.02
_GB = 2**30
OUTPUT = "output.txt"
"""What a probe has printed, in its folder."""


class ProbeFailed(Exception):
    """A probe has failed for another reason than memory.

    Attributes:
        code: its exit code.
    """

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


def run_probe(run_dir: Path, size: int, limit_gb: float | None) -> Probe:
    """Train the run in this folder, which makes STEPS epochs of one step.

    Args:
        size: its batch size.
        limit_gb: a worker whose resident set has taken more is killed, and the batch does not fit; None: the device's
            own memory limits it.

    Raises:
        ProbeFailed: it has failed for another reason.
    """
    command = [sys.executable, "-P", "-m", "leyden.trainer.entrypoints.start", str(run_dir)]
    with open(run_dir / OUTPUT, "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        peak = _watch_memory(process, limit_gb)
    finally:
        _kill(process)
    if limit_gb is not None and peak > limit_gb:
        return Probe(size, 0, peak, f"a worker takes more than {limit_gb:.3g} GB")
    summary = read_summary(run_dir)
    if process.returncode == 0:
        memory = summary["metrics"].get("memory/reserved_gb")
        return Probe(size, summary["samples"] // STEPS, peak if memory is None else memory * 1e9 / _GB)
    error = str(summary.get("error") or "")
    if "out of memory" in error or process.returncode == -9:
        return Probe(size, 0, None, error.partition("\n")[0] or "killed by the kernel: out of memory")
    lines = (run_dir / OUTPUT).read_text(errors="replace").strip().splitlines()
    raise ProbeFailed(error or "\n".join(lines[-5:]), process.returncode)


def _watch_memory(process: "subprocess.Popen[bytes]", limit_gb: float | None) -> float:
    """The largest resident set of a process of the run until its end, or until it is above the limit."""
    peak = 0.0
    while process.poll() is None:
        for each in _tree(process.pid):
            peak = max(peak, _peak_gb(each))
        if limit_gb is not None and peak > limit_gb:
            break
        time.sleep(_POLL_S)
    return peak


def _tree(pid: int) -> Iterator[int]:
    yield pid
    with suppress(psutil.NoSuchProcess):
        yield from (child.pid for child in psutil.Process(pid).children(recursive=True))


def _peak_gb(pid: int) -> float:
    """Peak of the resident set in 2^30 bytes."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 2**20
    return 0.0


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End what is left of the processes."""
    for pid in reversed(list(_tree(process.pid))) if process.poll() is None else ():
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()
    process.wait()
