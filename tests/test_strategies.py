"""What holds for every strategy that keeps its parameters in step: equal to one worker, resumable, counted."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pool import Pool
from runs import TINY, Freeze, distance, rows, summary, weights

from leyden.trainer.launch import start

Pools = Callable[[int], Pool]
SHORT = ["trainer.precision=64-true", "trainer.max_steps=5", "batch_size=48", "trainer.log_every_n_steps=1"]


def apart(one: Path, other: Path) -> float:
    """Largest relative distance of two runs' tensors."""
    return distance(weights(one), weights(other))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4])
def test_dropout_drops_the_same_units_on_any_number_of_workers(freeze: Freeze, pools: Pools, workers: int) -> None:
    options = [*TINY, *SHORT, "model.hidden=[32,24]", "model.dropout=0.4"]
    one, several = freeze("one", *options), freeze("several", *options, "strategy=ddp", devices(workers))
    assert start(one) == 0
    pools(workers).run(several)
    assert apart(several, one) <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_the_ledger_counts_the_ring(freeze: Freeze, pools: Pools, nodes: int) -> None:
    run_dir = freeze("run", *TINY, *SHORT, "strategy=ddp", f"topology.nodes={nodes}", devices(4 // nodes))
    pools(4).run(run_dir)
    parameters = 64 * 16 + 16 + 16 * 10 + 10
    sent = summary(run_dir)["communication"]
    assert sent["bytes_a_step_and_worker"] == 2 * 3 / 4 * parameters * 8
    assert sent["bytes"] == sent["bytes_a_step_and_worker"] * 4 * 5
    assert sent["inter_node_bytes"] == (sent["bytes"] / 2 if nodes == 2 else 0)
    assert float(rows(run_dir)[0]["comm/bytes"]) == sent["bytes_a_step_and_worker"]


def devices(count: int) -> str:
    return f"topology.devices_per_node={count}"
