"""Agents of several nodes, in processes of their own."""

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from runs import wait_until

WITHOUT_VALIDATION = """
import sys
from pathlib import Path
from leyden.trainer.config.job import JobSpec
from leyden.trainer.entrypoints.start import worker_spec
from leyden.trainer.launch.rendezvous import Rendezvous
from leyden.trainer.launch.multi_node import launch
run_dir = Path(sys.argv[2])
sys.exit(launch(worker_spec(JobSpec.loaded(run_dir, "resume")), Rendezvous.parsed(sys.argv[1], float(sys.argv[3]))))
"""
"""`leyden node` without the validation of the config, which costs seconds of imports."""


class Agent:
    """An agent in a process of its own, and its output."""

    def __init__(
        self, run_dir: Path, rendezvous: str, validated: bool = False, timeout_s: float = 120,
        prefix: Sequence[str] = (),
    ):  # fmt: skip
        if validated:
            arguments = [
                "-m",
                "leyden",
                "node",
                "--rendezvous",
                rendezvous,
                "--wait",
                str(timeout_s),
                str(run_dir),
            ]
        else:
            arguments = ["-c", WITHOUT_VALIDATION, rendezvous, str(run_dir), str(timeout_s)]
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


def start_two(
    agents: list[Agent], run_dir: Path, other: Path | None = None, validated: bool = False
) -> tuple[Agent, Agent]:
    """Two nodes on this machine; `other`: the second one's run folder."""
    first = Agent(run_dir, "127.0.0.1:0", validated=validated)
    agents.append(first)
    second = Agent(other or run_dir, first.rendezvous(), validated=validated)
    agents.append(second)
    return first, second
