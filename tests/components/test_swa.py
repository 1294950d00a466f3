"""callbacks=swa: the mean of the weights at the ends of epochs, with statistics of BatchNorm of its own."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pool import Pool, train
from runs import HERE, TINY, Freeze, cut_back, distance, metrics, rows, weights
from tables import thinned
from torch import Tensor
from torch.optim.swa_utils import update_bn

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.base.signals import StopRequest
from leyden.trainer.compose.checks import check_classes, check_values
from leyden.trainer.config.schema import Config, load
from leyden.trainer.core.checkpoints import checkpoint_io, sharded_checkpoint
from leyden.trainer.core.torch_compat import BatchNormBase
from leyden.trainer.engine.build import assemble
from leyden.trainer.entrypoints.start import start
from leyden.trainer.runs import checkpoints

Pools = Callable[[int], Pool]
TWO = "topology.devices_per_node=2"
SHORT = [
    "optimizer=sgd", "optimizer.lr=0.05", "schedule=constant", "trainer.precision=64-true", "batch_size=30",
    "trainer.max_epochs=4", "trainer.limit_train_batches=3", "trainer.enable_progress_bar=false",
]  # fmt: skip
"""Three steps an epoch: those of the last two end with steps 9 and 12."""
SWA = ["callbacks=[default,swa]", "callbacks.swa.start=0.5", "callbacks.checkpoint.keep_last=99"]
EXAMPLES = [HERE, "model=mlp", "~model.hidden", "~model.dropout"]
NETS = {
    "resnet": ["model=resnet20", "dataset.image_size=8"],
    "head": [*EXAMPLES, "model._target_=hybrid_examples.Normed", "model.parallel.sharded=[head]",
             "dataset.image_size=8"],
    "local_net": ["dataset.image_size=16", "augment=none", "model=local_net", "model.maps=[4,3]", "model.rf=4",
                  "model.lcn=3", "model.batch_norm=true"],
}  # fmt: skip


def averaged(run_dir: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], int]:
    """Average and statistics of the last checkpoint, in the layout of one device, and the number of epochs in them."""
    path = run_dir / "checkpoints" / "last.ckpt"
    content = checkpoint_io.read(path)
    saved = content["callbacks"]["swa"]
    shards = checkpoint_io.shards_of(path, content)
    whole = sharded_checkpoint.together(saved["average"], shards, "callbacks/swa/")
    return whole, saved["statistics"], saved["epochs"]


def test_the_mean_of_the_epochs_and_a_pass_of_torchs_update_bn(freeze: Freeze) -> None:
    run_dir = freeze("run", *NETS["resnet"], *SHORT, *SWA)
    assert start(run_dir) == 0
    average, statistics, epochs = averaged(run_dir)
    ends = [checkpoint_io.read(checkpoints.path_of(run_dir, step))["model"] for step in (9, 12)]
    expected = {name: (ends[0][name] + ends[1][name]) / 2 for name in average}
    assert epochs == 2
    assert distance(average, expected) <= 1e-15
    assert distance(average, {name: ends[1][name] for name in average}) > 1e-4
    by_hand = freeze("by_hand", *NETS["resnet"], *SHORT, *SWA)
    state = assemble(load(by_hand), by_hand, StopRequest())
    state.task.load_state_dict({**ends[1], **average})
    parts = state.data.train_parts(0, 0, 3)
    images = (state.data.on_after_batch_transfer(part.batch, 0)[0].double() for part in parts)
    update_bn(images, state.task.get_submodule("model"))
    own = dict(state.task.named_buffers())
    assert statistics.keys() == own.keys()
    assert distance(statistics, own) == 0.0


def test_training_is_as_without_it(freeze: Freeze) -> None:
    options = [*NETS["head"], *SHORT, "augment=crop_flip", "trainer.log_every_n_steps=1"]
    plain, swa = freeze("plain", *options), freeze("swa", *options, *SWA)
    assert start(plain) == start(swa) == 0
    assert distance(weights(swa), weights(plain)) == 0.0
    for name in ("train/loss", "train/acc"):
        assert [row.get(name) for row in rows(swa)] == [row.get(name) for row in rows(plain)]
    validated = [[float(row["val/loss"]) for row in rows(run) if row.get("val/loss")] for run in (plain, swa)]
    assert validated[0][:2] == validated[1][:2]
    assert validated[0][2] != validated[1][2], "the weights of one epoch, with statistics of their own"


def test_resumed_exactly_evaluated_and_independent_of_validation(
    freeze: Freeze, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*NETS["head"], *SHORT, *SWA]
    whole, seldom = freeze("whole", *options), freeze("seldom", *options, "trainer.check_val_every_n_epoch=4")
    assert start(whole) == start(seldom) == 0
    resumed = cut_back(whole, tmp_path / "resumed", 9)
    assert start(resumed, "resume") == 0
    for run_dir in (resumed, seldom):
        for found, expected in zip(averaged(run_dir)[:2], averaged(whole)[:2], strict=True):
            assert distance(found, expected) == 0.0
        assert averaged(run_dir)[2] == 2
        for name in ("val/loss", "test/loss"):
            assert metrics(run_dir)[name] == metrics(whole)[name]
    capsys.readouterr()
    assert start(whole, "eval") == 0
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("val/"))
    assert float(printed["val/loss"]) == pytest.approx(metrics(whole)["val/loss"], rel=1e-5)


def test_frozen_statistics_are_left_out_and_nothing_changes(freeze: Freeze) -> None:
    run_dir = freeze("run", *NETS["resnet"], *SHORT)
    state = assemble(load(run_dir), run_dir, StopRequest())
    norms = {name: module for name, module in state.task.named_modules() if isinstance(module, BatchNormBase)}
    frozen = next(iter(norms))
    for parameter in norms[frozen].parameters():
        parameter.requires_grad_(False)
    before = {name: value.clone() for name, value in state.task.state_dict().items()}
    first, again = state.batchnorm_statistics(), state.batchnorm_statistics()
    assert {name.rpartition(".")[0] for name in first} == norms.keys() - {frozen}
    assert distance(first, again) == 0.0
    assert distance(state.task.state_dict(), before) == 0.0
    assert {norm.momentum for norm in norms.values()} == {0.1}


UNDER = {
    "ddp": ("resnet", ["strategy=ddp", TWO]),
    "butterfly, lazy": ("resnet", ["strategy=butterfly", TWO]),
    "fsdp": ("head", ["strategy=fsdp", "strategy.min_parameters=300", TWO]),
    "fsdp, resnet": ("resnet", ["strategy=fsdp", "strategy.min_parameters=30000", TWO]),
    "hybrid": ("head", ["strategy=hybrid", TWO]),
    "hybrid, scheme b": ("head", ["strategy=hybrid", "strategy.scheme=b", TWO]),
    "spatial": ("local_net", ["strategy=spatial", "strategy.grid=[1,2]", TWO]),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", thinned(UNDER, in_ci=["fsdp"]))
def test_two_workers_equal_one_under(freeze: Freeze, pools: Pools, case: str) -> None:
    net, strategy = UNDER[case]
    options = [*NETS[net], *SHORT, *SWA, "trainer.sync_batchnorm=true"]
    one, two = freeze("one", *options), freeze("two", *options, *strategy)
    train(pools, one)
    train(pools, two)
    for found, expected in zip(averaged(two)[:2], averaged(one)[:2], strict=True):
        assert distance(found, expected) <= 1e-9
    for name in ("val/loss", "test/loss"):
        assert metrics(two)[name] == pytest.approx(metrics(one)[name], rel=1e-8), name


@pytest.mark.slow
def test_statistics_are_of_all_workers_whatever_the_training_takes(freeze: Freeze, pools: Pools) -> None:
    options = [*NETS["head"], *SHORT, *SWA, "optimizer.lr=1e-30", "optimizer.weight_decay=0.0"]
    one, two = freeze("one", *options), freeze("two", *options, "strategy=ddp", TWO)
    train(pools, one)
    train(pools, two)
    assert distance(averaged(two)[1], averaged(one)[1]) <= 1e-10
    assert distance(weights(two), weights(one)) > 1e-3, "statistics that the training has kept"


def check_all(config: Config) -> None:
    check_values(config)
    check_classes(config)


REFUSED: list[tuple[list[str], list[str]]] = [
    (["callbacks.swa.start=1.0"], ["callbacks.swa.start = 1.0", "less than 1.0", "callbacks.swa.start=0.75"]),
    (["callbacks.swa.start=-1"], ["callbacks.swa.start = -1", "counted from 0"]),
    (["callbacks.swa.start=late"], ["callbacks.swa.start = late", "must be"]),
    (["callbacks.swa.start=2"], ["callbacks.swa.start = 2", "leaves no epoch", "trainer.max_epochs=2"]),
    (["strategy=easgd", TWO], ["worker of EASGD has its own", "strategy=ddp"]),
    (["strategy=asgd", TWO], ["worker of ASGD has its own", "callbacks=[default,ema]"]),
    (["strategy=local_sgd", TWO], ["worker of LocalSGD has its own"]),
    (["callbacks=[default,swa,ema]"], ["callbacks.ema are two averages", "~callbacks.ema"]),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=lambda value: str(value[0]))
def test_refused_before_anything_starts(freeze: Freeze, options: list[str], words: list[str]) -> None:
    config = load(freeze("run", *TINY, "callbacks=[default,swa]", *options))
    with pytest.raises(ConfigError) as error:
        check_all(config)
    text = " ".join(error.value.render().split())
    assert [word for word in words if word not in text] == []


def test_nothing_was_averaged_is_said(freeze: Freeze, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = freeze("run", *TINY, "callbacks=[default,swa]", "callbacks.swa.start=1", "trainer.max_steps=3")
    assert start(run_dir) == 0
    assert "nothing was averaged" in "".join(capsys.readouterr())
