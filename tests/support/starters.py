"""Programs that start Leyden's command once a rank, as torchrun, mpirun and the engines of clusters do."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

LEYDEN = [sys.executable, "-m", "leyden"]


class Starters:
    """Starts programs as others would, in their own process groups, and ends what is left of them."""

    def __init__(self, here: Path) -> None:
        self.here = here
        self._started: list[subprocess.Popen[str]] = []

    def start(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, log: str = "log"
    ) -> subprocess.Popen[str]:
        known = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        with open(self.here / log, "w") as file:
            process = subprocess.Popen(
                command, cwd=self.here, env={**known, "OMP_NUM_THREADS": "1", **(environment or {})}, stdout=file,
                stderr=subprocess.STDOUT, text=True, start_new_session=True,
            )  # fmt: skip
        self._started.append(process)
        return process

    def log(self, name: str = "log") -> str:
        return (self.here / name).read_text()

    def ranks(self, words: Sequence[str], size: int = 2, **environment: str) -> list[int]:
        """Exit codes of processes that know no more than RANK, WORLD_SIZE and an address."""
        known = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", **environment}
        started = [
            self.start([*LEYDEN, *words], {**known, "RANK": str(rank)}, f"log{rank}") for rank in reversed(range(size))
        ]
        return [process.wait(180) for process in reversed(started)]

    def end(self) -> None:
        for process in self._started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
