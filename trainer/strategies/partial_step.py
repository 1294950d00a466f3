"""Stepping a torch optimizer for some of its parameters only: layer by layer, or one part of a network by itself."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

Settings = list[dict[str, Any]]
"""Learning rate, momentum and so on of each parameter group."""


def settings_now(optimizer: Optimizer) -> Settings:
    """What a later step of this moment has to use: a schedule moves on meanwhile."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


@contextmanager
def only(
    optimizer: Optimizer, parameters: Iterable[Tensor], settings: Settings | None = None, lr_scale: float = 1.0
) -> Iterator[None]:
    """Inside, `optimizer.step()` sees these parameters alone; their state stays where it always is.

    Args:
        settings: of every group, from `settings_now`; None: those in force.
        lr_scale: factor on each group's learning rate.
    """
    wanted = {id(parameter) for parameter in parameters}
    groups = optimizer.param_groups
    chosen: Settings = []
    for group, setting in zip(groups, settings or groups, strict=True):
        members = [p for p in group["params"] if id(p) in wanted]
        if members:
            chosen.append({**setting, "params": members, "lr": setting["lr"] * lr_scale})
    optimizer.param_groups = chosen
    try:
        yield
    finally:
        optimizer.param_groups = groups
