"""A process that trains alone, without an agent, and watches itself from a thread."""

import faulthandler
import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from ..config import Config
from ..pulse import Beat, pulse
from ..summary import last_good_checkpoint, mark_failed
from .hang import Standing, Stillness, host, judged, keep_stack, look_every, too_long
from .roles import Role


class OwnWatch(threading.Thread):
    """Ends the process, with exit code 1, when its training does not move any more.

    A training that is stuck in foreign code without ever letting go of Python's lock stops this thread, too; under an
    agent (topology.max_restarts of 1 or more) it is found out.
    """

    def __init__(self, config: Config, run_dir: Path, timeout: float):
        super().__init__(name="leyden-watch", daemon=True)
        self._config = config
        self._run_dir = run_dir
        self._timeout = timeout
        self._over = threading.Event()

    def run(self) -> None:
        every = look_every(self._timeout)
        stillness, looked = Stillness(every), time.monotonic()
        while not self._over.wait(every):
            now = time.monotonic()
            since, looked = now - looked, now
            beat = Beat.read(pulse.memory)
            still = stillness.look(beat, since)
            standing = Standing(Role("worker", 0), host(), beat.step, beat.phase, still, "")
            if too_long(standing, self._timeout):
                self._end(standing)

    def stop(self) -> None:
        self._over.set()

    def _end(self, standing: Standing) -> None:
        run_dir = self._run_dir
        keep_stack(run_dir, standing, _stacks(), datetime.now().astimezone().isoformat(timespec="seconds"))
        text = judged([standing], self._config, run_dir).text
        print(f"{text}\n{last_good_checkpoint(run_dir)}", file=sys.stderr, flush=True)
        mark_failed(run_dir, text, rank=0)
        for child in _descendants(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        os._exit(1)


def _stacks() -> str:
    """Of all threads of this process."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


def _descendants(pid: int) -> list[int]:
    """Processes that a process has started, and theirs."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            found += [int(child) for child in (task / "children").read_text().split()]
    return [*found, *(far for near in found for far in _descendants(near))]
