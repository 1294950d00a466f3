"""Agents of several nodes, in processes of their own."""

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from runs import wait_until

WITHOUT_JUDGING = """
import sys
from pathlib import Path
from leyden.trainer.config import load
from leyden.trainer.launch.meeting import Rendezvous
from leyden.trainer.launch.node import launch
run_dir = Path(sys.argv[2])
sys.exit(launch(load(run_dir), run_dir, "resume", None, Rendezvous.parsed(sys.argv[1], float(sys.argv[3]))))
"""
"""`leyden node` without its check of the config, which costs seconds of imports."""


class Agent:
    """An agent in a process of its own, and what it prints."""

    def __init__(
        self, run_dir: Path, rendezvous: str, judged: bool = False, wait_s: float = 120, prefix: Sequence[str] = ()
    ):
        if judged:
            what = ["-m", "leyden.trainer", "node", "--rendezvous", rendezvous, "--wait", str(wait_s), str(run_dir)]
        else:
            what = ["-c", WITHOUT_JUDGING, rendezvous, str(run_dir), str(wait_s)]
        command = [*prefix, sys.executable, *what]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.output = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line

    def rendezvous(self) -> str:
        """Where it says that the others shall come."""
        wait_until(lambda: "--rendezvous" in self.output)
        return self.output.split("--rendezvous ")[1].split()[0]

    def code(self, seconds: float = 120) -> int:
        code = self.process.wait(seconds)
        self._reader.join()
        return code


def two(agents: list[Agent], run_dir: Path, other: Path | None = None, judged: bool = False) -> tuple[Agent, Agent]:
    """Two nodes on this machine; `other`: the run folder that the second is given."""
    first = Agent(run_dir, "127.0.0.1:0", judged=judged)
    agents.append(first)
    second = Agent(other or run_dir, first.rendezvous(), judged=judged)
    agents.append(second)
    return first, second
