"""What holds for every strategy that keeps its parameters in step: equal to one worker, resumable, counted."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pool import Pool
from runs import FEW, PATIENCE_S, TINY, Freeze, Processes, apart, children, cut_back, rows, summary, wait_until, weights
from tables import thinned

from leyden.trainer.core.checkpoints import checkpoint_io
from leyden.trainer.entrypoints.start import start
from leyden.trainer.runs import checkpoints

Pools = Callable[[int], Pool]
SHORT = ["trainer.precision=64-true", "trainer.max_steps=5", "batch_size=48", "trainer.log_every_n_steps=1", *FEW]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.campaign)])
def test_dropout_drops_the_same_units_on_any_number_of_workers(freeze: Freeze, pools: Pools, workers: int) -> None:
    options = [*TINY, *SHORT, "model.hidden=[32,24]", "model.dropout=0.4"]
    one, several = freeze("one", *options), freeze("several", *options, "strategy=ddp", devices(workers))
    assert start(one) == 0
    pools(workers).run(several)
    assert apart(several, one) <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [pytest.param(1, marks=pytest.mark.campaign), 2])
def test_the_ledger_counts_the_ring(freeze: Freeze, pools: Pools, nodes: int) -> None:
    run_dir = freeze("run", *TINY, *SHORT, "strategy=ddp", f"topology.nodes={nodes}", devices(4 // nodes))
    pools(4).run(run_dir)
    parameters = 64 * 16 + 16 + 16 * 10 + 10
    sent = summary(run_dir)["communication"]
    assert sent["bytes_a_step_and_worker"] == 2 * 3 / 4 * parameters * 8
    assert sent["bytes"] == sent["bytes_a_step_and_worker"] * 4 * 5
    assert sent["inter_node_bytes"] == (sent["bytes"] / 2 if nodes == 2 else 0)
    assert float(rows(run_dir)[0]["comm/bytes"]) == sent["bytes_a_step_and_worker"]


RESUMED = {
    "ddp": ["strategy=ddp", "strategy.bucket_cap_mb=0.005"],
    "hybrid": ["strategy=hybrid", "strategy.bucket_cap_mb=0.005", "model=vgg_small", "model.stages=[[16],[24]]"],
    "static graph": ["strategy=ddp", "strategy.static_graph=true", "strategy.find_unused_parameters=true"],
    "unused": ["strategy=ddp", "strategy.bucket_cap_mb=0.005", "strategy.find_unused_parameters=true"],
    "butterfly": ["strategy=butterfly"],
    "fsdp": ["strategy=fsdp", "strategy.min_parameters=100"],
    "local_sgd": ["strategy=local_sgd", "strategy.h=2"],
    "easgd": ["strategy=easgd", "strategy.tau=2"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(RESUMED, in_ci=["ddp", "hybrid"]))
def test_four_workers_resume_with_the_bits_of_the_undisturbed_run(
    freeze: Freeze, pools: Pools, tmp_path: Path, name: str
) -> None:
    """Of more than two summands the order counts: no exchange may depend on where a session began."""
    often = ["callbacks.checkpoint.every_n_steps=1", "callbacks.checkpoint.keep_last=9", "trainer.max_steps=8", *FEW]
    net = ["model.hidden=[32,24]", "model.dropout=0.4", "optimizer.momentum=0.9", "trainer.gradient_clip_val=0.5"]
    whole = freeze("whole", *TINY, *net, "batch_size=48", *often, *RESUMED[name], devices(4))
    pools(4).run(whole)
    cut = cut_back(whole, tmp_path / "cut", 3 if name != "local_sgd" else 4)
    pools(4).run(cut, "resume")
    assert summary(cut)["resumed_from_step"] in (3, 4)
    assert all(torch.equal(value, weights(cut)[tensor]) for tensor, value in weights(whole).items())


def devices(count: int) -> str:
    return f"topology.devices_per_node={count}"


KILLED = {
    "butterfly": ["strategy=butterfly", "model=mlp", "model.hidden=[16]"],
    "hybrid": ["strategy=hybrid", "strategy.scheme=b", "model=mlp", "model.hidden=[16]"],
    "spatial": ["strategy=spatial", "model=local_net", "model.maps=[2]", "model.rf=3", "model.lcn=3"],
    "fsdp": ["strategy=fsdp", "strategy.min_parameters=100", "model=mlp", "model.hidden=[16]"],
    "powersgd": ["strategy=ddp", "strategy.compression=powersgd", "model=mlp", "model.hidden=[64,64]"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(KILLED, in_ci=["spatial"]))
def test_a_killed_run_goes_on_under_its_strategy_and_under_single(
    freeze: Freeze, processes: Processes, pools: Pools, name: str
) -> None:
    run_dir = freeze(
        "run", *KILLED[name], "dataset.image_size=8", "trainer.max_epochs=500", "trainer.precision=64-true",
        "callbacks.checkpoint.every_n_steps=5", *FEW, devices(2),
    )  # fmt: skip
    process = processes.start(run_dir)
    wait_until(lambda: len(checkpoints.saved_checkpoints(run_dir)) > 1)
    os.kill(max(children(process.pid)), signal.SIGKILL)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, output
    assert "failed: killed by SIGKILL" in output
    assert "last good checkpoint" in output
    found = checkpoint_io.newest(run_dir)
    assert found is not None
    stands_at = checkpoints.step_of(found[0])

    single = shutil.copytree(run_dir, run_dir.with_name("single"))
    stop = f"trainer.max_steps: {stands_at + 5}"
    (run_dir / "resume.yaml").write_text(f"- changed: {{{stop}}}\n")
    target = "{_target_: leyden.trainer.strategies.single.Single}"
    (single / "resume.yaml").write_text(
        f"- changed: {{{stop}, topology.devices_per_node: 1, strategy: {target}, callbacks.checkpoint.keep_last: 9}}\n"
    )
    assert f"step {stands_at}" in pools(2).run(run_dir, "resume")
    assert start(single, "resume") == 0
    assert summary(run_dir)["steps"] == summary(single)["steps"] == stands_at + 5
    if name != "powersgd":  # whose one-device run sends nothing, and so loses nothing
        assert apart(single, run_dir) <= 1e-9
