"""What one worker that runs ahead keeps for itself, as plain values and tensors, and back."""

from collections import defaultdict
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ..shards import Shards
from .flat_parameters import Replica
from .requests import Rule


def saved_worker(replica: Replica, rule: Rule, buffers: list[Tensor], optimizer: Optimizer) -> dict[str, Any]:
    """Weights, momenta, statistics, and what the rule remembers."""
    order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    kept = {
        number: {name: _copied(value) for name, value in replica.optimizer_state[parameter].items()}
        for number, parameter in enumerate(order)
        if parameter in replica.optimizer_state
    }
    values = {name: _copied(value) for name, value in rule.state().items()}
    return {"values": replica.values.clone(), "optimizer": kept, "rule": values, "buffers": buffers}


def load_worker(
    replica: Replica, rule: Rule, buffers: list[Tensor], optimizer: Optimizer, saved: dict[str, Any]
) -> None:
    """The opposite."""
    replica.values.copy_(saved["values"])
    order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    replica.optimizer_state.clear()
    for number, kept in saved["optimizer"].items():
        own = {name: _like(value, order[number]) for name, value in kept.items()}
        replica.optimizer_state[order[number]].update(own)
    rule.load(saved["rule"])
    for buffer, value in zip(buffers, saved["buffers"], strict=True):
        buffer.copy_(value)


def all_saved_workers(shards: Shards, kind: str) -> list[dict[str, Any]]:
    """Every worker's own state, whichever processes they were in; none where they did something else."""
    found: list[dict[str, Any]] = []
    for process in range(shards.workers):
        ahead = shards.own(process).get("ahead")
        if ahead is not None and ahead["kind"] == kind:
            found += ahead["workers"]
    return found


def optimizer_state(optimizer: Optimizer) -> Any:
    """A copy of what an optimizer remembers, for one more worker."""
    copies: Any = defaultdict(dict)
    for parameter, kept in optimizer.state.items():
        copies[parameter].update({name: _copied(value) for name, value in kept.items()})
    return copies


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _like(value: Any, parameter: Tensor) -> Any:
    if not isinstance(value, Tensor):
        return value
    same = value.shape == parameter.shape
    return value.to(parameter.device) if same else value.clone()
