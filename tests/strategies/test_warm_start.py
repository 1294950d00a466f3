"""Warm start of asgd: worker 0 alone; all its pushes are applied before another worker fetches."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pool import Pool
from runs import FEW, HERE, TINY, Freeze, distance, summary, weights
from torch import Tensor

from leyden.trainer.entrypoints.start import start

CAMPAIGN = pytest.mark.campaign
TWO, SIMULATED = "topology.devices_per_node=2", "strategy.execution.simulate=true"
EXACT = [*TINY, "trainer.limit_train_batches=20", *FEW, "trainer.precision=64-true",
         "optimizer.momentum=0", "optimizer.weight_decay=0", "schedule=constant"]  # fmt: skip
WATCHED = ["batch_size=48", "strategy=asgd", TWO, "+callbacks.first._target_=local_update_examples.FirstFetch",
           HERE]  # fmt: skip
"""A slice is 24 samples, an epoch 40 slices."""


def alone(freeze: Freeze, steps: int) -> Tensor:
    """The weights of one worker after `steps` steps of one slice each (flat)."""
    run_dir = freeze("alone", *EXACT, "trainer.limit_train_batches=40", "batch_size=24", f"trainer.max_steps={steps}")
    assert start(run_dir) == 0
    return flat(run_dir)


def flat(run_dir: Path) -> Tensor:
    return torch.cat([value.flatten() for value in weights(run_dir).values()])


def warm(freeze: Freeze, name: str, steps: int, n: int, *more: str) -> Path:
    return freeze(name, *EXACT, *WATCHED, f"strategy.warm_start_steps={steps}", f"strategy.n_push={n}",
                  f"strategy.n_fetch={n}", f"trainer.max_steps={steps // 2 + 6}", *more)  # fmt: skip


def apart(run_dir: Path, oracle: Tensor) -> float:
    """Relative distance of the other worker's first fetch."""
    fetched = torch.load(run_dir / "first_fetch.pt")
    return float((fetched - oracle).norm() / oracle.norm())


@pytest.mark.parametrize(
    ("n", "steps"),
    [
        pytest.param(4, 30, id="4-mid-epoch"),
        pytest.param(4, 40, id="4-epoch's end"),
        pytest.param(1, 60, id="1-second epoch", marks=pytest.mark.slow),
        pytest.param(100, 30, id="100-mid-epoch", marks=pytest.mark.slow),
        pytest.param(4, 60, id="4-second epoch", marks=CAMPAIGN),
        pytest.param(1, 30, id="1-mid-epoch", marks=CAMPAIGN),
        pytest.param(1, 40, id="1-epoch's end", marks=CAMPAIGN),
        pytest.param(100, 40, id="100-epoch's end", marks=CAMPAIGN),
        pytest.param(100, 60, id="100-second epoch", marks=CAMPAIGN),
    ],
)
def test_simulated_workers_start_from_the_warm_start(freeze: Freeze, n: int, steps: int) -> None:
    """30 steps are no multiple of 4 pushes, and less than 100."""
    run_dir = warm(freeze, "warm", steps, n, SIMULATED)
    assert start(run_dir) == 0
    assert apart(run_dir, alone(freeze, steps)) <= 1e-10
    assert summary(run_dir)["steps"] == steps // 2 + 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "loaders"),
    [
        (1, 1),
        (4, 0),
        *(pytest.param(*case, marks=CAMPAIGN) for case in ((1, 0), (4, 1), (100, 0), (100, 1))),
    ],
)
def test_distributed_workers_start_from_the_warm_start(
    freeze: Freeze, pools: Callable[[int], Pool], n: int, loaders: int
) -> None:
    """A loader process draws tickets before the previous ones are trained."""
    servers = 2 if n == 4 else 1
    run_dir = warm(freeze, "warm", 30, n, f"dataset.num_workers={loaders}", f"strategy.execution.servers={servers}")
    pools(2).run(run_dir)
    assert apart(run_dir, alone(freeze, 30)) <= 1e-10
    assert summary(run_dir)["steps"] == 21


@pytest.mark.slow
def test_a_recorded_warm_start_is_replayed(freeze: Freeze, pools: Callable[[int], Pool]) -> None:
    """With a checkpoint where the warm start ends, and one later."""
    saves = ["callbacks.checkpoint.every_n_steps=15", "strategy.execution.record=true"]
    distributed = warm(freeze, "distributed", 30, 4, *saves, "trainer.max_steps=40")
    pools(2).run(distributed)
    replayed = f"strategy.execution.replay={distributed / 'events.csv'}"
    replay = warm(freeze, "replay", 30, 4, *saves[:1], SIMULATED, replayed, "trainer.max_steps=40")
    assert start(replay) == 0
    assert distance(weights(replay), weights(distributed)) <= 1e-10
    saved = [sorted(path.name for path in (run / "checkpoints").iterdir()) for run in (distributed, replay)]
    assert saved[0] == saved[1]
    assert summary(distributed)["communication"]["bytes"] == summary(replay)["communication"]["bytes"]
