"""Real parameter servers: processes beside the workers, over gloo, killed and resumed; and the simulation's bits."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pool import Pool
from runs import TINY, Freeze, Processes, alive, children, cut_back, distance, summary, wait_until, weights

from leyden.trainer import checkpoint
from leyden.trainer.launch import start

pytestmark = pytest.mark.slow
SHORT = [*TINY, "batch_size=48", "trainer.log_every_n_steps=10"]
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
    options = [*SHORT, "optimizer.decay_bias_and_norm=false", "model.dropout=0.2",
               "callbacks.checkpoint.every_n_steps=10", "callbacks.checkpoint.keep_last=9"]  # fmt: skip
    one = on_one_thread(processes, freeze("single", *options))
    served = freeze("asgd", *options, "strategy=asgd", "strategy.servers=2")
    assert same_bits(on_one_thread(processes, served), one)
    resumed = cut_back(served, tmp_path / "resumed", 10)
    (resumed / "resume.yaml").write_text("- changed: {strategy.servers: 3}\n")
    assert same_bits(on_one_thread(processes, resumed, "resume"), one)


@pytest.mark.parametrize(
    "strategy",
    [[*SERVER, "optimizer.nesterov=true"], ["strategy=asgd", "strategy.n_push=2", "strategy.n_fetch=4"]],
    ids=["eamsgd", "asgd"],
)
def test_a_recorded_run_replayed_is_the_same_bits(freeze: Freeze, processes: Processes, strategy: list[str]) -> None:
    """Three workers race for real; the simulation makes the same updates in the order that the server recorded."""
    options = [*SHORT, *strategy, workers(3), "callbacks.checkpoint.every_n_steps=17"]
    real = freeze("real", *options, "strategy.record=true")
    raced = on_one_thread(processes, real)
    assert summary(real)["samples"] == 2 * 1150
    events = (real / "events.csv").read_text()
    assert len({line.split(",")[0] for line in events.splitlines()}) == 4
    replay = freeze("replay", *options, "strategy.simulate=true", f"strategy.replay={real / 'events.csv'}")
    assert same_bits(on_one_thread(processes, replay), raced)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("strategy", [["strategy=easgd", "strategy.tau=3"], ["strategy=local_sgd", "strategy.h=5"]])
def test_lockstep_workers_are_the_simulated_ones(
    freeze: Freeze, pools: Callable[[int], Pool], strategy: list[str], count: int
) -> None:
    options = [*SHORT, *strategy, workers(count), "callbacks.checkpoint.every_n_steps=11"]
    real, virtual = freeze("real", *options), freeze("virtual", *options, "strategy.simulate=true")
    pools(count).run(real)
    assert start(virtual) == 0
    assert distance(weights(real), weights(virtual)) <= 1e-6
    assert summary(real)["samples"] == summary(virtual)["samples"]


def begun(processes: Processes, run_dir: Path, verb: str = "train") -> subprocess.Popen[str]:
    """A run that has written at least one more checkpoint."""
    before = _newest(run_dir)
    process = processes.start(run_dir, verb)
    wait_until(lambda: _newest(run_dir) > before or process.poll() is not None)
    assert process.poll() is None, process.communicate()[0]
    return process


def _newest(run_dir: Path) -> int:
    found = checkpoint.saved(run_dir)
    return checkpoint.step_of(found[0]) if found else -1


def roles(process: subprocess.Popen[str]) -> dict[str, int]:
    """worker 0, ..., server 0, ...: process ids, from the environments."""
    found: dict[str, int] = {}
    for pid in children(process.pid):
        entries = Path(f"/proc/{pid}/environ").read_text().split("\0")
        environment = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        server = environment.get("LEYDEN_SERVER")
        found[f"server {server}" if server is not None else f"worker {environment['RANK']}"] = pid
    return found


@pytest.mark.parametrize("strategy", [SERVER, ["strategy=asgd"]], ids=["easgd", "asgd"])
def test_killed_stopped_and_resumed(freeze: Freeze, processes: Processes, strategy: list[str]) -> None:
    """kill -9 of a worker and of a server: named, nothing left; then a signal; then the run's end, on other numbers."""
    run_dir = freeze("run", *LONG, *strategy, "strategy.servers=2", workers(2))
    verb = "train"
    for victim in ("worker 1", "server 1"):
        process = begun(processes, run_dir, verb)
        known = roles(process)
        assert sorted(known) == ["server 0", "server 1", "worker 0", "worker 1"]
        os.kill(known[victim], signal.SIGKILL)
        output, _ = process.communicate(timeout=20)
        assert process.returncode == 1, output
        assert f"{victim.replace('worker', 'rank')} failed: killed by SIGKILL" in output
        wait_until(lambda: not [pid for pid in known.values() if alive(pid)], 10)  # noqa: B023
        verb = "resume"
    process = begun(processes, run_dir, "resume")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output
    stopped = summary(run_dir)
    assert stopped["status"] == "preempted"
    assert _newest(run_dir) == stopped["steps"]
    epochs = stopped["epochs"] + 1
    (run_dir / "resume.yaml").write_text(
        f"- changed: {{trainer.max_epochs: {epochs}, topology.devices_per_node: 3, strategy.servers: 1}}\n"
    )
    code, output = processes.run(run_dir, "resume")
    assert code == 0, output
    assert summary(run_dir)["samples"] == epochs * 1150


def test_a_dead_worker_costs_a_restart(freeze: Freeze, processes: Processes) -> None:
    options = [*LONG, "trainer.max_epochs=30", "strategy=asgd", "topology.max_restarts=1", workers(2)]
    run_dir = freeze("run", *options)
    process = begun(processes, run_dir)
    os.kill(roles(process)["worker 0"], signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert "restart 1 of 1" in output
    assert summary(run_dir)["samples"] == 30 * 1150


def test_divergence_ends_the_run_and_names_its_cause(freeze: Freeze, processes: Processes) -> None:
    run_dir = freeze("run", *SHORT, "strategy=asgd", "optimizer.lr=1e25", workers(2))
    code, output = processes.run(run_dir)
    assert code == 1
    assert "diverged" in output
    assert "NaN or infinite" in summary(run_dir)["error"]


ELASTIC = ["strategy.elastic=true", "topology.max_restarts=3"]


@pytest.mark.parametrize("victim", [1, 0])
def test_an_elastic_run_goes_on_without_a_dead_worker_which_joins_again(
    freeze: Freeze, processes: Processes, victim: int
) -> None:
    """The others do not begin again; the epochs are whole; nothing is left."""
    options = [*LONG, "strategy=asgd", *ELASTIC, workers(2)]
    run_dir = freeze("run", *options)
    process = begun(processes, run_dir)
    known = _elastic_workers(process)
    os.kill(known[victim], signal.SIGKILL)
    wait_until(lambda: _elastic_workers(process).get(victim, known[victim]) != known[victim])
    again = _elastic_workers(process)
    assert again[1 - victim] == known[1 - victim], "the other one is still at it"
    if victim == 0:
        wait_until(lambda: "joins again" in (run_dir / "run.log").read_text())
    before = _newest(run_dir)
    wait_until(lambda: _newest(run_dir) > before)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output
    stopped = summary(run_dir)
    assert _newest(run_dir) == stopped["steps"]
    assert f"worker {victim}" in output
    assert not [pid for pid in again.values() if alive(pid)]


def test_an_elastic_run_does_not_go_on_without_the_worker_that_saves(freeze: Freeze, processes: Processes) -> None:
    run_dir = freeze("run", *LONG, "strategy=asgd", "strategy.elastic=true", workers(2))
    process = begun(processes, run_dir)
    known = _elastic_workers(process)
    os.kill(known[0], signal.SIGKILL)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 1, output
    assert "worker 0 failed: killed by SIGKILL" in output
    assert "last good checkpoint" in output
    assert not [pid for pid in known.values() if alive(pid)]


def _elastic_workers(process: subprocess.Popen[str]) -> dict[int, int]:
    found: dict[int, int] = {}
    for pid in children(process.pid):
        try:
            entries = Path(f"/proc/{pid}/environ").read_text().split("\0")
        except OSError:
            continue
        environment = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        if "LEYDEN_WORKER" in environment:
            found[int(environment["LEYDEN_WORKER"])] = pid
    return found


def test_an_elastic_run_ends_with_every_sample_trained(freeze: Freeze, processes: Processes) -> None:
    run_dir = freeze("run", *SHORT, *SERVER, *ELASTIC, workers(2))
    code, output = processes.run(run_dir)
    assert code == 0, output
    assert summary(run_dir)["samples"] == 2 * 1150
    assert summary(run_dir)["status"] == "done"
