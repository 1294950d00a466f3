"""What an object of each config group has to be: its class is checked before anything is called, the rest when built.

Bases are found by name and package, without importing them: a class that derives from torch's has imported torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...base.errors import Problem
from ..lightning.base_classes import derives_from, is_data_module_class, lightning_base


def _torch_class(name: str, package: str) -> Callable[[type], bool]:
    return lambda cls: derives_from(cls, {name: f"{package}."})


def _lightning_class(name: str) -> Callable[[type], bool]:
    return lambda cls: lightning_base(cls, name) is not None


def _is_dataset(cls: type) -> bool:
    return is_data_module_class(cls) or (hasattr(cls, "__len__") and hasattr(cls, "__getitem__"))


def _is_augmentation(cls: type) -> bool:
    # hasattr would find the __call__ of every class's own class
    methods = ("__call__", "views", "augment_batch")
    return any(name in vars(base) for base in cls.__mro__ for name in methods)


def _is_callback(cls: type) -> bool:
    hooks = any(name.startswith("on_") or name in ("evaluated", "validate_config") for name in dir(cls))
    return hooks or _lightning_class("Callback")(cls)


@dataclass(frozen=True)
class GroupType:
    """The type of a config group's objects.

    Args:
        text: a clause of a message.
        has: whether a class is of the type.
        attributes: what an object has to have besides, unless it is of Lightning's classes.
    """

    text: str
    has: Callable[[type], bool]
    attributes: tuple[str, ...] = ()


TYPES = {
    "dataset": GroupType(
        "a dataset has __len__, __getitem__, classes, image_shape and splits, or is a LightningDataModule",
        _is_dataset, ("classes", "image_shape", "splits")),
    "augment": GroupType(
        "an augmentation has __call__(image, key), or views(size, key) or augment_batch(images, labels, draws) or both",
        _is_augmentation),
    "model": GroupType("a network is a torch.nn.Module", _torch_class("Module", "torch.nn")),
    "task": GroupType("a task is a LightningModule", _lightning_class("LightningModule")),
    "strategy": GroupType("a strategy is a Strategy of lightning.fabric", _lightning_class("Strategy")),
    "optimizer": GroupType("an optimizer is a torch.optim.Optimizer", _torch_class("Optimizer", "torch.optim")),
    "schedule": GroupType(
        "a schedule is a torch.optim.lr_scheduler.LRScheduler", _torch_class("LRScheduler", "torch.optim")),
    "callbacks": GroupType("a callback has hooks of Leyden's (on_...), or is Lightning's Callback", _is_callback),
    "logger": GroupType("a logger is a Logger of lightning", _lightning_class("Logger")),
}  # fmt: skip
"""Types of what may be built, by config group."""


def wrong_class(key: str, target: str, found: Any) -> Problem | None:
    """The problem of a class, or a function of a library, that cannot make an object of its group.

    Args:
        key: of the node: model, logger.csv. Arguments that are nodes themselves (model.norm) have no group.
        found: what the node names.
    """
    group = _group_of(key)
    if group is None:
        return None
    if not isinstance(found, type):
        package = target.partition(".")[0]
        text = f"is a function of {package}, which makes nothing of this group; {group.text}"
        return Problem(f"{key}._target_", text, target) if package in ("leyden", "numpy", "torch") else None
    text = f"is a class of another kind; {group.text}"
    return None if group.has(found) else Problem(f"{key}._target_", text, target)


def wrong_object(key: str, target: str, built: Any) -> Problem | None:
    """The problem of an object that a node has made, if it is none of its group: a function may make anything."""
    group = _group_of(key)
    if group is None:
        return None
    name, cls = target.rpartition(".")[2], type(built)
    if not group.has(cls):
        return Problem(key, f"gives a {cls.__name__}, and {group.text}", name, executed=True)
    lacking = [] if is_data_module_class(cls) else [each for each in group.attributes if not hasattr(built, each)]
    text = f"gives a {cls.__name__} without {', '.join(lacking)}; {group.text}"
    return Problem(key, text, name, executed=True) if lacking else None


def _group_of(key: str) -> GroupType | None:
    group, _, name = key.partition(".")
    is_group_node = not name or (group in ("callbacks", "logger") and "." not in name)
    return TYPES.get(group) if is_group_node else None
