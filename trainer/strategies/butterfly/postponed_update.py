"""An optimizer's step for some layers in the middle of a forward, as if it were made between two steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


@contextmanager
def as_outside(device: str, dtype: torch.dtype) -> Iterator[None]:
    """Inside a forward, as if it were not: no autocast, no other default type."""
    inside = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.inference_mode(False), torch.autocast(device, enabled=False):
            yield
    finally:
        torch.set_default_dtype(inside)


def keep_update(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value  # a learning rate that is a tensor changes in place


def refuse_changed_groups(optimizer: Optimizer, before: list[dict[str, Any]]) -> None:
    """Stepping layer by layer is the same only where no layer's step depends on another's.

    Raises:
        ValueError: the step has changed something that all parameters of a group share.
    """
    for group, old in zip(optimizer.param_groups, before, strict=True):
        changed = [key for key in group if group[key] is not old.get(key)]
        if changed:
            name = type(optimizer).__name__
            raise ValueError(
                f"strategy=butterfly cannot put off {name}'s updates: its step changes {changed[0]!r} for a whole "
                "group of parameters: strategy.lazy=false"
            )
