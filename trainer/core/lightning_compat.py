# pyright: reportPrivateUsage=false
"""Private names of Lightning, read in lightning 2.6.6: uses of Fabric and LightningModule beyond their public API.

tests/integration/test_compat.py checks these names.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import MixedPrecision, Precision
from lightning.fabric.strategies.strategy import Strategy
from lightning.fabric.strategies.strategy import _BackwardSyncControl as BackwardSyncControl
from lightning.fabric.utilities.data import _update_dataloader
from lightning.fabric.utilities.rank_zero import _get_rank, rank_zero_only
from lightning.fabric.wrappers import _FabricModule
from lightning.pytorch import LightningModule
from torch.utils.data import DataLoader

__all__ = [
    "READ_IN",
    "BackwardSyncControl",
    "autocast_dtype",
    "can_skip_sync",
    "forward_module",
    "input_conversion",
    "precision_of",
    "set_device_and_dtype",
    "with_sampler",
    "without_fabric",
]

READ_IN = "2.6.6"


def forward_module(module: _FabricModule) -> Callable[..., Any]:
    """The strategy's wrapper inside Fabric's; calling it leaves out Fabric's conversion of inputs and outputs."""
    return module._forward_module


def input_conversion(precision: Precision) -> Callable[[Any], Any] | None:
    """The conversion of a step's inputs to a precision; None: they stay as they are.

    Mixed precision leaves the batch alone, as under Lightning's Trainer; Fabric would round float labels as well.
    """
    # the base class is the precision of float32, which converts nothing
    unchanged = isinstance(precision, MixedPrecision) or type(precision) is Precision
    return None if unchanged else precision.convert_input


def precision_of(fabric: Fabric) -> Precision:
    """The precision plugin, whose state a checkpoint keeps."""
    return fabric._precision


def can_skip_sync(strategy: Strategy) -> bool:
    """Whether Fabric.no_backward_sync has an effect: strategies set `_backward_sync_control`, or leave it None."""
    return strategy._backward_sync_control is not None


def autocast_dtype(precision: MixedPrecision) -> torch.dtype:
    """The dtype of mixed precision's autocast regions."""
    return precision._desired_input_dtype


def with_sampler(loader: DataLoader[Any], sampler: Iterable[Any]) -> DataLoader[Any]:
    """A loader of the same class and arguments with another sampler.

    Raises:
        TypeError, MisconfigurationException: a constructor of the user's that does not pass its arguments on.
    """
    return _update_dataloader(loader, sampler)


def without_fabric(loader: Any) -> DataLoader[Any]:
    """The loader inside the wrapper of Fabric.setup_dataloaders."""
    return loader._dataloader


def set_device_and_dtype(module: LightningModule, device: torch.device, dtype: torch.dtype | None) -> None:
    """`self.device` and `self.dtype` of a module; Fabric sets them only for modules defined inside Lightning."""
    module._device = device
    if dtype is not None:
        module._dtype = dtype


def read_rank_again() -> None:
    """Take this process's rank from the environment, as Lightning does when it is imported."""
    setattr(rank_zero_only, "rank", _get_rank() or 0)  # noqa: B010  # an attribute of a function
