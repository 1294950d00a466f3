"""Rules of task=simclr, whose loss is one of all samples of the global batch."""

from collections.abc import Iterator

from ...base.errors import Problem
from ...config.schema import TASK_LOADERS, Config
from ...config.strategy_class import StrategyDeclarations
from ...config.targets import is_data_module

_TASK = "leyden.trainer.components.tasks.simclr.SimCLR"


def contrastive(config: Config, declared: type[StrategyDeclarations], name: str) -> Iterator[Problem]:
    """Whether the workers' batches can be compared, and whether there are two views of each image."""
    if config.task.target != _TASK:
        return
    if not declared.shares_activations:
        text = (
            "its workers do not compute one step together, each on samples of its own, as the negatives of simclr need"
        )
        yield Problem("strategy", text, name, "strategy=ddp, butterfly or fsdp")
    parts = config.trainer.accumulate_grad_batches
    if parts > 1:
        text = "a part of the batch would have the negatives of that part alone"
        yield Problem("trainer.accumulate_grad_batches", text, parts, "trainer.accumulate_grad_batches=1")
    if config.dataset.target == TASK_LOADERS or is_data_module(config.dataset.target):
        text = "its own loaders decide what is read, and augment, which makes the two views of simclr, is not used"
        yield Problem("dataset", text, config.dataset.target, "a dataset that is no LightningDataModule")
    else:
        yield from _views(config)


def _views(config: Config) -> Iterator[Problem]:
    """Views of an image, where the config says how many; the worker asks any other augmentation."""
    text = "task=simclr compares two views of each image"
    if config.augment is None:
        yield Problem("augment", text, None, "augment=simclr")
        return
    crop = config.augment.arguments.get("crop", ...)
    if crop is None:
        yield Problem("augment.crop", text, None, "augment=simclr")
    elif isinstance(crop, dict) and crop.get("views", 2) != 2:
        yield Problem("augment.crop.views", text, crop["views"], "augment.crop.views=2")
