"""callbacks=ema: the average is that of its formula, under every strategy, over resumption, and what is evaluated."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pool import Pool, train
from runs import NETS, TINY, Freeze, cut_back, distance, metrics, weights
from tables import thinned
from torch import Tensor

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.compose.checks import check_classes
from leyden.trainer.config.schema import load
from leyden.trainer.core.checkpoints import checkpoint_io, sharded_checkpoint
from leyden.trainer.entrypoints.start import start
from leyden.trainer.runs import checkpoints

Pools = Callable[[int], Pool]
EMA = ["callbacks=[default,ema]", "trainer.enable_progress_bar=false"]
PLAIN = ["schedule=constant", "optimizer=sgd", "optimizer.lr=0.05", "trainer.log_every_n_steps=1"]
SHORT = [*EMA, *PLAIN, "trainer.precision=64-true", "trainer.max_steps=5", "batch_size=48"]
EVERY_STEP = ["callbacks.checkpoint.every_n_steps=1", "callbacks.checkpoint.keep_last=99"]
TWO = "topology.devices_per_node=2"
UNDER = {
    "ddp": ("mlp", ["strategy=ddp", TWO]),
    "butterfly, lazy": ("mlp", ["strategy=butterfly", "strategy.bucket_cap_mb=0.01", TWO]),
    "butterfly, lazy, every second": ("mlp", ["strategy=butterfly", TWO, "callbacks.ema.update_every=2"]),
    "hybrid": ("vgg", ["strategy=hybrid", TWO]),
    "fsdp": ("mlp", ["strategy=fsdp", "strategy.min_parameters=500", TWO]),
    "spatial": ("local_net", ["strategy=spatial", "strategy.grid=[1,2]", TWO]),
    "local_sgd, averaging every step": ("mlp", ["strategy=local_sgd", "strategy.h=1", TWO]),
}


def callback_of(path: Path) -> dict[str, Any]:
    """EMA's part of a checkpoint, in the layout of one device."""
    content = checkpoint_io.read(path)
    saved = content["callbacks"]["ema"]
    whole = sharded_checkpoint.together(saved["average"], checkpoint_io.shards_of(path, content), "callbacks/ema/")
    return {"updates": saved["updates"], "average": whole}


def average(run_dir: Path) -> dict[str, Tensor]:
    return callback_of(run_dir / "checkpoints" / "last.ckpt")["average"]


def expected(run_dir: Path, initial: dict[str, Tensor], decays: list[float], every: int = 1) -> dict[str, Tensor]:
    """The formula, over the weights that a run saved after each step."""
    result = {name: value.clone() for name, value in initial.items()}
    for number, decay in enumerate(decays, start=1):
        model = checkpoint_io.read(checkpoints.path_of(run_dir, number * every))["model"]
        for name, value in result.items():
            result[name] = decay * value + (1 - decay) * model[name].to(value.dtype)
    return result


def begin(freeze: Freeze, *options: str) -> dict[str, Tensor]:
    """The weights that a training begins with."""
    options = tuple(option for option in options if not option.startswith("callbacks.ema."))
    run_dir = freeze("begin", *options, "optimizer.lr=1e-30", "trainer.max_steps=1", "callbacks=[default]")
    assert start(run_dir) == 0
    return {name: value.clone() for name, value in weights(run_dir).items()}


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("options", "decays", "every"),
    [
        ([], [1 / 10, 2 / 11, 3 / 12, 4 / 13, 5 / 14], 1),
        (["callbacks.ema.decay=0.2"], [1 / 10, 2 / 11, 0.2, 0.2, 0.2], 1),
        (["callbacks.ema.warmup=false"], [0.999] * 5, 1),
        (["callbacks.ema.update_every=2"], [1 / 10, 2 / 11], 2),
    ],
    ids=["warm-up", "decay reached", "no warm-up", "every second step"],
)
def test_the_formula(freeze: Freeze, options: list[str], decays: list[float], every: int) -> None:
    net = [*NETS["mlp"], *SHORT]
    run_dir = freeze("run", *net, *EVERY_STEP, *options)
    assert start(run_dir) == 0
    assert distance(average(run_dir), expected(run_dir, begin(freeze, *net), decays, every)) <= 1e-12
    assert callback_of(run_dir / "checkpoints" / "last.ckpt")["updates"] == len(decays)


@pytest.mark.slow
@pytest.mark.parametrize("case", thinned(UNDER, in_ci=["butterfly, lazy", "fsdp"]))
def test_equal_to_one_worker_under(freeze: Freeze, pools: Pools, case: str) -> None:
    net, strategy = UNDER[case]
    shared = [option for option in strategy if option.startswith("callbacks.")]
    options = [*NETS[net], *SHORT]
    one, two = freeze("one", *options, *shared), freeze("two", *options, *strategy)
    assert start(one) == 0
    assert "updates are applied at once" not in pools(2).run(two)
    assert distance(average(two), average(one)) <= 1e-10
    assert distance(weights(two), weights(one)) <= 1e-10
    assert distance(average(one), weights_of_parameters(one)) > 1e-6
    for name in ("val/loss", "test/loss"):
        assert metrics(two)[name] == pytest.approx(metrics(one)[name], rel=1e-9), name


def weights_of_parameters(run_dir: Path) -> dict[str, Tensor]:
    return {name: value for name, value in weights(run_dir).items() if name in average(run_dir)}


RESUMED = {
    "one worker": ("vgg", ["strategy=single"], ["strategy=single"]),
    "butterfly": ("vgg", ["strategy=butterfly", TWO], ["strategy=butterfly", TWO]),
    "fsdp to one": ("vgg", ["strategy=fsdp", "strategy.min_parameters=500", TWO], ["strategy=single"]),
    "hybrid to fsdp": ("vgg", ["strategy=hybrid", TWO], ["strategy=fsdp", "strategy.min_parameters=500", TWO]),
    "one to hybrid": ("vgg", ["strategy=single"], ["strategy=hybrid", TWO]),
    "spatial to one": ("local_net", ["strategy=spatial", "strategy.grid=[1,2]", TWO], ["strategy=single"]),
    "one to spatial": ("local_net", ["strategy=single"], ["strategy=spatial", "strategy.grid=[1,2]", TWO]),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", thinned(RESUMED, in_ci=["one worker", "hybrid to fsdp", "one to spatial"]))
def test_the_average_and_its_count_survive_a_resumption(
    freeze: Freeze, pools: Pools, tmp_path: Path, case: str
) -> None:
    net, first, then = RESUMED[case]
    options = [*NETS[net], *SHORT, *EVERY_STEP]
    whole = freeze("whole", *options, *first)
    train(pools, whole)
    resumed = cut_back(whole, tmp_path / "resumed", 3)
    shutil.copy(freeze("then", *options, *then) / "config.yaml", resumed / "config.yaml")
    train(pools, resumed, "resume")
    assert distance(average(resumed), average(whole)) <= (0.0 if first == then else 1e-10)
    assert callback_of(resumed / "checkpoints" / "last.ckpt")["updates"] == 5
    assert metrics(resumed)["val/loss"] == pytest.approx(metrics(whole)["val/loss"], rel=1e-9)


def test_eval_uses_the_average(freeze: Freeze, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = freeze("run", *NETS["mlp"], *SHORT)
    assert start(run_dir) == 0
    capsys.readouterr()
    assert start(run_dir, "eval") == 0
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("val/"))
    assert float(printed["val/loss"]) == pytest.approx(metrics(run_dir)["val/loss"], rel=1e-5)


def test_below_float32_the_average_is_kept_in_float32(freeze: Freeze) -> None:
    """A thousandth of a difference is lost in bfloat16's eight bits."""
    options = [*NETS["mlp"], *SHORT, "trainer.precision=bf16-true", "callbacks.ema.warmup=false"]
    run_dir = freeze("run", *options, *EVERY_STEP)
    assert start(run_dir) == 0
    initial = {name: value.float() for name, value in begin(freeze, *options).items()}
    assert {value.dtype for value in average(run_dir).values()} == {torch.float32}
    assert distance(average(run_dir), expected(run_dir, initial, [0.999] * 5)) <= 1e-6
    assert distance(average(run_dir), initial) > 0


# local-update strategies


@pytest.mark.slow
def test_of_the_center_under_easgd(freeze: Freeze, pools: Pools) -> None:
    options = [*NETS["mlp"], *SHORT, "strategy=easgd", "strategy.tau=2", TWO]
    live, simulated = (
        freeze("live", *options, *EVERY_STEP),
        freeze("simulated", *options, "strategy.execution.simulate=true"),
    )
    pools(2).run(live)
    assert start(simulated) == 0
    initial = begin(freeze, *NETS["mlp"], *SHORT)
    assert distance(average(live), expected(live, initial, [(1 + t) / (10 + t) for t in range(5)])) <= 1e-12
    assert distance(average(simulated), average(live)) <= 1e-12
    assert metrics(simulated)["val/loss"] == pytest.approx(metrics(live)["val/loss"], rel=1e-9)


def test_of_what_the_server_holds_under_asgd(freeze: Freeze) -> None:
    options = [*NETS["mlp"], *SHORT]
    one = freeze("one", *options)
    server = freeze("server", *options, "strategy=asgd", "strategy.execution.simulate=true")
    assert start(one) == 0
    assert start(server) == 0
    assert distance(average(server), average(one)) <= 1e-12
    assert metrics(server)["val/loss"] == pytest.approx(metrics(one)["val/loss"], rel=1e-9)


@pytest.mark.slow
def test_every_worker_evaluates_the_average_of_the_first_under_asgd(freeze: Freeze, pools: Pools) -> None:
    run_dir = freeze("run", *NETS["mlp"], *SHORT, "strategy=asgd", "strategy.execution.servers=1", TWO)
    pools(2).run(run_dir)
    # one device evaluates the same average as two did
    again = freeze("again", *NETS["mlp"], *SHORT)
    shutil.copytree(run_dir / "checkpoints", again / "checkpoints")
    assert start(again, "resume") == 0
    assert 1 <= callback_of(run_dir / "checkpoints" / "last.ckpt")["updates"] <= 5
    assert metrics(again)["test/loss"] == pytest.approx(metrics(run_dir)["test/loss"], rel=1e-9)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("callbacks.ema.decay=1.0", ["callbacks.ema.decay = 1.0", "less than 1", "callbacks.ema.decay=0.999"]),
        ("callbacks.ema.decay=-0.1", ["callbacks.ema.decay = -0.1", "at least 0"]),
        ("callbacks.ema.update_every=0", ["callbacks.ema.update_every = 0", "at least 1", "update_every=1"]),
        ("callbacks.ema.warmup=often", ["callbacks.ema.warmup = often", "must be"]),
    ],
)
def test_refused_before_anything_starts(freeze: Freeze, option: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        check_classes(load(freeze("run", *TINY, *EMA, option)))
    text = " ".join(error.value.render().split())
    assert [word for word in words if word not in text] == []
