"""Restored parts of a checkpoint, compared with the objects that have loaded them before the first step uses them."""

import copy
import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from ...core.checkpoints.container import DamagedCheckpoint
from ...core.checkpoints.memory_layout import lay_out_as
from ...core.checkpoints.optimizer_trial import is_ours

_MISSHAPEN = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)


@contextmanager
def restoring_part(path: Path | None, name: str, loads: Any = None, alone: bool = True) -> Generator[None, None, None]:
    """Context that names the part of a checkpoint that cannot be restored: its types were checked, its content was not.

    Args:
        path: None: of another worker's memory, which is our own.
        loads: what loads it. Errors of a user's own class are his, with their traceback.
        alone: whether a RuntimeError is the content's, and not that of a lost worker.

    Raises:
        DamagedCheckpoint: it cannot be restored.
    """
    errors = (*_MISSHAPEN, RuntimeError) if alone else _MISSHAPEN
    try:
        yield
    except (DamagedCheckpoint, torch.OutOfMemoryError):
        raise
    except errors as error:
        if path is None or (loads is not None and not is_ours(loads)):
            raise
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise DamagedCheckpoint(f"{path} is damaged: its `{name}` cannot be restored ({text[:250]})") from error


@contextmanager
def kinds_kept(loads: Optimizer | Any, name: str) -> Generator[None, None, None]:
    """Context in which an optimizer or a schedule loads its state: its settings keep their types.

    Raises:
        ValueError: they do not; it has its own again, so that another state can be loaded.
    """
    own = copy.deepcopy(settings_of(loads)) if is_ours(loads) else None
    try:
        yield
        if own is not None:
            refuse_other_kinds(own, settings_of(loads), name)
    except Exception:
        if isinstance(loads, Optimizer):
            for group, settings in zip(loads.param_groups, own or (), strict=False):
                group |= settings
        elif own is not None:
            loads.load_state_dict(own)
        raise


def settings_of(loads: Optimizer | Any) -> Any:
    """Settings of an optimizer's groups, or the state of a schedule."""
    if not isinstance(loads, Optimizer):
        return loads.state_dict()
    return [{name: value for name, value in group.items() if name != "params"} for group in loads.param_groups]


def refuse_replaced_attributes(schedule: Any, state: Mapping[Any, Any]) -> None:
    """Refuse a state that would take the place of a schedule's methods: torch makes attributes of all of its keys.

    Raises:
        ValueError: names the attribute.
    """
    for name in state if is_ours(schedule) else ():
        if name == "optimizer" or callable(getattr(type(schedule), name, None)):
            raise ValueError(f"{type(schedule).__name__}.{name} is no setting")


def refuse_later_steps(schedule: Any, most: int, name: str) -> None:
    """Refuse a schedule's state after more steps than a training has made.

    Args:
        most: steps of any schedule that the training's own can have made.

    Raises:
        ValueError: names the schedule's attribute.
    """
    last = getattr(schedule, "last_epoch", None)
    if isinstance(last, int) and is_ours(schedule) and not -1 <= last <= most:
        raise ValueError(f"{name}.last_epoch is {last}")
    for number, inner in enumerate(getattr(schedule, "_schedulers", ())):
        refuse_later_steps(inner, most, f"{name}.{number}")


def refuse_other_kinds(own: Any, restored: Any, name: str) -> None:
    """Refuse plain values of other types than an object had before it loaded them.

    Raises:
        ValueError: names the value.
    """
    if isinstance(own, Mapping) and isinstance(restored, Mapping):
        for key, value in own.items():
            if key not in restored:
                raise ValueError(f"{name} lacks {key}")
            refuse_other_kinds(value, restored[key], f"{name}.{key}")
    elif isinstance(own, list | tuple) and isinstance(restored, list | tuple):
        if len(own) != len(restored):
            raise ValueError(f"{name} has {len(restored)} values in place of {len(own)}")
        for number, (value, other) in enumerate(zip(own, restored, strict=True)):
            refuse_other_kinds(value, other, f"{name}.{number}")
    elif not _is_of_kind(own, restored):
        raise ValueError(
            f"{name} is {restored if isinstance(restored, float) else 'of type ' + type(restored).__name__}"
        )


def _is_of_kind(own: Any, restored: Any) -> bool:
    if own is None or isinstance(own, bool):
        return restored is None or isinstance(restored, bool) or (own is None and _is_number(restored))
    if _is_number(own, any_value=True):
        return _is_number(restored, any_value=not _is_number(own))
    return isinstance(restored, type(own))


def _is_number(value: Any, any_value: bool = False) -> bool:
    """Whether this is a finite number; `any_value`: or one that is not finite."""
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and (any_value or bool(value.isfinite()))
    return isinstance(value, int | float) and not isinstance(value, bool) and (any_value or math.isfinite(value))


def lay_out_as_parameters(optimizer: Optimizer) -> None:
    """Give each tensor of an optimizer's state that has its parameter's shape its memory layout, too."""
    for parameter, kept in optimizer.state.items():
        for name, value in kept.items():
            if type(value) is torch.Tensor and value.dim() and value.shape == parameter.shape:
                kept[name] = lay_out_as(parameter, value)
