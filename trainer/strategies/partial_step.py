"""Stepping a torch optimizer for some of its parameters only: layer by layer, or one part of a network by itself."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

Settings = list[dict[str, Any]]
"""Learning rate, momentum and so on of each parameter group."""


def settings_now(optimizer: Optimizer) -> Settings:
    """Settings of each group now, for a step that is made later: a schedule moves on meanwhile."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


@contextmanager
def only(
    optimizer: Optimizer, parameters: Iterable[Tensor], settings: Settings | None = None, lr_scale: float = 1.0
) -> Iterator[None]:
    """Context in which `optimizer.step()` updates these parameters alone; their state stays where it always is.

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


@contextmanager
def separate_rates(optimizer: Optimizer, sharded: Mapping[nn.Parameter, Any], scale: float) -> Iterator[None]:
    """Context in which the learning rate of the parameters in `sharded` is `scale` times that of their group."""
    groups = optimizer.param_groups
    divided: list[dict[str, Any]] = []
    for group in groups:
        for inside, factor in ((False, 1.0), (True, scale)):
            members = [p for p in group["params"] if (p in sharded) is inside]
            if members:
                divided.append({**group, "params": members, "lr": group["lr"] * factor})
    optimizer.param_groups = groups if scale == 1.0 else divided
    try:
        yield
    finally:
        optimizer.param_groups = groups
