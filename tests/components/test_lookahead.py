"""callbacks=lookahead: slow weights of its formula, from which the training goes on, under every lockstep strategy."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pool import Pool
from runs import HERE, NETS, TINY, Freeze, cut_back, distance, weights
from tables import thinned

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.compose.checks import check_classes
from leyden.trainer.config.schema import load
from leyden.trainer.core.checkpoints import checkpoint_io
from leyden.trainer.entrypoints.start import start
from leyden.trainer.runs import checkpoints

Pools = Callable[[int], Pool]
LOOKAHEAD = ["callbacks=[default,lookahead]", "callbacks.lookahead.every=2"]
SHORT = [
    *LOOKAHEAD, "optimizer=sgd", "optimizer.lr=0.05", "schedule=constant", "trainer.precision=64-true",
    "trainer.max_steps=5", "batch_size=48", "callbacks.checkpoint.every_n_steps=1", "callbacks.checkpoint.keep_last=99",
    "trainer.enable_progress_bar=false",
]  # fmt: skip
MLP = ["model=mlp", "model.hidden=[30,22]", "dataset.image_size=8"]
TWO = "topology.devices_per_node=2"


def test_the_weights_are_those_of_the_formula(freeze: Freeze) -> None:
    noting = [HERE, "callbacks.lookahead._target_=lookahead_examples.Noting"]
    run_dir = freeze("run", *MLP, *SHORT, "callbacks.lookahead.decay=0.7", "callbacks.lookahead.power=3", *noting)
    assert start(run_dir) == 0
    slow = found = torch.load(run_dir / "found-0.pt")
    for step in range(1, 6):
        found = torch.load(run_dir / f"found-{step}.pt")
        decay = 0.7 * (step / 5) ** 3
        if step in (2, 4):
            slow = {name: decay * value + (1 - decay) * found[name] for name, value in slow.items()}
        # the last step ends with the slow weights, as no further step would use the others
        after = checkpoint_io.read(checkpoints.path_of(run_dir, step))["model"]
        assert distance(after, slow if step in (2, 4, 5) else found) <= 1e-15, step
    assert distance(found, slow) > 1e-4


UNDER = {
    "ddp": ["strategy=ddp", TWO],
    "butterfly, lazy": ["strategy=butterfly", "strategy.bucket_cap_mb=0.01", TWO],
    "hybrid": ["strategy=hybrid", TWO],
    "fsdp": ["strategy=fsdp", "strategy.min_parameters=500", TWO],
}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", thinned(UNDER, in_ci=["butterfly, lazy", "fsdp"]))
def test_every_strategy_has_the_weights_of_one_worker(freeze: Freeze, pools: Pools, strategy: str) -> None:
    one, two = freeze("one", *NETS["vgg"], *SHORT), freeze("two", *NETS["vgg"], *SHORT, *UNDER[strategy])
    assert start(one) == 0
    pools(2).run(two)
    assert distance(weights(two), weights(one)) <= 1e-10


@pytest.mark.slow
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(freeze: Freeze, tmp_path: Path) -> None:
    whole = freeze("whole", *MLP, *SHORT, "optimizer.momentum=0.9")
    assert start(whole) == 0
    resumed = cut_back(whole, tmp_path / "resumed", 3)
    assert start(resumed, "resume") == 0
    assert distance(weights(resumed), weights(whole)) == 0.0


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("callbacks.lookahead.decay=1.0", ["callbacks.lookahead.decay = 1.0", "less than 1", "lookahead.decay=0.5"]),
        ("callbacks.lookahead.every=0", ["callbacks.lookahead.every = 0", "at least 1", "lookahead.every=5"]),
        ("callbacks.lookahead.power=-1", ["callbacks.lookahead.power = -1", "at least 0", "lookahead.power=0"]),
        ("strategy=easgd", ["callbacks.lookahead", "each worker of EASGD has its own", "strategy=ddp"]),
    ],
)
def test_refused_before_anything_starts(freeze: Freeze, option: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        check_classes(load(freeze("run", *TINY, *LOOKAHEAD, option)))
    text = " ".join(error.value.render().split())
    assert [word for word in words if word not in text] == []
