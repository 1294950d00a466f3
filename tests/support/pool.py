"""Warm workers: real processes over gloo that import once and then do one frozen run after another.

A launch costs each worker seconds of imports; an equality of strategies costs a fraction of one. What launching itself
does (signals, blame, exit codes) is tested with `runs.Processes`.
"""

import json
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from leyden.trainer.config.schema import load
from leyden.trainer.entrypoints.start import start

_LONGEST_S = 150
_AFTER_AN_ERROR_S = 5
"""How long the others have to fail as well: a worker that waits for one that failed finds its connections closed."""


class Failed(AssertionError):
    """A worker raised; holds every worker's traceback and what was printed."""


class Pool:
    """So many warm workers."""

    def __init__(self, workers: int):
        self.workers = workers
        self._processes: list[subprocess.Popen[str]] = []
        self._lines: list[queue.Queue[str | None]] = []

    def _start(self) -> None:
        for rank in range(self.workers):
            process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("pool_worker.py")), str(rank), str(self.workers)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
            lines: queue.Queue[str | None] = queue.Queue()
            threading.Thread(target=_read, args=(process, lines), daemon=True).start()
            self._processes.append(process)
            self._lines.append(lines)

    def run(self, run_dir: Path, verb: str = "train") -> str:
        """All workers do a frozen run. Returns what the first printed.

        Raises:
            Failed: a worker raised, died, or took too long. Where all have raised they take the next run as well;
                otherwise the pool starts afresh.
        """
        if not self._processes:
            self._start()
        order = json.dumps({"run_dir": str(run_dir), "verb": verb, "port": _free_port()})
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(order + "\n")
            process.stdin.flush()
        texts: list[str] = []
        errors: list[str] = []
        lost = False
        for rank, lines in enumerate(self._lines):
            try:
                text, error, answered = self._answer(lines, _AFTER_AN_ERROR_S if errors else _LONGEST_S)
            except BaseException:  # the test's own timeout: the next test is not to wait for this run, too
                self.stop()
                raise
            texts.append(text)
            lost = lost or not answered
            if error:
                errors.append(f"rank {rank}: {error}\n{text}")
        if lost:
            self.stop()
        if errors:
            raise Failed("\n".join(errors))
        return texts[0]

    def _answer(self, lines: "queue.Queue[str | None]", seconds: float) -> tuple[str, str, bool]:
        """What a worker has printed, its error or "", and whether it can take another run."""
        text: list[str] = []
        while True:
            try:
                line = lines.get(timeout=seconds)
            except queue.Empty:
                return "".join(text), "took too long", False
            if line is None:
                return "".join(text), "the process died", False
            if line.startswith("@"):
                return "".join(text), json.loads(line[1:])["error"], True
            text.append(line)

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                stream.close()
        self._processes.clear()
        self._lines.clear()


def train(pools: Callable[[int], Pool], run_dir: Path, verb: str = "train") -> str:
    """A frozen run, by as many workers as its topology has: one is this process. Returns its log."""
    workers = load(run_dir).topology.workers
    if workers > 1:
        return pools(workers).run(run_dir, verb)
    assert start(run_dir, verb) == 0
    return (run_dir / "run.log").read_text()


def _read(process: "subprocess.Popen[str]", lines: "queue.Queue[str | None]") -> None:
    assert process.stdout is not None
    try:
        for line in process.stdout:
            lines.put(line)
    except ValueError:  # closed by stop()
        pass
    lines.put(None)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
