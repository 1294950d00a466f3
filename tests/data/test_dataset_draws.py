"""What datasets and augmentations of users draw from `random`, NumPy and torch: by the sample, whoever reads it."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from runs import HERE, Freeze
from torch import Tensor

from leyden.trainer.config.schema import load
from leyden.trainer.data.datamodule import ImageData

BASE = ["dataset=synthetic", "~dataset.samples", "~dataset.classes", "~dataset.image_shape", "model=mlp",
        "model.hidden=[4]", "batch_size=8", HERE]  # fmt: skip
DATASET = ["dataset._target_=reading_examples.Draws"]
AUGMENTATION = ["dataset._target_=reading_examples.Still", "+augment._target_=reading_examples.DrawsInstead"]


def data(freeze: Freeze, name: str, *overrides: str, share: tuple[int, int] = (0, 1)) -> ImageData:
    torch.manual_seed(len(name))  # whatever was drawn before
    random.seed(len(name))
    np.random.seed(len(name))
    return ImageData(load(freeze(name, *BASE, *overrides)), share)


def images(read: ImageData, epoch: int, first_step: int = 0) -> Tensor:
    return torch.cat([part.batch[0] for part in read.train_parts(epoch, first_step)]).flatten(1)


def by_index(drawn: Tensor) -> list[list[int]]:
    return sorted(drawn.tolist())


@pytest.mark.parametrize("draws", [DATASET, AUGMENTATION], ids=["dataset", "augmentation"])
def test_draws_are_those_of_seed_epoch_and_sample(freeze: Freeze, draws: list[str]) -> None:
    alone = data(freeze, "alone", *draws)
    epochs = [images(alone, epoch) for epoch in range(3)]
    drawn = [tuple(row[1:]) for epoch in epochs for row in epoch.tolist()]
    assert len(set(drawn)) == len(drawn) == 72, "every sample draws anew in every epoch"

    processes = data(freeze, "processes", *draws, "dataset.num_workers=2")
    assert all(torch.equal(images(processes, epoch), epochs[epoch]) for epoch in range(3))
    processes.close()

    workers = [data(freeze, f"worker-{rank}", *draws, share=(rank, 2)) for rank in range(2)]
    for epoch in range(3):
        assert by_index(torch.cat([images(each, epoch) for each in workers])) == by_index(epochs[epoch])

    assert torch.equal(images(data(freeze, "resumed", *draws), 1, first_step=1), epochs[1][8:])
    assert not torch.equal(images(data(freeze, "other", *draws, "seed=1"), 0), epochs[0])


def test_evaluation_draws_the_same_in_every_epoch(freeze: Freeze) -> None:
    def evaluated(read: ImageData) -> Tensor:
        return torch.cat([batch[0] for batch, _ in read.evaluation_batches("val")]).flatten(1)

    alone = data(freeze, "alone", *DATASET)
    first = evaluated(alone)
    images(alone, 0)
    assert torch.equal(evaluated(alone), first)
    workers = [data(freeze, f"worker-{rank}", *DATASET, share=(rank, 2)) for rank in range(2)]
    assert by_index(torch.cat([evaluated(each) for each in workers])) == by_index(first)


def test_reading_leaves_the_generators_of_the_loop_alone(freeze: Freeze) -> None:
    def state() -> Any:
        _, words, *rest = np.random.get_state(legacy=True)
        return torch.get_rng_state().tolist(), random.getstate(), np.asarray(words).tolist(), rest

    read = data(freeze, "run", *DATASET)
    before = state()
    images(read, 0)
    assert state() == before


def test_what_is_kept_was_drawn_by_the_sample(freeze: Freeze) -> None:
    kept = [images(data(freeze, name, *DATASET, "dataset.cache=memory"), 0) for name in ("one", "another")]
    assert torch.equal(*kept)
