"""Several nodes without a scheduler: their agents on this machine, or in two of its network namespaces."""

import errno
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from agents import Agent, start_two
from hosts import TwoHosts, available
from interpreters import Interpreters
from runs import HERE, TINY, Freeze, alive, children, distance, summary, wait_until, weights

from leyden.trainer.cli.main import main
from leyden.trainer.config.job import JobSpec
from leyden.trainer.entrypoints.start import start, worker_spec
from leyden.trainer.launch.channel import KEEPALIVE_TIMEOUT_S
from leyden.trainer.launch.multi_node import run_node
from leyden.trainer.launch.signals import ReceivedSignals
from leyden.trainer.launch.worker_group import WorkerSpec
from leyden.trainer.runs import checkpoints
from leyden.trainer.runs.secret import shared_secret

TWO_NODES = [*TINY, "strategy=ddp", "topology.launcher=node", "topology.nodes=2"]
LONG = [*TWO_NODES, "trainer.max_epochs=5000", "callbacks.checkpoint.every_n_steps=20"]
SLOW_IMPORT = f"""
import sys, time
import torch

if "leyden.trainer.entrypoints.fork_server" in sys.orig_argv:
    time.sleep({KEEPALIVE_TIMEOUT_S + 3})
"""


def training(run_dir: Path, first: Agent, second: Agent, beyond: int = -1) -> list[int]:
    """Wait for a checkpoint beyond a step. Returns the worker of each node."""
    wait_until(lambda: newest_step(run_dir) > beyond)
    workers = [*children(first.process.pid), *children(second.process.pid)]
    assert len(workers) == 2
    return workers


def newest_step(run_dir: Path) -> int:
    return max((checkpoints.step_of(path) for path in checkpoints.saved_checkpoints(run_dir)), default=-1)


@pytest.mark.slow
def test_two_nodes_equal_one_worker(
    freeze: Freeze, agents: list[Agent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by one real command, of which its worker is forked."""
    options = ["trainer.precision=64-true", "trainer.max_steps=5"]
    one, both = freeze("one", *TINY, *options), freeze("both", *TWO_NODES, *options)
    interpreters = Interpreters(tmp_path / "interpreters")
    for name, value in interpreters.environment.items():
        monkeypatch.setenv(name, value)
    first, second = start_two(agents, both)
    assert start(one) == 0
    assert (first.code(), second.code()) == (0, 0), first.output + second.output
    assert interpreters.count == 2
    assert summary(both)["world_size"] == 2
    assert distance(weights(both), weights(one)) <= 1e-10


@pytest.mark.campaign
def test_a_fork_server_may_import_for_longer_than_the_silence_after_which_a_node_is_lost(
    freeze: Freeze, agents: list[Agent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a file system that all nodes share. An agent that has torch, as any program's may, starts a fork server of
    its own, as Slurm's agents do."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_IMPORT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run_dir = freeze("run", *LONG, "topology.devices_per_node=2")
    first, second = start_two(agents, run_dir)
    wait_until(lambda: newest_step(run_dir) > 0 or first.process.poll() is not None)
    second.process.send_signal(signal.SIGTERM)
    assert (first.code(), second.code()) == (75, 75), first.output + second.output


@pytest.mark.slow
def test_sigterm_to_one_agent_saves_on_all(freeze: Freeze, agents: list[Agent]) -> None:
    run_dir = freeze("run", *LONG)
    first, second = start_two(agents, run_dir)
    workers = training(run_dir, first, second)
    second.process.send_signal(signal.SIGTERM)
    assert (first.code(), second.code()) == (75, 75), first.output + second.output
    assert summary(run_dir)["status"] == "preempted"
    assert newest_step(run_dir) == summary(run_dir)["steps"]
    assert not [pid for pid in workers if alive(pid)]


@pytest.mark.slow
def test_a_killed_worker_is_named_and_all_restart_a_killed_agent_is_lost(freeze: Freeze, agents: list[Agent]) -> None:
    run_dir = freeze("run", *LONG, "topology.max_restarts=1")
    first, second = start_two(agents, run_dir)
    workers = training(run_dir, first, second)
    os.kill(workers[1], signal.SIGKILL)
    wait_until(lambda: not [pid for pid in workers if alive(pid)])
    workers = training(run_dir, first, second, beyond=newest_step(run_dir))
    for agent in (first, second):
        assert "rank 1 failed: killed by SIGKILL; restart 1 of 1 from step=" in agent.output
    second.process.kill()
    assert first.code() == 1
    assert_lost(1, first, run_dir)
    wait_until(lambda: not [pid for pid in workers if alive(pid)])


@pytest.mark.slow
@pytest.mark.campaign
def test_a_kill_at_a_random_time_is_named_and_loses_nothing(freeze: Freeze, agents: list[Agent]) -> None:
    """The same run again and again; in the end it equals an uninterrupted one."""
    rng, kills = random.Random(0), int(os.environ.get("LEYDEN_KILLS", "10"))
    run_dir = freeze("run", *LONG, "schedule=constant")
    for kill in range(kills):
        first, second = start_two(agents, run_dir)
        wait_until(lambda: len(_workers(first)) == len(_workers(second)) == 1)  # noqa: B023
        workers = [*_workers(first), *_workers(second)]
        time.sleep(rng.uniform(0, 10))
        victim = (kill + 1) % 4
        if victim < 2:
            os.kill(workers[victim], signal.SIGKILL)
            assert [first.code(), second.code()] == [1, 1], first.output
            assert f"rank {victim} failed: killed by SIGKILL" in first.output
            assert summary(run_dir)["failed_rank"] == victim
        else:
            dead, other = (first, second) if victim == 2 else (second, first)
            dead.process.kill()
            assert other.code() == 1
            assert_lost(victim - 2, other, run_dir)
        wait_until(lambda: not [pid for pid in workers if alive(pid)])  # noqa: B023
    steps = f"trainer.max_steps={newest_step(run_dir) + 7}"
    (run_dir / "resume.yaml").write_text(f"- changed: {{{steps.replace('=', ': ')}}}\n")
    uninterrupted = freeze("uninterrupted", *LONG, "schedule=constant", steps)
    for folder in (run_dir, uninterrupted):
        first, second = start_two(agents, folder)
        assert [first.code(120 + 20 * kills), second.code()] == [0, 0], first.output
    mine, whole = weights(run_dir), weights(uninterrupted)
    assert all(torch.equal(mine[name], whole[name]) for name in whole)


def _workers(agent: Agent) -> list[int]:
    return children(agent.process.pid)


@pytest.mark.slow
def test_an_elastic_worker_of_another_node_is_restarted(freeze: Freeze, agents: list[Agent]) -> None:
    elastic = [
        "strategy=asgd",
        "strategy.execution.servers=1",
        "strategy.execution.elastic=true",
        "topology.max_restarts=1",
    ]
    options = [option for option in LONG if option != "strategy=ddp"]
    run_dir = freeze("run", *options, *elastic, "schedule=constant")
    first, second = start_two(agents, run_dir)
    wait_until(lambda: newest_step(run_dir) > 0)
    (worker,) = _workers(second)
    others = _workers(first)
    assert len(others) == 2, "a worker and the server"
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: "restart 1 of 1" in second.output)
    wait_until(lambda: "worker 1 joins again" in (run_dir / "run.log").read_text())
    assert _workers(first) == others, "only the killed worker is restarted"
    second.process.send_signal(signal.SIGTERM)
    assert (first.code(), second.code()) == (75, 75), first.output + second.output
    assert "worker 1 failed: killed by SIGKILL; restart 1 of 1" in second.output
    assert summary(run_dir)["status"] == "preempted"


@pytest.mark.machine
@pytest.mark.slow
def test_a_worker_that_hangs_is_named_on_all_nodes(freeze: Freeze, agents: list[Agent]) -> None:
    stuck = ["dataset._target_=hang_examples.Stuck", HERE, "+dataset.rank=1"]
    run_dir = freeze("run", *LONG, *stuck, "+dataset.after=800", "trainer.hang_timeout=5")
    first, second = start_two(agents, run_dir)
    workers = training(run_dir, first, second)
    assert (first.code(), second.code()) == (1, 1), first.output + second.output
    for agent in (first, second):
        assert f"rank 1 on {os.uname().nodename} is behind, in data, at step 21;" in agent.output
    assert summary(run_dir)["failed_rank"] == 1
    assert "hang_examples.py" in (run_dir / "hang" / "rank-1.txt").read_text()
    assert "backward" in (run_dir / "hang" / "rank-0.txt").read_text()
    assert not [pid for pid in workers if alive(pid)]


def assert_lost(node: int, other: Agent, run_dir: Path) -> None:
    message = f"node {node} ({os.uname().nodename}) is lost"
    assert message in other.output
    assert summary(run_dir)["error"] == message


@pytest.mark.slow
def test_different_runs_are_refused_on_all_nodes(freeze: Freeze, agents: list[Agent]) -> None:
    run_dir, other = freeze("run", *LONG), freeze("other", *LONG, "seed=1")
    shared_secret(run_dir)
    shutil.copy(run_dir / "secret", other)  # a folder that was copied from node to node
    first, second = start_two(agents, run_dir, other)
    assert (first.code(), second.code()) == (3, 3)
    for agent in (first, second):
        assert "the nodes were given different runs" in agent.output
        assert "node 1 (" in agent.output
    assert not (first.output + second.output).count("Traceback")


@pytest.mark.slow
def test_a_rendezvous_that_times_out(freeze: Freeze, agents: list[Agent]) -> None:
    run_dir = freeze("run", *LONG)
    # an address that no host here has: documentation's own
    agents += [Agent(run_dir, "127.0.0.1:0", timeout_s=1), Agent(run_dir, "192.0.2.1:29400", timeout_s=1)]
    assert [agent.code() for agent in agents] == [1, 1]
    assert "1 of 2 nodes joined at 127.0.0.1:" in agents[0].output
    assert "no answer from 192.0.2.1:29400" in agents[1].output


@pytest.mark.parametrize(
    # this disk has space by its file system's count
    ("number", "says"),
    [(errno.ENOSPC, "the disk takes no more at"), (errno.EMFILE, "too many open files: ")],
)
def test_an_agent_that_cannot_write_is_one_sentence(
    freeze: Freeze, capsys: pytest.CaptureFixture[str], number: int, says: str
) -> None:
    run_dir = freeze("run", *TWO_NODES)

    def part(job: WorkerSpec, signals: ReceivedSignals) -> int:
        raise OSError(number, os.strerror(number), str(run_dir / "agent.json"))

    assert run_node(worker_spec(JobSpec.load(run_dir)), part) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(says)
    assert "no checkpoint had been written" in printed


@pytest.mark.parametrize("given", [[], ["--rendezvous", "nowhere"], ["--rendezvous", "no.such.host.invalid:29400"]])
def test_a_bad_rendezvous_is_one_message(freeze: Freeze, capsys: pytest.CaptureFixture[str], given: list[str]) -> None:
    assert main(["node", *given, str(freeze("run", *TWO_NODES))]) == 2
    assert "--rendezvous" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not available(), reason="needs root, `ip` and `tc`, for network namespaces")
def test_two_hosts(freeze: Freeze, agents: list[Agent]) -> None:
    run_dir = freeze("run", *TWO_NODES, "trainer.max_steps=5")
    with TwoHosts() as hosts:
        for name in hosts.names:
            agents.append(Agent(run_dir, f"{hosts.addresses[0]}:29400", prefix=("ip", "netns", "exec", name)))
        codes = [agent.code() for agent in agents]
    assert codes == [0, 0], "".join(agent.output for agent in agents)
    assert summary(run_dir)["steps"] == 5
