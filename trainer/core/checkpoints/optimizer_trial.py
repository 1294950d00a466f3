"""A step of an optimizer on copies of its parameters, which finds a restored state that no training can go on from."""

import copy
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

OURS = ("leyden", "torch", "lightning", "torchmetrics")
"""Packages whose classes keep what is compared. Errors of a user's own class are his, with their traceback."""


def is_ours(value: object) -> bool:
    return type(value).__module__.partition(".")[0] in OURS


def refuse_useless_state(optimizer: Optimizer, own: list[dict[str, Any]]) -> None:
    """Refuse an optimizer's state with which its step raises, or gives weights that are not finite, by a step on a copy
    of each parameter.

    What the state of a parameter must look like, the optimizer alone knows. One that fails without state and with its
    own settings as well says nothing about it.

    Args:
        own: settings of its groups before the state was loaded.

    Raises:
        ValueError: names the parameter's shape.
    """
    for number, group in enumerate(optimizer.param_groups if is_ours(optimizer) else []):
        for parameter in group["params"]:
            kept = optimizer.state.get(parameter) or {}
            if not kept or type(parameter) not in (torch.nn.Parameter, torch.Tensor):
                continue
            error = _step_error(optimizer, group, parameter, kept)
            if error is not None and _step_error(optimizer, {**group, **own[number]}, parameter, {}) is None:
                text = f"its state of a parameter of shape {tuple(parameter.shape)}"
                raise ValueError(f"{text}: {type(error).__name__}: {error}") from error


def _step_error(
    optimizer: Optimizer, group: Mapping[str, Any], parameter: torch.Tensor, state: Mapping[str, Any]
) -> Exception | None:
    """The error of one step of a copy of the optimizer on a copy of one parameter; None: there was none."""
    trial, alone = copy.copy(optimizer), torch.zeros_like(parameter)
    alone.grad = torch.zeros_like(alone)
    trial.param_groups = [{**group, "params": [alone]}]
    copied = {name: v.clone() if isinstance(v, torch.Tensor) else copy.deepcopy(v) for name, v in state.items()}
    trial.state = defaultdict(dict, {alone: copied} if state else {})
    try:
        type(trial).step(trial)
        if not alone.isfinite().all():
            raise ValueError("a step with it gives weights that are NaN or infinite")
        if any(isinstance(value, torch.Tensor) and value.isnan().any() for value in copied.values()):
            raise ValueError("it holds NaN")  # which some use only after a few steps
    except (MemoryError, torch.OutOfMemoryError):  # of the copies: nothing is known
        return None
    except Exception as error:  # of any kind: the state may be anything
        return error
    return None
