"""strategy=fsdp and hsdp: equal to one worker, whole in checkpoints, divided in memory, counted to the byte."""

import json
import shutil
from collections.abc import Callable
from itertools import product
from math import ceil, prod
from pathlib import Path
from typing import Any

import pytest
import torch
from fsdp_examples import Holdings
from pool import Pool, train
from runs import HERE, POINTS, TINY, Freeze, apart, cut_back, distance, metrics, summary, task
from tables import thinned
from torch import nn

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.compose.checks import check_classes
from leyden.trainer.config.schema import load
from leyden.trainer.core.checkpoints import checkpoint_io
from leyden.trainer.entrypoints.start import start
from leyden.trainer.strategies.fsdp.strategy import FSDP
from leyden.trainer.strategies.fsdp.wrap_policy import units

Pools = Callable[[int], Pool]
FEW = ["trainer.limit_val_batches=2", "trainer.limit_test_batches=1"]
EXACT = ["trainer.precision=64-true", "trainer.max_steps=5", "batch_size=48", *FEW]
NET = ["model=mlp", "model.hidden=[30,22]", "dataset.image_size=8"]
"""Four workers divide neither 30 nor 22 nor 10 rows."""
UNITS = "strategy.min_parameters=500"
"""The first two layers are units, the third is the root's."""
SHAPES = [[(30, 64), (30,)], [(22, 30), (22,)], [(10, 22), (10,)]]
"""Of NET's parameters, unit by unit."""
FSDP2 = ["strategy=fsdp", UNITS, "topology.devices_per_node=2"]
FSDP4 = ["strategy=fsdp", UNITS, "topology.devices_per_node=4"]
HSDP = ["strategy=hsdp", UNITS, "topology.nodes=2", "topology.devices_per_node=2"]
CAMPAIGN = pytest.mark.campaign


def noting(tmp_path: Path) -> list[str]:
    folder = tmp_path / "held"
    folder.mkdir(exist_ok=True)
    example = f"{Holdings.__module__}.{Holdings.__name__}"
    return [f"+callbacks.held._target_={example}", f"+callbacks.held.folder={folder}",
            HERE]  # fmt: skip


def noted(tmp_path: Path, rank: int) -> dict[str, Any]:
    return json.loads((tmp_path / "held" / f"{rank}.json").read_text())


MODELS = {
    "lenet5": (["model=lenet5", "dataset.image_size=16"], 2000, "32-true", 1e-5),
    "mlp-dropout": ([*NET, "model.dropout=0.4"], 500, "64-true", 1e-10),
    "resnet20-group": (
        ["model=resnet20", "model.depth=8", "model.norm=group", "dataset.image_size=8", *FEW],
        4000,
        "64-true",
        1e-10,
    ),
}
STRATEGIES = {"fsdp-2": FSDP2, "fsdp-4": FSDP4, "hsdp": HSDP}
TRAINED = [("resnet20-group", "fsdp-2"), ("mlp-dropout", "fsdp-4")]


@pytest.mark.slow
@pytest.mark.parametrize(("model_name", "strategy_name"), thinned(product(MODELS, STRATEGIES), in_ci=TRAINED))
def test_divided_parameters_train_as_whole_ones(
    freeze: Freeze, pools: Pools, tmp_path: Path, model_name: str, strategy_name: str
) -> None:
    model, least, precision, tolerance = MODELS[model_name]
    strategy = STRATEGIES[strategy_name]
    options = [*model, f"trainer.precision={precision}", "trainer.max_steps=5", "batch_size=46"]
    one = freeze("one", *options)
    several = freeze("several", *options, *strategy, f"strategy.min_parameters={least}", *noting(tmp_path))
    assert start(one) == 0
    output = pools(2 if strategy is FSDP2 else 4).run(several)
    assert "Warning" not in output
    assert noted(tmp_path, 0)["units"] > 2
    assert apart(several, one) <= tolerance
    for name, value in metrics(one).items():
        if name.startswith(("val/", "test/", "train/")):
            assert metrics(several)[name] == pytest.approx(value, rel=1e-4 if precision == "32-true" else 1e-9), name


@pytest.mark.slow
def test_operations_in_place_keep_their_gradients(freeze: Freeze, pools: Pools) -> None:
    options = ["model=mlp", "~model.hidden", "~model.dropout", "model._target_=fsdp_examples.InPlace",
               "dataset.image_size=8", HERE, *EXACT]  # fmt: skip
    one, two = freeze("one", *options), freeze("two", *options, *FSDP2)
    start(one)
    output = pools(2).run(two)
    assert "Warning" not in output
    assert apart(two, one) <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [pytest.param(FSDP4, id="fsdp"), pytest.param(HSDP, id="hsdp", marks=CAMPAIGN)],
)
def test_a_worker_without_a_sample_takes_part(freeze: Freeze, pools: Pools, strategy: list[str]) -> None:
    # 1231 = 6 * 205 + 1 for training and 206 = 205 + 1 for validation, over four workers
    options = [*NET, "trainer.precision=64-true", "trainer.max_epochs=1", "batch_size=205",
               "dataset.val_fraction=0.1434"]  # fmt: skip
    one, four = freeze("one", *options), freeze("four", *options, *strategy)
    start(one)
    pools(4).run(four)
    assert summary(four)["samples"] == summary(one)["samples"] == 1231
    assert apart(four, one) <= 1e-10
    for name in ("val/acc", "val/loss", "test/loss", "train/acc"):
        assert metrics(four)[name] == pytest.approx(metrics(one)[name], rel=1e-9), name


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["1.0", "1"])
def test_loaders_of_unequal_length_are_evaluated_to_their_end(freeze: Freeze, pools: Pools, limit: str) -> None:
    # 21 samples in batches of five: three batches for the first worker, two for the second
    options = [*POINTS, task("Plain"), "+dataset.val_samples=21", f"trainer.limit_val_batches={limit}"]
    one = freeze("one", *options, "trainer.limit_val_batches=1.0")
    two = freeze("two", *options, "strategy=fsdp", "strategy.min_parameters=20", "topology.devices_per_node=2")
    start(one)
    pools(2).run(two)
    assert metrics(two)["test_loss"] == pytest.approx(metrics(one)["test_loss"], rel=1e-4)
    if limit == "1.0":
        assert metrics(two)["val_loss"] == pytest.approx(metrics(one)["val_loss"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "sharded"),
    [
        pytest.param(FSDP2, True, id="fsdp-sharded"),
        pytest.param(HSDP, False, id="hsdp-whole"),
        pytest.param(FSDP2, False, id="fsdp-whole", marks=CAMPAIGN),
        pytest.param(HSDP, True, id="hsdp-sharded", marks=CAMPAIGN),
    ],
)
def test_accumulated_parts_are_one_batch(freeze: Freeze, pools: Pools, strategy: list[str], sharded: bool) -> None:
    options = [*NET, *EXACT]
    one = freeze("one", *options)
    several = freeze("several", *options, *strategy, "trainer.accumulate_grad_batches=3",
                     f"strategy.accumulate_sharded={sharded}")  # fmt: skip
    start(one)
    pools(2 if strategy is FSDP2 else 4).run(several)
    assert apart(several, one) <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "algorithm", "value"),
    [
        pytest.param(FSDP2, "norm", 0.3, id="fsdp-norm"),
        pytest.param(FSDP2, "value", 0.01, id="fsdp-value", marks=CAMPAIGN),
        pytest.param(HSDP, "norm", 0.3, id="hsdp-norm", marks=CAMPAIGN),
        pytest.param(HSDP, "value", 0.01, id="hsdp-value"),
    ],
)
def test_clipping_looks_at_all_rows(
    freeze: Freeze, pools: Pools, strategy: list[str], algorithm: str, value: float
) -> None:
    options = [*NET, *EXACT, "optimizer.lr=0.1"]
    clip = [f"trainer.gradient_clip_val={value}", f"trainer.gradient_clip_algorithm={algorithm}"]
    one, free = freeze("one", *options, *clip), freeze("free", *options)
    several = freeze("several", *options, *strategy, *clip)
    start(one)
    start(free)
    pools(2 if strategy is FSDP2 else 4).run(several)
    assert apart(several, one) <= 1e-10
    assert apart(free, one) > 1e-3


BATCHNORM = ["model=resnet20", "model.depth=8", "dataset.image_size=8", "trainer.precision=64-true", *FEW,
             "trainer.max_steps=3", "batch_size=30", "trainer.max_epochs=1"]  # fmt: skip
RESNET = ["strategy=fsdp", "strategy.min_parameters=30000", "topology.devices_per_node=2"]


@pytest.mark.slow
def test_batch_normalization_over_all_workers_equals_one(freeze: Freeze, pools: Pools) -> None:
    options = [*BATCHNORM, "trainer.sync_batchnorm=true"]
    one, two = freeze("one", *options), freeze("two", *options, *RESNET)
    start(one)
    pools(2).run(two)
    assert apart(two, one) <= 1e-9


@pytest.mark.slow
def test_statistics_are_the_first_workers_as_under_ddp(freeze: Freeze, pools: Pools) -> None:
    ddp = freeze("ddp", *BATCHNORM, "strategy=ddp", "topology.devices_per_node=2")
    fsdp = freeze("fsdp", *BATCHNORM, *RESNET)
    pools(2).run(ddp)
    pools(2).run(fsdp)
    assert apart(fsdp, ddp) <= 1e-9
    assert metrics(fsdp)["val/loss"] == pytest.approx(metrics(ddp)["val/loss"], rel=1e-9)


RESUMED = {"single": [], "ddp": ["strategy=ddp", "topology.devices_per_node=2"], "fsdp-2": FSDP2, "fsdp-4": FSDP4,
           "hsdp": HSDP}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then", "optimizer"),
    [
        ("fsdp-2", "hsdp", "adamw"),
        ("ddp", "fsdp-2", "adamw"),
        pytest.param("fsdp-4", "single", "sgd", marks=CAMPAIGN),
        pytest.param("fsdp-4", "fsdp-2", "adamw", marks=CAMPAIGN),
        pytest.param("fsdp-4", "fsdp-4", "sgd", marks=CAMPAIGN),
        pytest.param("fsdp-4", "single", "adamw", marks=CAMPAIGN),
        pytest.param("single", "fsdp-4", "adamw", marks=CAMPAIGN),
        pytest.param("hsdp", "fsdp-4", "sgd", marks=CAMPAIGN),
        pytest.param("fsdp-2", "ddp", "sgd", marks=CAMPAIGN),
    ],
)
def test_a_run_goes_on_under_another_strategy(
    freeze: Freeze, pools: Pools, tmp_path: Path, first: str, then: str, optimizer: str
) -> None:
    options = [*NET, "trainer.precision=64-true", "trainer.max_epochs=1", "batch_size=200", f"optimizer={optimizer}",
               "callbacks.checkpoint.every_n_steps=1", "callbacks.checkpoint.keep_last=100"]  # fmt: skip
    whole = freeze("whole", *options)
    start(whole)
    run_dir = freeze("first", *options, *RESUMED[first])
    train(pools, run_dir)
    resumed = cut_back(run_dir, tmp_path / "resumed", 3)
    shutil.copy(freeze("then", *options, *RESUMED[then]) / "config.yaml", resumed / "config.yaml")
    assert "step 3" in train(pools, resumed, "resume")
    assert summary(resumed)["resumed_from_step"] == 3
    assert apart(resumed, whole) <= 1e-10
    assert metrics(resumed)["train/loss"] == pytest.approx(metrics(whole)["train/loss"], rel=1e-9)


@pytest.mark.slow
def test_a_checkpoint_has_the_layout_of_one_device(freeze: Freeze, pools: Pools) -> None:
    options = [*NET, *EXACT, "optimizer=adamw"]
    one, four = freeze("one", *options), freeze("four", *options, *FSDP4)
    start(one)
    pools(4).run(four)
    expected, found = (checkpoint_io.read(d / "checkpoints" / "last.ckpt") for d in (one, four))
    assert {type(value) for value in found["model"].values()} == {torch.Tensor}
    assert found["optimizer"]["param_groups"] == expected["optimizer"]["param_groups"]
    assert found["optimizer"]["state"].keys() == expected["optimizer"]["state"].keys() == set(range(6))
    for number, kept in expected["optimizer"]["state"].items():
        assert distance(found["optimizer"]["state"][number], kept) <= 1e-10
    assert not list((four / "checkpoints").glob("*shard*"))


@pytest.mark.slow
def test_training_starts_from_given_weights(freeze: Freeze, pools: Pools) -> None:
    options = [*NET, *EXACT]
    before = freeze("before", *options, "seed=7", "model.hidden=[30,22]")
    start(before)
    begun = [f"init_from={before}", "seed=1"]
    one, two = freeze("one", *options, *begun), freeze("two", *options, *begun, *FSDP2)
    start(one)
    assert "6 of 6 tensors" in pools(2).run(two)
    assert apart(two, one) <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [pytest.param(FSDP4, id="fsdp"), pytest.param(HSDP, id="hsdp", marks=CAMPAIGN)])
def test_a_worker_holds_its_part_alone(freeze: Freeze, pools: Pools, tmp_path: Path, strategy: list[str]) -> None:
    shards = 4 if strategy is FSDP4 else 2
    run_dir = freeze("run", *NET, *EXACT, "optimizer=adamw", *strategy, *noting(tmp_path))
    pools(4).run(run_dir)
    shapes = [shape for unit in SHAPES for shape in unit]
    most = 8 * sum(padded(shape, shards) for shape in shapes) / shards
    for rank in range(4):
        held = noted(tmp_path, rank)
        assert held["parameters"] == most, "the last of four has 6 of 30 rows, and keeps room for 8 as the others"
        own = sum(rows(shape[0], shards, rank % shards) * prod(shape[1:]) for shape in shapes)
        assert held["optimizer"] == 2 * 8 * own, "two moments"
    assert most <= 1.1 * 8 * sum(prod(shape) for shape in shapes) / shards


def rows(whole: int, shards: int, index: int) -> int:
    each = ceil(whole / shards)
    return max(0, min(each, whole - index * each))


def padded(shape: tuple[int, ...], shards: int) -> int:
    return ceil(shape[0] / shards) * shards * prod(shape[1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "kept", "parts"),
    [
        pytest.param(FSDP2, False, 1, id="fsdp-2", marks=CAMPAIGN),
        pytest.param(FSDP2, True, 3, id="kept, accumulated"),
        pytest.param(FSDP2, True, 1, id="kept", marks=CAMPAIGN),
        pytest.param(FSDP2, False, 3, id="accumulated", marks=CAMPAIGN),
        pytest.param(HSDP, False, 1, id="hsdp", marks=CAMPAIGN),
        pytest.param([*FSDP4, "topology.nodes=2", "topology.devices_per_node=2"], False, 1, id="fsdp-2x2"),
        pytest.param(FSDP4, False, 1, id="fsdp-4", marks=CAMPAIGN),
        pytest.param(FSDP4, True, 1, id="kept-4", marks=CAMPAIGN),
        pytest.param(FSDP4, False, 3, id="accumulated-4", marks=CAMPAIGN),
        pytest.param(HSDP, True, 2, id="hsdp-kept-accumulated", marks=CAMPAIGN),
    ],
)
def test_the_ledger_counts_what_the_formula_says(
    freeze: Freeze, pools: Pools, tmp_path: Path, strategy: list[str], kept: bool, parts: int
) -> None:
    options = [*NET, *EXACT, *strategy, f"strategy.reshard_after_forward={not kept}", "trainer.max_epochs=1",
               f"trainer.accumulate_grad_batches={parts}", "trainer.log_every_n_steps=1",
               "trainer.limit_val_batches=0", "trainer.limit_test_batches=0"]  # fmt: skip
    run_dir = freeze("run", *options, *noting(tmp_path))
    workers = load(run_dir).topology.workers
    pools(workers).run(run_dir)
    replicated, nodes = strategy is HSDP, load(run_dir).topology.nodes
    shards = 2 if replicated else workers
    of_unit = [8 * sum(padded(shape, shards) for shape in unit) for unit in SHAPES]
    gathered = sum(of_unit) + (0 if kept else sum(of_unit[:-1]))
    inside = (shards - 1) / shards * (parts * gathered + 2 * sum(of_unit))  # gloo's reduce_scatter is an all-reduce
    between = 2 * (nodes - 1) / nodes * sum(of_unit) / shards if replicated else 0.0
    sent = summary(run_dir)["communication"]
    assert sent["bytes_a_step_and_worker"] == pytest.approx(inside + between, rel=1e-12)
    leaving = between if replicated else inside * nodes / workers if nodes > 1 else 0.0
    assert sent["inter_node_bytes_a_step_and_worker"] == pytest.approx(leaving, rel=1e-12)
    said = noted(tmp_path, 0)["traffic"]
    again = (parts - 1) * (shards - 1) / shards * gathered
    assert sum(t["bytes"] for t in said) + again == pytest.approx(inside + between, rel=1e-12)
    if parts == 1:
        assert sum(t["inter_node_bytes"] for t in said) == pytest.approx(leaving, rel=1e-12)
        assert sum(t["messages"] for t in said) * 5 == noted(tmp_path, 0)["messages"]
    assert noted(tmp_path, 0)["exposed_seconds"] > 0


@pytest.mark.slow
def test_what_evaluation_gathers_is_gathered_anew_for_training(freeze: Freeze, pools: Pools) -> None:
    # without callbacks: a checkpoint would divide the parameters again as well
    options = [*NET, *FEW, "batch_size=400", "callbacks=none", *FSDP2]
    one = freeze("one", *options, "trainer.max_epochs=1", "trainer.limit_train_batches=2")
    three = freeze("three", *options, "trainer.max_epochs=3", "trainer.limit_train_batches=2")
    pools(2).run(one)
    pools(2).run(three)
    each = "bytes_a_step_and_worker"
    assert summary(three)["communication"][each] == summary(one)["communication"][each]


@pytest.mark.slow
def test_a_finished_run_is_evaluated(freeze: Freeze, pools: Pools) -> None:
    run_dir = freeze("run", *NET, *EXACT, "trainer.limit_val_batches=1.0", *FSDP2)
    pools(2).run(run_dir)
    (line,) = [line for line in pools(2).run(run_dir, "eval").splitlines() if line.startswith("val/loss")]
    assert float(line.split()[-1]) == pytest.approx(metrics(run_dir)["val/loss"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler")
def test_a_compiled_model_trains_the_same_weights(freeze: Freeze, pools: Pools) -> None:
    options = [*NET, *EXACT, "trainer.limit_val_batches=0", "trainer.limit_test_batches=0"]
    one, two = freeze("one", *options), freeze("two", *options, *FSDP2, "trainer.compile=true")
    start(one)
    pools(2).run(two)
    assert apart(two, one) <= 1e-10


@pytest.mark.parametrize(
    ("options", "key", "remedy"),
    [
        (["strategy=fsdp"], "strategy", "strategy=single"),
        (["strategy=hsdp", "topology.devices_per_node=4"], "strategy", "strategy=fsdp"),
        (["strategy=hsdp", "topology.nodes=2"], "strategy", "strategy=fsdp"),
        ([*FSDP2, "trainer.channels_last=true"], "trainer.channels_last", "trainer.channels_last=false"),
        ([*FSDP2, "trainer.precision=16-mixed"], "trainer.precision", "trainer.precision=bf16-mixed"),
        (
            [*FSDP2, "optimizer._target_=torch.optim.Adafactor", "~optimizer.momentum", "~optimizer.nesterov"],
            "optimizer",
            "optimizer=adamw",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused_before_the_start(
    freeze: Freeze, options: list[str], key: str, remedy: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_classes(load(freeze("run", *TINY, *options)))
    (problem,) = caught.value.problems
    assert problem.key == key
    assert remedy in problem.remedy


def test_a_working_config_is_not_refused(freeze: Freeze) -> None:
    check_classes(load(freeze("fsdp", *NET, *FSDP4)))
    check_classes(load(freeze("hsdp", *NET, *HSDP)))


def test_parameters_of_several_dtypes_are_refused() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).bfloat16())
    with pytest.raises(ValueError, match="bfloat16, float32"):
        FSDP().setup_module(network)


class Attention(nn.Module):
    """Reads weights past their modules' forward, and shares one between two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)
        self.blocks = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.embedding = nn.Embedding(16, 8)
        self.readout = nn.Linear(8, 16)
        self.readout.weight = self.embedding.weight
        self.small = nn.Linear(8, 2)


def test_a_network_is_cut_from_the_inside_out() -> None:
    network = Attention()
    found = units(network, min_parameters=60)
    first, second = network.blocks
    assert list(found) == [network.attention, first, second, network]
    assert sorted(p.numel() for p in found[network]) == [2, 16, 16, 128], "what is small, and what two modules share"
    assert sum(p.numel() for own in found.values() for p in own) == sum(p.numel() for p in network.parameters())


def test_blocks_too_small_are_joined_and_the_whole_is_no_block() -> None:
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(3)]
    network = nn.Sequential(nn.Sequential(*blocks))
    assert list(units(network, min_parameters=30)) == [*blocks, network]
    assert list(units(network, min_parameters=100)) == [network], "not the inner one, which has them all"
    assert units(network, min_parameters=30)[network] == []
