"""The same kills and signals under Leyden's agent and under torchrun's, which start the same two workers.

    python benchmarks/agent_scenarios.py      # about two minutes on two cores

Writes benchmarks/results/agents.json.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch
from measurement import ROOT, write_subject

from leyden.trainer.core.checkpoints import checkpoint_io

RESULT = ROOT / "benchmarks" / "results" / "agents.json"
TITLE = "Two agents, the same faults"
TEXT = (
    "Two workers under `strategy=ddp` on the digits, restarted once at most. Bit-equal: the weights at the end are "
    "those of a run that nothing has disturbed."
)
COLUMNS = {"leyden": ["Leyden's agent", "s"], "torchrun": ["torchrun's agent", "s"]}
RUN = ["dataset=digits", "model=mlp", "model.hidden=[16]", "dataset.image_size=8", "strategy=ddp", "topology=cpu",
       "topology.devices_per_node=2", "trainer.max_epochs=150", "trainer.enable_progress_bar=false",
       "callbacks.checkpoint.every_n_steps=20"]  # fmt: skip
LEYDEN = [sys.executable, "-m", "leyden"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1", "-m", "leyden"]
AGENTS = {
    # forked workers show the environment of their fork server
    "leyden": [*LEYDEN, *RUN, "topology.max_restarts=1", "topology.start_method=spawn"],
    "torchrun": [*TORCHRUN, *RUN, "topology.launcher=external"],
}
_END_S = 120.0


class FailsAt:
    """An exception in the last worker after a step, in each start of the run."""

    def __init__(self, step: int = 60):
        self.step = step

    def on_step_end(self, state: Any) -> None:
        if state.step >= self.step and state.fabric.global_rank == state.fabric.world_size - 1:
            raise RuntimeError("on purpose")


class Started:
    """A run under an agent."""

    def __init__(self, agent: str, folder: Path, *more: str):
        self.folder = folder / agent
        self.output = folder / f"{agent}.log"
        with open(self.output, "w") as log:
            self.process = subprocess.Popen(
                [*AGENTS[agent], f"hydra.run.dir='{self.folder}'", *more], cwd=Path(__file__).parent, stdout=log,
                stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True,
            )  # fmt: skip

    def trains(self) -> list[psutil.Process]:
        """The workers, by rank, once there is a checkpoint."""
        wait_for(lambda: (self.folder / "checkpoints" / "last.ckpt").exists())
        found = self.workers()
        assert len(found) == 2, found
        return found

    def workers(self) -> list[psutil.Process]:
        found: dict[int, psutil.Process] = {}
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                rank = process.environ().get("RANK", "")
                if rank.isdecimal() and "torch.distributed.run" not in process.cmdline():
                    found[int(rank)] = process
        return [found[rank] for rank in sorted(found)]

    def end(self) -> int:
        code = self.process.wait(_END_S)
        return code if code >= 0 else 128 - code

    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text())


def wait_for(condition: Callable[[], bool]) -> float:
    """Seconds until it holds."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > _END_S:
            raise TimeoutError
        time.sleep(0.02)
    return time.monotonic() - began


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return checkpoint_io.read(folder / "checkpoints" / "last.ckpt")["model"]


def killed_worker(agent: str, folder: Path, undisturbed: Path) -> str:
    run = Started(agent, folder)
    run.trains()[-1].kill()
    code = run.end()
    ours, theirs = weights(run.folder), weights(undisturbed)
    equal = all(torch.equal(ours[name], theirs[name]) for name in theirs)
    return f"exit code {code}, {'bit-equal' if equal else 'other weights'}"


def terminated(agent: str, folder: Path, undisturbed: Path) -> str:
    run = Started(agent, folder)
    run.trains()
    run.process.send_signal(signal.SIGTERM)
    return f"exit code {run.end()}, the run is {run.summary()['status']}"


def killed_agent(agent: str, folder: Path, undisturbed: Path) -> str:
    run = Started(agent, folder)
    workers = run.trains()
    run.process.kill()
    run.process.wait()
    time.sleep(5)
    left = [process for process in workers if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    for process in left:
        process.kill()
    return f"{len(left)} of {len(workers)} workers are left after 5 s"


def failed_worker(agent: str, folder: Path, undisturbed: Path) -> str:
    run = Started(agent, folder, "+callbacks.fails._target_=agent_scenarios.FailsAt")
    code = run.end()
    output = run.output.read_text()
    named = "rank 1 failed" in output or "rank      : 1" in output
    return f"exit code {code}, the rank is {'named' if named else 'not named'}, the run is {run.summary()['status']}"


SCENARIOS = {
    "a worker gets SIGKILL": killed_worker,
    "a worker raises an exception, twice": failed_worker,
    "the agent gets SIGTERM": terminated,
    "the agent gets SIGKILL": killed_agent,
}


def main(names: Sequence[str]) -> None:
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        whole.mkdir()
        undisturbed = Started("leyden", whole)
        assert undisturbed.end() == 0, undisturbed.output.read_text()
        for name, scenario in SCENARIOS.items():
            if names and not any(word in name for word in names):
                continue
            folder = Path(place) / name.replace(" ", "-")
            folder.mkdir()
            row: dict[str, object] = {"what": name}
            for agent in AGENTS:
                row[agent] = scenario(agent, folder, undisturbed.folder)
                print(f"{name}, {agent}: {row[agent]}", flush=True)
            rows.append(row)
    if not names:
        write_subject(RESULT, TITLE, TEXT, COLUMNS, "python benchmarks/agent_scenarios.py", rows)


if __name__ == "__main__":
    main(sys.argv[1:])
