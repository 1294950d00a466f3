"""model.freeze and model.unfreeze_at: under every strategy, over resumption, with BatchNorm."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pool import Pool
from runs import FEW, TINY, Freeze, cut_back, distance, metrics, weights
from tables import thinned

from leyden.trainer.core.checkpoints import checkpoint_io
from leyden.trainer.entrypoints.start import start
from leyden.trainer.runs import checkpoints

Pools = Callable[[int], Pool]
TWO = "topology.devices_per_node=2"
PLAIN = ["schedule=constant", "optimizer=sgd", "optimizer.lr=0.05", "optimizer.weight_decay=0.1", "batch_size=48",
         "trainer.precision=64-true", "trainer.max_steps=5", *FEW, "trainer.enable_progress_bar=false"]  # fmt: skip
NETS = {
    "mlp": (["model=mlp", "model.hidden=[30,22]", "dataset.image_size=8", "model.freeze=[layers.1]"],
            "model.layers.1."),
    "vgg": (["model=vgg_small", "model.stages=[[4],[6]]", "model.hidden=[19,13]", "dataset.image_size=8",
             "model.freeze=[features]"], "model.features."),
    "head": (["model=vgg_small", "model.stages=[[4],[6]]", "model.hidden=[19,13]", "dataset.image_size=8",
              "model.freeze=[classifier.0,'classifier.1']"], "model.classifier.1."),
    "local_net": (["dataset.image_size=16", "augment=none", "model=local_net", "model.maps=[4,3]", "model.rf=4",
                   "model.lcn=3", "model.freeze=['features.0']"], "model.features.0."),
}  # fmt: skip
UNDER = {
    "ddp": ("mlp", ["strategy=ddp"]),
    "butterfly": ("mlp", ["strategy=butterfly"]),
    "hybrid, convolutions": ("vgg", ["strategy=hybrid"]),
    "fsdp": ("mlp", ["strategy=fsdp", "strategy.min_parameters=500"]),
    "spatial": ("local_net", ["strategy=spatial", "strategy.grid=[1,2]"]),
    "local_sgd, averaging every step": ("mlp", ["strategy=local_sgd", "strategy.h=1"]),
}


def initial(freeze: Freeze, *options: str) -> dict[str, torch.Tensor]:
    run_dir = freeze("begin", *options, "optimizer.lr=1e-30", "optimizer.weight_decay=0", "trainer.max_steps=1")
    assert start(run_dir) == 0
    return weights(run_dir)


@pytest.mark.slow
@pytest.mark.parametrize("case", thinned(UNDER, in_ci=["butterfly", "hybrid, convolutions", "fsdp"]))
def test_equal_to_one_worker_under(freeze: Freeze, pools: Pools, case: str) -> None:
    net, strategy = UNDER[case]
    options, prefix = NETS[net]
    before = initial(freeze, *options, *PLAIN)
    one, two = freeze("one", *options, *PLAIN), freeze("two", *options, *PLAIN, *strategy, TWO)
    assert start(one) == 0
    pools(2).run(two)
    assert distance(weights(two), weights(one)) <= 1e-10
    frozen = [name for name in before if name.startswith(prefix)]
    assert frozen
    for name, value in weights(two).items():
        assert torch.equal(value, before[name]) == (name in frozen), name


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [["strategy=easgd", "strategy.tau=1"], ["strategy=asgd"]],
                         ids=["easgd", "asgd"])  # fmt: skip
def test_workers_at_servers_leave_frozen_parameters_alone(freeze: Freeze, pools: Pools, strategy: list[str]) -> None:
    options, prefix = NETS["mlp"]
    before = initial(freeze, *options, *PLAIN)
    run_dir = freeze("run", *options, *PLAIN, *strategy, "strategy.execution.simulate=true", TWO)
    assert start(run_dir) == 0
    for name, value in weights(run_dir).items():
        assert torch.equal(value, before[name]) == name.startswith(prefix), name


def step_weights(run_dir: Path, step: int) -> dict[str, torch.Tensor]:
    return checkpoint_io.read(checkpoints.path_of(run_dir, step))["model"]


LATER = [*TINY, "trainer.max_epochs=3", "trainer.limit_train_batches=3", *FEW, "model.freeze=[layers.1]",
         "optimizer=adamw", "model.unfreeze_at=1", "callbacks.checkpoint.keep_last=9",
         "callbacks.checkpoint.every_n_steps=1"]  # fmt: skip
DDP = ["strategy=ddp", "strategy.find_unused_parameters=true", TWO]


@pytest.mark.parametrize(
    "strategy", [["strategy=single"], pytest.param(DDP, marks=pytest.mark.slow)], ids=["single", "ddp"]
)
def test_unfreezing_at_an_epoch_and_resuming_around_it(freeze: Freeze, pools: Pools, strategy: list[str]) -> None:
    run_dir = freeze("run", *LATER, *strategy)
    workers = pools(2) if strategy == DDP else None

    def go(folder: Path, verb: str = "train") -> None:
        if workers is not None:
            workers.run(folder, verb)
        else:
            assert start(folder, verb) == 0

    go(run_dir)
    name = "model.layers.1.weight"
    assert torch.equal(step_weights(run_dir, 1)[name], step_weights(run_dir, 3)[name])
    assert not torch.equal(
        step_weights(run_dir, 1)["model.layers.3.weight"], step_weights(run_dir, 3)["model.layers.3.weight"]
    )
    assert not torch.equal(step_weights(run_dir, 3)[name], step_weights(run_dir, 4)[name])
    whole = weights(run_dir)
    for step in (2, 3, 5) if workers is None else (3, 5):  # frozen, at the border, trained
        part = cut_back(run_dir, run_dir.parent / f"from {step}", step)
        go(part, "resume")
        assert distance(weights(part), whole) == 0.0, step


@pytest.mark.slow
def test_unfreezing_under_ddp_equals_one_worker(freeze: Freeze, pools: Pools) -> None:
    exact = [*LATER, "trainer.precision=64-true", "batch_size=48"]
    one, two = freeze("one", *exact), freeze("two", *exact, *DDP)
    assert start(one) == 0
    pools(2).run(two)
    assert distance(weights(two), weights(one)) <= 1e-9


RESNET = ["model=resnet20", "model.depth=8", "dataset.image_size=8", "trainer.max_epochs=2", "batch_size=32",
          "trainer.limit_train_batches=2", *FEW,
          "trainer.enable_progress_bar=false"]  # fmt: skip


def test_batch_normalization_of_a_frozen_part_keeps_its_statistics(freeze: Freeze) -> None:
    run_dir = freeze("run", *RESNET, "model.freeze=[stem,blocks.0]")
    assert start(run_dir) == 0
    after = weights(run_dir)
    assert torch.equal(after["model.stem.1.running_mean"], torch.zeros(16))
    assert int(after["model.blocks.0.norm1.num_batches_tracked"]) == 0
    assert not torch.equal(
        after["model.blocks.1.norm1.running_mean"], torch.zeros_like(after["model.blocks.1.norm1.running_mean"])
    )
    assert int(after["model.blocks.1.norm1.num_batches_tracked"]) == 4
    later = freeze("later", *RESNET, "model.freeze=[stem]", "model.unfreeze_at=1")
    assert start(later) == 0
    assert int(weights(later)["model.stem.1.num_batches_tracked"]) == 2


def test_ema_of_a_partly_frozen_network(freeze: Freeze) -> None:
    run_dir = freeze("run", *TINY, "model.freeze=[layers.1]", "callbacks=[default,ema]")
    assert start(run_dir) == 0
    assert "val/loss" in metrics(run_dir)


def test_everything_frozen_and_a_pattern_for_nothing_are_refused(freeze: Freeze) -> None:
    with pytest.raises(ValueError, match="leaves no parameter to train"):
        start(freeze("all", *TINY, "model.freeze=['*']"))
    run_dir = freeze("none", *TINY, "model.freeze=[layer.1]")
    with pytest.raises(ValueError, match=r"model.freeze=layer.1: matches no parameter; did you mean layers.1"):
        start(run_dir)
    assert not run_dir.exists()
