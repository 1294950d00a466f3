"""dataset.sampling: how often each class is drawn, in whole passes over it, on all workers and after a resume."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pool import Pool
from runs import Freeze, cut_back, distance, weights

from leyden.trainer.config.schema import load
from leyden.trainer.data.datamodule import ImageData
from leyden.trainer.data.order.class_balance import EXPONENTS, ClassSampling
from leyden.trainer.data.order.sample_order import SampleOrder
from leyden.trainer.entrypoints.start import start

Pools = Callable[[int], Pool]
DARK, LIGHT = 5, 27


def draws_of(classes: torch.Tensor, exponent: float, seed: int, epoch: int = 0, shuffled: bool = True) -> torch.Tensor:
    made = SampleOrder(len(classes), 7, seed, shuffled=shuffled, sampling=ClassSampling(classes, exponent))
    return torch.cat(made.batches(epoch))


@given(classes=st.lists(st.integers(0, 5), min_size=1, max_size=120), seed=st.integers(0, 3),
       kind=st.sampled_from(sorted(EXPONENTS)))  # fmt: skip
def test_classes_are_drawn_in_proportion_and_their_samples_in_whole_passes(
    classes: list[int], seed: int, kind: str
) -> None:
    labels = torch.tensor(classes)
    draws = draws_of(labels, EXPONENTS[kind], seed)
    assert len(draws) == len(draws.unique()) == len(classes)
    drawn = Counter(labels[draws % len(classes)].tolist())
    counts = Counter(classes)
    total = sum(count ** EXPONENTS[kind] for count in counts.values())
    for each, count in counts.items():
        assert abs(drawn[each] - len(classes) * count ** EXPONENTS[kind] / total) < 1 + 1e-9
        of_samples = Counter((draws % len(classes))[labels[draws % len(classes)] == each].tolist())
        most, least = max(of_samples.values(), default=0), min(of_samples.values(), default=0)
        assert most - (least if len(of_samples) == count else 0) <= 1


def test_a_new_order_in_every_epoch_and_none_where_nothing_is_shuffled() -> None:
    labels = torch.tensor([0] * 30 + [1] * 3)
    orders = {tuple(draws_of(labels, 0.0, seed, epoch).tolist()) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4
    assert draws_of(labels, 0.0, 0, shuffled=False).tolist() == list(range(33))
    frequent = {draw for epoch in range(9) for draw in draws_of(labels, 0.0, 0, epoch).tolist() if draw < 30}
    assert len(frequent) == 30, "all samples of a frequent class have their turn"


def test_classes_are_balanced_in_each_partition() -> None:
    labels = torch.tensor([0] * 20 + [1] * 4 + [0] * 6)
    held = list(torch.arange(30).tensor_split([12]))
    order = SampleOrder(30, 50, 0, 2, held=held, sampling=ClassSampling(labels, 0.0))
    first, second = (batch % 30 for batch in order.batches(0))
    assert set(first.tolist()) == set(range(12))
    assert set(second.tolist()) <= set(range(12, 30))
    assert labels[second].sum() == 9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for number in range(DARK + LIGHT):
        place = root / "train" / ("dark" if number < DARK else "light") / f"{number:02}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(place)
    return root


def words(folder: Path) -> list[str]:
    return ["dataset=image_folder", f"dataset.root={folder}", "dataset.val_fraction=0.2",
            "dataset.image_size=8", "dataset.sampling=class_balanced", "augment=imagenet", "model=mlp",
            "model.hidden=[8]", "batch_size=8", "trainer.max_epochs=3"]  # fmt: skip


def test_what_is_drawn_again_is_augmented_otherwise(folder: Path, freeze: Freeze) -> None:
    data = ImageData(load(freeze("run", *words(folder))), (0, 1))
    images, labels = [], []
    for part in data.train_parts(0):
        batch, of_batch = data.on_after_batch_transfer(part.batch, 0)
        images += list(batch)
        labels += of_batch.tolist()
    data.close()
    samples = torch.cat(data.order.batches(0)) % data.order.samples
    again = [index for index, count in Counter(samples.tolist()).items() if count > 1]
    assert again
    assert abs(Counter(labels)[0] - Counter(labels)[1]) <= 1
    for index in again:
        first, second, *_ = [images[place] for place in (samples == index).nonzero().flatten().tolist()]
        assert not torch.equal(first, second)


def test_the_same_on_two_workers_and_after_a_resume(folder: Path, freeze: Freeze, pools: Pools) -> None:
    exact = [*words(folder), "trainer.precision=64-true", "callbacks.checkpoint.every_n_steps=1",
             "callbacks.checkpoint.keep_last=99"]  # fmt: skip
    one, two = freeze("one", *exact), freeze("two", *exact, "strategy=ddp", "topology.devices_per_node=2")
    assert start(one) == 0
    pools(2).run(two)
    assert distance(weights(two), weights(one)) <= 1e-10
    part = cut_back(one, one.parent / "part", 5)
    assert start(part, "resume") == 0
    assert distance(weights(part), weights(one)) == 0.0
