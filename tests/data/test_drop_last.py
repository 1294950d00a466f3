"""dataset.drop_last, and the BatchNorm that needs it."""

from math import ceil
from pathlib import Path

import pytest
import torch
from runs import HERE, OWN_TASK, POINTS, Freeze, metrics, summary, task
from torch import nn

from leyden.models.resnet import ResNet
from leyden.trainer.base.errors import CannotStart
from leyden.trainer.config.schema import load
from leyden.trainer.data.datamodule import ImageData
from leyden.trainer.data.order.sample_order import SampleOrder
from leyden.trainer.engine.network.single_values import refuse_single_values
from leyden.trainer.entrypoints.start import start

DEEP = [
    "model=resnet18", "dataset=synthetic", "dataset.image_shape=[3,32,32]", "dataset.samples=9", "batch_size=4",
    "dataset.val_fraction=0", "trainer.max_epochs=1",
]  # fmt: skip
"""Nine images, and a network whose last maps have one pixel."""


@pytest.mark.parametrize(("samples", "batch", "partitions"), [(9, 4, 1), (8, 4, 1), (22, 5, 3), (10, 5, 2), (3, 3, 1)])
def test_batches_are_those_of_before_without_the_smaller(samples: int, batch: int, partitions: int) -> None:
    whole, cut = (SampleOrder(samples, batch, 7, partitions, drop_last=drop) for drop in (False, True))
    for epoch in (0, 1):
        wanted = [each for each in whole.batches(epoch) if len(each) == batch]
        assert [each.tolist() for each in cut.batches(epoch)] == [each.tolist() for each in wanted]
        assert cut.ends(epoch)[-1] == cut.steps == len(wanted)
        assert whole.steps == sum(ceil(size / batch) for size in whole.sizes)
    assert cut.smallest == batch
    assert whole.smallest == min(len(each) for each in whole.batches(0))


def test_a_run_of_it_trains_whole_batches(freeze: Freeze) -> None:
    run_dir = freeze("run", "model=mlp", *DEEP[1:], "dataset.drop_last=true", "trainer.max_epochs=2")
    assert start(run_dir) == 0
    assert summary(run_dir)["steps"] == 4
    assert metrics(run_dir)["train/loss"] > 0


def test_what_leaves_no_batch_is_refused(freeze: Freeze) -> None:
    run_dir = freeze("run", "model=mlp", *DEEP[1:], "dataset.drop_last=true", "batch_size=10")
    with pytest.raises(
        CannotStart, match="leaves nothing of the training set, which has 9 samples: a smaller batch_size"
    ):
        start(run_dir)


def test_loaders_of_their_own_are_refused(freeze: Freeze) -> None:
    with pytest.raises(ValueError, match="drop_last=true: is for Leyden's datasets"):
        start(freeze("run", *POINTS, task("Plain"), "dataset.drop_last=true"))


def test_a_batch_norm_with_one_value_is_found_before_the_first_step(freeze: Freeze) -> None:
    run_dir = freeze("run", *DEEP)
    with pytest.raises(CannotStart, match=r"one image for a worker, of which stages\.3") as refused:
        start(run_dir)
    assert refused.value.problem is not None
    assert refused.value.problem.remedy == "batch_size=3, or dataset.drop_last=true"
    assert not list((run_dir / "checkpoints").glob("*.ckpt"))


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "words",
    [["dataset.drop_last=true"], ["trainer.limit_train_batches=2"], ["trainer.max_steps=2"], ["dataset.samples=8"],
     ["model.norm=group"], ["dataset.image_shape=[3,64,64]"]],
    ids=lambda words: words[0],
)  # fmt: skip
def test_what_never_comes_to_it_trains(freeze: Freeze, words: list[str]) -> None:
    assert start(freeze("run", *DEEP, *words)) == 0


@pytest.mark.parametrize(
    ("words", "share", "smallest"),
    [([], (0, 1), 1), (["dataset.samples=10"], (0, 1), 2), (["dataset.samples=10"], (0, 2), 1),
     (["dataset.samples=11"], (0, 2), 1), (["dataset.samples=12"], (0, 2), 2), (["dataset.samples=12"], (0, 8), 1),
     (["dataset.samples=12", "trainer.accumulate_grad_batches=2"], (0, 1), 2),
     (["augment=imagenet", "augment.crop.views=3"], (0, 1), 3)],
)  # fmt: skip
def test_the_smallest_batch_of_a_worker(
    freeze: Freeze, words: list[str], share: tuple[int, int], smallest: int
) -> None:
    data = ImageData(load(freeze("run", *DEEP, *words)), share)
    assert data.smallest_batch(data.config.batch_size) == smallest
    if "augment=imagenet" not in words:
        config = data.config
        workers = [ImageData(config, (rank, share[1])) for rank in range(share[1])]
        assert min(len(part.batch[1]) for worker in workers for part in worker.train_parts(0)) == smallest


def test_the_network_is_as_it_was(freeze: Freeze, tmp_path: Path) -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 3), nn.BatchNorm1d(3))
    network[1].eval()
    config = load(freeze("run", "model=mlp"))
    with pytest.raises(ValueError, match="of which 4, a BatchNorm"):
        refuse_single_values(network, (1, 3, 3), lambda size: 1, config)
    refuse_single_values(network, (1, 3, 3), lambda size: 2, config)
    refuse_single_values(network, (3, 3), lambda size: 1, config)  # does not run: said by the worker
    assert [module.training for module in network.modules()] == [True, True, False, True, True, True]
    assert not any(module._forward_pre_hooks for module in network.modules())
    norm = network[4]
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.num_batches_tracked is not None
    assert int(norm.num_batches_tracked) == 0
    assert all(torch.isfinite(parameter).all() for parameter in network.parameters())


def test_seventeen_pictures_in_batches_of_eight_are_refused_and_the_named_size_trains(freeze: Freeze) -> None:
    few = [*DEEP, "dataset.samples=17"]
    with pytest.raises(CannotStart) as refused:
        start(freeze("run", *few, "batch_size=8"))
    assert refused.value.problem is not None
    assert refused.value.problem.remedy.startswith("batch_size=7, or")
    assert start(freeze("again", *few, "batch_size=7")) == 0


@pytest.mark.parametrize(
    ("samples", "workers", "parts", "nearest"),
    # pictures, workers, parts of a batch that are forwarded one after the other (hybrid's scheme c): 8 a batch
    [(17, 1, 1, 7), (18, 2, 1, 6), (18, 2, 2, None), (20, 4, 1, 12), (3, 3, 1, None), (19, 1, 2, 10)],
)
def test_eighteen_on_two_workers_are_told_the_nearest_size_that_works(
    freeze: Freeze, samples: int, workers: int, parts: int, nearest: int | None
) -> None:
    config = load(freeze("run", *DEEP, f"dataset.samples={samples}", "batch_size=8"))
    data = ImageData(config, (0, workers), parts)
    network = nn.Sequential(nn.Conv2d(3, 2, 32), nn.BatchNorm2d(2))
    with pytest.raises(CannotStart) as refused:
        refuse_single_values(network, data.image_shape, data.smallest_batch, config, workers * parts)
    assert refused.value.problem is not None
    remedies = refused.value.problem.remedy.split(", or ")
    assert remedies == [*([] if nearest is None else [f"batch_size={nearest}"]), "dataset.drop_last=true"]
    sizes = [len(part.batch[1]) for rank in range(workers)
             for part in ImageData(config.model_copy(update={"batch_size": nearest or 8}), (rank, workers), parts)
             .train_parts(0)]  # fmt: skip
    assert (min(sizes) > 1) == (nearest is not None)


def test_the_same_pictures_at_224_pixels_have_enough_values(freeze: Freeze) -> None:
    config = load(freeze("run", *DEEP))
    network = ResNet(3, (3, 224, 224), 18)
    refuse_single_values(network, (3, 224, 224), lambda size: 1, config)
    with pytest.raises(CannotStart):
        refuse_single_values(network, (3, 32, 32), lambda size: 1, config)


def test_a_users_own_module_is_tried_too(freeze: Freeze) -> None:
    own = ["~model", *OWN_TASK, HERE, task("NormedPictures"), *DEEP[1:], "dataset.image_shape=[3,8,8]"]
    with pytest.raises(CannotStart, match=r"of which net\.2, a BatchNorm, would get one value"):
        start(freeze("run", *own))
    assert start(freeze("again", *own, "batch_size=3")) == 0


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["batch_size=47"], "batch_size=46"),
        (["+dataset.batch_size=47"], "drop_last=True in the DataLoader of Points.train_dataloader"),
        (["batch_size=47", "trainer.limit_train_batches=1"], None),
        (["batch_size=46"], None),
        (["dataset._target_=lightning_examples.PointsInAList"], None),
        (["+dataset.stream=true", "trainer.limit_train_batches=6"], None),
    ],
    ids=["the config's", "its own", "not reached", "two samples", "no DataLoader", "stream"],
)
def test_a_data_module_whose_last_batch_has_one_sample_is_refused(
    freeze: Freeze, words: list[str], remedy: str | None
) -> None:
    """48 samples."""
    run_dir = freeze("run", *POINTS, task("Normalized"), "trainer.max_epochs=1", *words)
    if remedy is None:
        assert start(run_dir) == 0
        return
    with pytest.raises(CannotStart, match=r"one image for a worker, of which net\.1, a BatchNorm") as refused:
        start(run_dir)
    assert refused.value.problem is not None
    assert refused.value.problem.remedy == remedy
