"""Agents of several nodes, in processes of their own."""

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from runs import wait_until


class Agent:
    """An agent in a process of its own, and its output."""

    def __init__(self, run_dir: Path, rendezvous: str, timeout_s: float = 120, prefix: Sequence[str] = ()):
        arguments = ["-m", "leyden", "node", "--rendezvous", rendezvous, "--wait", str(timeout_s), str(run_dir)]
        command = [*prefix, sys.executable, *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.output = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line

    def rendezvous(self) -> str:
        """The address that it prints for the others."""
        wait_until(lambda: "--rendezvous" in self.output)
        return self.output.split("--rendezvous ")[1].split()[0]

    def code(self, seconds: float = 120) -> int:
        code = self.process.wait(seconds)
        self._reader.join()
        return code


def start_two(agents: list[Agent], run_dir: Path, other: Path | None = None) -> tuple[Agent, Agent]:
    """Two nodes on this machine; `other`: the second one's run folder."""
    first = Agent(run_dir, "127.0.0.1:0")
    agents.append(first)
    second = Agent(other or run_dir, first.rendezvous())
    agents.append(second)
    return first, second
