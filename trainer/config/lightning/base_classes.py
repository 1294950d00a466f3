"""Base classes of `lightning` and of `pytorch_lightning`: the same code, installed under two import paths.

A class of one package is not a subclass of the other's, so bases are found by name and package, without importing
either.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule


PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def of_lightning(cls: type) -> bool:
    """Whether a class is Lightning's own, of either package."""
    return cls.__module__.startswith(tuple(f"{package}." for package in (*PACKAGES, "lightning", "lightning_fabric")))


def derives_from(cls: type, bases: Mapping[str, str | tuple[str, ...]]) -> bool:
    """Whether one of some classes is among a class's bases.

    Args:
        bases: their names, with how the paths of their modules begin.
    """
    return any(f"{base.__module__}.".startswith(bases.get(base.__name__, "-")) for base in cls.__mro__)


def lightning_base(cls: type, name: str) -> type | None:
    """The LightningModule or LightningDataModule (`name`) that a class derives from, or None."""
    return next((base for base in cls.__mro__ if base.__name__ == name and of_lightning(base)), None)


def is_module_class(cls: Any) -> TypeGuard[type]:
    """Whether a class is a LightningModule of either package."""
    return isinstance(cls, type) and lightning_base(cls, "LightningModule") is not None


def is_data_module_class(cls: Any) -> TypeGuard[type]:
    """Whether a class is a LightningDataModule of either package."""
    return isinstance(cls, type) and lightning_base(cls, "LightningDataModule") is not None


def is_lightning_module(value: Any) -> "TypeGuard[LightningModule]":
    """Whether an object is a LightningModule of either package."""
    return is_module_class(type(value))


def overrides(module: Any, hook: str) -> bool:
    """Whether the class of a LightningModule or LightningDataModule defines a hook itself."""
    return class_overrides(type(module), hook)


def class_overrides(cls: type, hook: str) -> bool:
    """Whether a class defines a hook itself; a hook unknown to Lightning's base counts if the class has it."""
    base = lightning_base(cls, "LightningModule") or lightning_base(cls, "LightningDataModule")
    return getattr(cls, hook, None) is not getattr(base, hook, None)
