"""State of one worker of a local-update strategy, as plain values and tensors, saved and restored."""

from collections import defaultdict
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ...core.checkpoints.memory_layout import lay_out_as
from ...core.checkpoints.sharded_checkpoint import CheckpointShards
from .flat_parameters import Replica
from .ops import UpdateRule


def worker_state(replica: Replica, rule: UpdateRule, buffers: list[Tensor], optimizer: Optimizer) -> dict[str, Any]:
    """Weights, optimizer state, buffers, and the update rule's state."""
    order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    kept = {
        number: {name: _copy_value(value) for name, value in replica.optimizer_state[parameter].items()}
        for number, parameter in enumerate(order)
        if parameter in replica.optimizer_state
    }
    values = {name: _copy_value(value) for name, value in rule.state().items()}
    return {"values": replica.values.clone(), "optimizer": kept, "rule": values, "buffers": buffers}


def load_worker(
    replica: Replica, rule: UpdateRule, buffers: list[Tensor], optimizer: Optimizer, saved: dict[str, Any]
) -> None:
    """Restore a worker from its `worker_state`."""
    replica.values.copy_(saved["values"])
    order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    replica.optimizer_state.clear()
    for number, kept in saved["optimizer"].items():
        own = {name: _like(value, order[number]) for name, value in kept.items()}
        replica.optimizer_state[order[number]].update(own)
    rule.load(saved["rule"])
    for buffer, value in zip(buffers, saved["buffers"], strict=True):
        buffer.copy_(value)


def all_saved_workers(shards: CheckpointShards, kind: str) -> list[dict[str, Any]]:
    """States of all workers, whichever processes held them; empty where another kind of strategy has saved."""
    found: list[dict[str, Any]] = []
    for process in range(shards.workers):
        own = shards.own(process)
        saved = own.get("local_update")
        if saved is not None and saved["kind"] == kind:
            found += saved["workers"]
    return found


def copy_optimizer_state(optimizer: Optimizer) -> Any:
    """A copy of an optimizer's state, for one more worker."""
    copies: Any = defaultdict(dict)
    for parameter, kept in optimizer.state.items():
        copies[parameter].update({name: _copy_value(value) for name, value in kept.items()})
    return copies


def _copy_value(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _like(value: Any, parameter: Tensor) -> Any:
    if not isinstance(value, Tensor):
        return value
    return lay_out_as(parameter, value) if value.shape == parameter.shape else value.clone()
