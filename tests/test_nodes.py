"""Several nodes without a scheduler: an agent on each, here several on this machine, or on two of its namespaces."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import TwoHosts, available
from runs import TINY, Freeze, alive, children, distance, summary, wait_until, weights

from leyden.trainer import checkpoint
from leyden.trainer.launch import start

TWO_NODES = [*TINY, "strategy=ddp", "topology.launcher=node", "topology.nodes=2"]
LONG = [*TWO_NODES, "trainer.max_epochs=500", "callbacks.checkpoint.every_n_steps=20"]


class Agent:
    """`leyden node` in a process of its own, and what it prints."""

    def __init__(self, run_dir: Path, rendezvous: str, prefix: tuple[str, ...] = ()):
        command = [*prefix, sys.executable, "-m", "leyden.trainer", "node", "--rendezvous", rendezvous, str(run_dir)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
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


@pytest.fixture
def agents() -> Iterator[list[Agent]]:
    """Agents of the test; none is left behind."""
    made: list[Agent] = []
    yield made
    for agent in made:
        agent.process.kill()
        agent.code()
        assert agent.process.stdout is not None
        agent.process.stdout.close()


def two(agents: list[Agent], run_dir: Path, other: Path | None = None) -> tuple[Agent, Agent]:
    first = Agent(run_dir, "127.0.0.1:0")
    agents.append(first)
    second = Agent(other or run_dir, first.rendezvous())
    agents.append(second)
    return first, second


def training(run_dir: Path, first: Agent, second: Agent) -> list[int]:
    """Waits for the first checkpoint. Returns the worker of each node."""
    wait_until(lambda: len(checkpoint.saved(run_dir)) > 0, seconds=120)
    workers = [*children(first.process.pid), *children(second.process.pid)]
    assert len(workers) == 2
    return workers


@pytest.mark.slow
def test_two_nodes_equal_one_worker(freeze: Freeze, agents: list[Agent]) -> None:
    options = ["trainer.precision=64-true", "trainer.max_steps=5"]
    one, both = freeze("one", *TINY, *options), freeze("both", *TWO_NODES, *options)
    first, second = two(agents, both)
    assert start(one) == 0
    assert (first.code(), second.code()) == (0, 0), first.output + second.output
    assert summary(both)["world_size"] == 2
    assert distance(weights(both), weights(one)) <= 1e-10


@pytest.mark.slow
def test_sigterm_to_one_agent_saves_on_all_and_a_killed_worker_is_blamed_on_all(
    freeze: Freeze, agents: list[Agent]
) -> None:
    run_dir = freeze("run", *LONG)
    first, second = two(agents, run_dir)
    training(run_dir, first, second)
    second.process.send_signal(signal.SIGTERM)
    assert (first.code(), second.code()) == (75, 75), first.output + second.output
    assert summary(run_dir)["status"] == "preempted"
    saved = summary(run_dir)["steps"]
    assert checkpoint.step_of(checkpoint.saved(run_dir)[0]) == saved

    first, second = two(agents, run_dir)
    wait_until(lambda: checkpoint.step_of(checkpoint.saved(run_dir)[0]) > saved)
    workers = training(run_dir, first, second)
    os.kill(workers[1], signal.SIGKILL)
    assert (first.code(10), second.code(10)) == (1, 1)
    for agent in (first, second):
        assert "rank 1 failed: killed by SIGKILL" in agent.output
    assert summary(run_dir)["failed_rank"] == 1
    assert not [pid for pid in workers if alive(pid)]


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_agent_ends_the_run_on_the_other_node(freeze: Freeze, agents: list[Agent], killed: int) -> None:
    run_dir = freeze("run", *LONG)
    both = two(agents, run_dir)
    workers = training(run_dir, *both)
    both[killed].process.kill()
    assert both[1 - killed].code(10) == 1
    assert f"node {killed} ({os.uname().nodename}) is gone" in both[1 - killed].output
    assert f"node {killed} " in summary(run_dir)["error"]
    wait_until(lambda: not [pid for pid in workers if alive(pid)], seconds=10)


def test_different_runs_are_refused_on_all_nodes(freeze: Freeze, agents: list[Agent]) -> None:
    first, second = two(agents, freeze("run", *LONG), other=freeze("other", *LONG, "seed=1"))
    assert (first.code(), second.code()) == (3, 3)
    for agent in (first, second):
        assert "the nodes were given different runs" in agent.output
        assert "node 1 (" in agent.output
    assert not (first.output + second.output).count("Traceback")


def test_nobody_comes(freeze: Freeze, agents: list[Agent]) -> None:
    run_dir = freeze("run", *LONG)
    leyden = [sys.executable, "-m", "leyden.trainer", "node", "--wait", "1"]
    alone = subprocess.run([*leyden, "--rendezvous", "127.0.0.1:0", run_dir], capture_output=True, text=True)
    assert alone.returncode == 1
    assert "1 of 2 nodes came to 127.0.0.1:" in alone.stderr
    # an address that no host here has: documentation's own
    alone = subprocess.run([*leyden, "--rendezvous", "192.0.2.1:29400", run_dir], capture_output=True, text=True)
    assert alone.returncode == 1
    assert "nobody answers at 192.0.2.1:29400" in alone.stderr


@pytest.mark.slow
@pytest.mark.skipif(not available(), reason="needs root, `ip` and `tc`, for network namespaces")
def test_two_hosts(freeze: Freeze, agents: list[Agent]) -> None:
    run_dir = freeze("run", *TWO_NODES, "trainer.max_steps=5")
    with TwoHosts() as hosts:
        for name in hosts.names:
            agents.append(Agent(run_dir, f"{hosts.addresses[0]}:29400", ("ip", "netns", "exec", name)))
        codes = [agent.code() for agent in agents]
    assert codes == [0, 0], "".join(agent.output for agent in agents)
    assert summary(run_dir)["steps"] == 5
