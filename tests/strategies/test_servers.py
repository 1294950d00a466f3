"""Parameter server processes over gloo: killed and resumed; bitwise equal to a simulation."""

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from pool import Pool
from runs import (
    FEW,
    HERE,
    PATIENCE_S,
    TINY,
    Freeze,
    Processes,
    alive,
    children,
    cut_back,
    distance,
    summary,
    wait_until,
    weights,
)

from leyden.trainer.entrypoints.start import start
from leyden.trainer.runs import checkpoints

pytestmark = pytest.mark.slow
CAMPAIGN = pytest.mark.campaign
SHORT = [*TINY, *FEW, "batch_size=48", "trainer.log_every_n_steps=10"]
LONG = [*SHORT, "trainer.max_epochs=5000", "callbacks.checkpoint.every_n_steps=20", "schedule=constant"]
SERVER = ["strategy=easgd", "strategy.form=server", "strategy.tau=3"]


def workers(count: int) -> str:
    return f"topology.devices_per_node={count}"


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def on_one_thread(processes: Processes, run_dir: Path, verb: str = "train") -> dict[str, torch.Tensor]:
    process = processes.start(run_dir, verb, OMP_NUM_THREADS="1")
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    return weights(run_dir)


def test_one_worker_and_two_servers_are_bitwise_sgd_resumed_too(
    freeze: Freeze, processes: Processes, tmp_path: Path
) -> None:
    options = [*SHORT, "batch_size=96", "optimizer.decay_bias_and_norm=false", "model.dropout=0.2",
               "callbacks.checkpoint.every_n_steps=10", "callbacks.checkpoint.keep_last=9"]  # fmt: skip
    single = freeze("single", *options)
    assert start(single) == 0
    one = weights(single)
    served = freeze("asgd", *options, "strategy=asgd", "strategy.execution.servers=2")
    assert same_bits(on_one_thread(processes, served), one)
    resumed = cut_back(served, tmp_path / "resumed", 10)
    (resumed / "resume.yaml").write_text("- changed: {strategy.execution.servers: 3}\n")
    assert same_bits(on_one_thread(processes, resumed, "resume"), one)


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param([*SERVER, "optimizer.nesterov=true"], id="eamsgd", marks=CAMPAIGN),
        pytest.param(["strategy=asgd", "strategy.n_push=2", "strategy.n_fetch=4"], id="asgd"),
    ],
)
def test_a_recorded_run_replayed_is_the_same_bits(freeze: Freeze, processes: Processes, strategy: list[str]) -> None:
    """Three workers race; the simulation makes the same updates in the order that the server recorded."""
    options = [*SHORT, *strategy, workers(3), "callbacks.checkpoint.every_n_steps=17"]
    distributed = freeze("distributed", *options, "strategy.execution.record=true")
    raced = on_one_thread(processes, distributed)
    assert summary(distributed)["samples"] == 2 * 1150
    events = (distributed / "events.csv").read_text()
    assert len({line.split(",")[0] for line in events.splitlines()}) == 4
    replay = freeze(
        "replay",
        *options,
        "strategy.execution.simulate=true",
        f"strategy.execution.replay={distributed / 'events.csv'}",
    )
    assert start(replay) == 0
    assert same_bits(weights(replay), raced)


EASGD, LOCAL_SGD = ["strategy=easgd", "strategy.tau=3"], ["strategy=local_sgd", "strategy.h=5"]


@pytest.mark.parametrize(
    ("strategy", "count"),
    [
        pytest.param(EASGD, 4, id="easgd-4"),
        pytest.param(LOCAL_SGD, 2, id="local_sgd-2"),
        pytest.param(EASGD, 2, id="easgd-2", marks=CAMPAIGN),
        pytest.param(LOCAL_SGD, 4, id="local_sgd-4", marks=CAMPAIGN),
    ],
)
def test_lockstep_workers_are_the_simulated_ones(
    freeze: Freeze, pools: Callable[[int], Pool], strategy: list[str], count: int
) -> None:
    options = [*SHORT, *strategy, workers(count), "callbacks.checkpoint.every_n_steps=11"]
    distributed, simulated = (
        freeze("distributed", *options),
        freeze("simulated", *options, "strategy.execution.simulate=true"),
    )
    pools(count).run(distributed)
    assert start(simulated) == 0
    assert distance(weights(distributed), weights(simulated)) <= 1e-6
    assert summary(distributed)["samples"] == summary(simulated)["samples"]


def begun(processes: Processes, run_dir: Path, verb: str = "train") -> subprocess.Popen[str]:
    """A run that has written at least one more checkpoint."""
    process = processes.start(run_dir, verb)
    trained_further(process, run_dir)
    return process


def trained_further(process: subprocess.Popen[str], run_dir: Path) -> dict[str, int]:
    """The processes of a run by role, once they have written a further checkpoint."""
    before = _newest(run_dir)
    wait_until(lambda: _newest(run_dir) > before or process.poll() is not None)
    assert process.poll() is None, process.communicate()[0]
    return roles(process)


def _newest(run_dir: Path) -> int:
    found = checkpoints.saved_checkpoints(run_dir)
    return checkpoints.step_of(found[0]) if found else -1


def roles(process: subprocess.Popen[str]) -> dict[str, int]:
    """worker 0, ..., server 0, ...: process ids, from the processes' names."""
    found: dict[str, int] = {}
    for pid in children(process.pid):
        kind, _, number = psutil.Process(pid).name().removeprefix("leyden-").rpartition("-")
        found[f"{kind or 'worker'} {number}"] = pid
    return found


@pytest.mark.parametrize(
    "strategy",
    [pytest.param(SERVER, id="easgd", marks=CAMPAIGN), pytest.param(["strategy=asgd"], id="asgd")],
)
def test_killed_restarted_stopped_and_resumed(freeze: Freeze, processes: Processes, strategy: list[str]) -> None:
    """kill -9 of a worker and of a server: named, no process left; a signal; then the run's end, on other numbers."""
    once = "topology.max_restarts=1"
    run_dir = freeze("run", *LONG, *strategy, "strategy.execution.servers=2", once, workers(2))
    process = processes.start(run_dir)
    killed: set[int] = set()
    for victim in ("worker 1", "server 1"):
        known = trained_further(process, run_dir)
        assert sorted(known) == ["server 0", "server 1", "worker 0", "worker 1"]
        assert not killed.intersection(known.values()), "a restart is one of all"
        os.kill(known[victim], signal.SIGKILL)
        killed.update(known.values())
        wait_until(lambda: not [pid for pid in killed if alive(pid)])
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, output
    assert "rank 1 failed: killed by SIGKILL; restart 1 of 1" in output
    assert "server 1 failed: killed by SIGKILL" in output
    process = begun(processes, run_dir, "resume")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 75, output
    stopped = summary(run_dir)
    assert stopped["status"] == "preempted"
    assert _newest(run_dir) == stopped["steps"]
    epochs = stopped["epochs"] + 1
    (run_dir / "resume.yaml").write_text(
        f"- changed: {{trainer.max_epochs: {epochs}, topology.devices_per_node: 3, strategy.execution.servers: 1}}\n"
    )
    code, output = processes.run(run_dir, "resume")
    assert code == 0, output
    assert summary(run_dir)["samples"] == epochs * 1150


def test_a_worker_that_trains_nothing_ends_with_the_others(freeze: Freeze, pools: Callable[[int], Pool]) -> None:
    """What is reported at the end is collective, whoever has trained."""
    late = ["+callbacks.late._target_=local_update_examples.LateFirstWorker", HERE]
    run_dir = freeze("run", *SHORT, "strategy=asgd", *late, workers(2), "trainer.max_steps=4")
    pools(2).run(run_dir)
    assert summary(run_dir)["status"] == "done"
    assert b"confusion/test" in next(run_dir.glob("events.out*")).read_bytes()


def test_divergence_ends_the_run_and_names_its_cause(freeze: Freeze, processes: Processes) -> None:
    run_dir = freeze("run", *SHORT, "strategy=asgd", "optimizer.lr=1e25", workers(2))
    code, output = processes.run(run_dir)
    assert code == 1
    assert "diverged" in output
    assert "NaN or infinite" in summary(run_dir)["error"]


ELASTIC = ["strategy.execution.elastic=true", "topology.max_restarts=3"]


@pytest.mark.parametrize("victim", [pytest.param(1, marks=CAMPAIGN), 0])
def test_an_elastic_run_goes_on_without_a_dead_worker_which_joins_again(
    freeze: Freeze, processes: Processes, victim: int
) -> None:
    """The other worker is not restarted; every epoch is whole; no process is left."""
    options = [*LONG, "strategy=asgd", *ELASTIC, workers(2)]
    run_dir = freeze("run", *options)
    process = begun(processes, run_dir)
    known = _elastic_workers(process)
    os.kill(known[victim], signal.SIGKILL)
    wait_until(lambda: _elastic_workers(process).get(victim, known[victim]) != known[victim])
    again = _elastic_workers(process)
    assert again[1 - victim] == known[1 - victim], "the other one still trains"
    if victim == 0:
        wait_until(lambda: "joins again" in (run_dir / "run.log").read_text())
    before = _newest(run_dir)
    wait_until(lambda: _newest(run_dir) > before)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 75, output
    stopped = summary(run_dir)
    assert _newest(run_dir) == stopped["steps"]
    assert f"worker {victim}" in output
    assert not [pid for pid in again.values() if alive(pid)]


def test_an_elastic_run_does_not_go_on_without_the_worker_that_saves(freeze: Freeze, processes: Processes) -> None:
    run_dir = freeze("run", *LONG, "strategy=asgd", "strategy.execution.elastic=true", workers(2))
    process = begun(processes, run_dir)
    known = _elastic_workers(process)
    os.kill(known[0], signal.SIGKILL)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, output
    assert "worker 0 failed: killed by SIGKILL" in output
    assert "last good checkpoint" in output
    assert not [pid for pid in known.values() if alive(pid)]


def _elastic_workers(process: subprocess.Popen[str]) -> dict[int, int]:
    """Process ids of the workers that have begun, by number."""
    found: dict[int, int] = {}
    for pid in children(process.pid):
        with suppress(psutil.NoSuchProcess):
            number, _, incarnation = psutil.Process(pid).name().removeprefix("leyden-").partition("-")
            if number.isdigit() and incarnation.isdigit():
                found[int(number)] = pid
    return found


def test_an_elastic_run_ends_with_every_sample_trained(freeze: Freeze, processes: Processes) -> None:
    run_dir = freeze("run", *SHORT, *SERVER, *ELASTIC, workers(2))
    code, output = processes.run(run_dir)
    assert code == 0, output
    assert summary(run_dir)["samples"] == 2 * 1150
    assert summary(run_dir)["status"] == "done"
