"""A server's shard of the parameters: its values and version, and the staleness of pushes."""

import math
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...base.errors import NotFiniteValue
from ...core.checkpoints.optimizer_trial import refuse_useless_state


def shard_bounds(elements: int, servers: int, index: int) -> tuple[int, int]:
    """[start, end) of the flat vector that one server holds."""
    return elements * index // servers, elements * (index + 1) // servers


def segments_within(segments: list[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """The (parameter group, elements) segments of [start, end) of the vector."""
    found: list[tuple[int, int]] = []
    at = 0
    for group, elements in segments:
        inside = min(at + elements, end) - max(at, start)
        if inside > 0:
            found.append((group, inside))
        at += elements
    return found


@dataclass
class ServerLoad:
    """Requests and busy time since the server's start."""

    pulls: int = 0
    pushes: int = 0
    busy_seconds: float = 0.0


class ParamShard(ABC):
    """Parameters [start, end) of the flat vector. Updates are applied whole, in the order in which they arrive.

    Args:
        values: stepped in place.
        workers: number of workers that pull and push.
        max_staleness: largest staleness at which a push is applied. A push that would make another one too stale waits
            for that one. At least workers - 1; None: no bound.
    """

    def __init__(self, values: Tensor, workers: int, max_staleness: int | None = None):
        self.values = values
        self.workers = workers
        self.max_staleness = max_staleness
        self.version = 0
        self.pulled: dict[int, int] = {}
        """Version by worker, that it has pulled and not pushed for yet."""
        self.last_pulled: dict[int, int] = {}
        self.staleness: Counter[int] = Counter()
        """Pushes by staleness: updates applied between a worker's pull and its push."""
        self.load = ServerLoad()

    @abstractmethod
    def update(self, value: Tensor, learning_rates: tuple[float, ...]) -> None:
        """Apply a push to the values."""

    def pull(self, worker: int) -> Tensor:
        """The current values (not a copy)."""
        self.pulled[worker] = self.last_pulled[worker] = self.version
        self.load.pulls += 1
        return self.values

    def may_push(self, worker: int) -> bool:
        """Whether all pending pushes can keep the bound if this worker's is applied now.

        They can if they keep it in the order of their pulls (earliest deadline first, Jackson 1955).
        """
        if self.max_staleness is None:
            return True
        others = sorted(version for other, version in self.pulled.items() if other != worker)
        return all(version + self.max_staleness >= self.version + 1 + place for place, version in enumerate(others))

    def push(self, worker: int, value: Tensor, learning_rates: tuple[float, ...] = ()) -> int:
        """Apply an update. Returns its staleness.

        Raises:
            NotFiniteValue: it is not finite.
        """
        staleness = self.version - self.last_pulled.get(worker, self.version)
        # the sum first, the cheaper test: it is finite unless a value is not, or the sum itself overflows
        if not math.isfinite(float(value.sum())) and not bool(torch.isfinite(value).all()):
            raise NotFiniteValue(
                f"training diverged: worker {worker} pushed NaN or infinite values at version {self.version}, with a "
                f"staleness of {staleness}: a smaller learning rate, or fewer steps between two pushes"
            )
        self.update(value, learning_rates)
        self.version += 1
        self.pulled.pop(worker, None)
        self.staleness[staleness] += 1
        self.load.pushes += 1
        return staleness

    def drop_worker(self, worker: int) -> None:
        """A worker has left or died: no push waits for its push."""
        self.pulled.pop(worker, None)

    def state(self) -> dict[str, Any]:
        """Plain values and tensors; those of the shard's length are resharded for another number of servers."""
        return {"values": self.values.clone(), "version": self.version, "optimizer": []}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`.

        Raises:
            ValueError: no training can go on from it.
        """
        if state["values"].shape != self.values.shape:
            raise ValueError(f"the servers' files hold {len(state['values'])} values in place of {len(self.values)}")
        self.values.copy_(state["values"])
        self.version = state["version"]
        self.pulled, self.last_pulled = {}, {}


class CenterShard(ParamShard):
    """EASGD's center: c <- c + e."""

    def update(self, value: Tensor, learning_rates: tuple[float, ...]) -> None:
        self.values.add_(value)


class OptimizedShard(ParamShard):
    """Parameters stepped by a torch optimizer with the gradients that are pushed: w <- step(w, g)."""

    def __init__(self, values: Tensor, optimizer: Optimizer, workers: int, max_staleness: int | None = None):
        super().__init__(values, workers, max_staleness)
        self.optimizer = optimizer

    def update(self, value: Tensor, learning_rates: tuple[float, ...]) -> None:
        start = 0
        for parameter in self._segments():
            parameter.grad = value[start : start + parameter.numel()]
            start += parameter.numel()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rates[group["number"]]
        self.optimizer.step()

    def _segments(self) -> list[torch.nn.Parameter]:
        """The optimizer's parameters, in the order of the vector."""
        every = [p for group in self.optimizer.param_groups for p in group["params"]]
        # parameter groups interleave in the vector: the addresses of its views are in its order
        return sorted(every, key=lambda parameter: parameter.data_ptr())

    def state(self) -> dict[str, Any]:
        kept = super().state()
        segments = self._segments()
        names = sorted({name for p in segments for name in self.optimizer.state.get(p, {})})
        for name in names:
            parts = [self.optimizer.state[p][name] for p in segments]
            whole = [isinstance(v, Tensor) and v.shape == p.shape for p, v in zip(segments, parts, strict=True)]
            kept["optimizer"].append([name, torch.cat(parts) if all(whole) else parts[0]])
        return kept

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        start = 0
        for parameter in self._segments():
            for name, value in state["optimizer"]:
                whole = isinstance(value, Tensor) and value.shape == self.values.shape
                part = value[start : start + parameter.numel()].to(parameter.device) if whole else value
                self.optimizer.state[parameter][name] = part.clone() if isinstance(part, Tensor) else part
            start += parameter.numel()
        refuse_useless_state(self.optimizer, self.optimizer.param_groups)


def merge_states(saved: list[dict[str, Any]], start: int, end: int) -> dict[str, Any]:
    """The state of a server that holds [start, end), from the states of all servers that saved."""
    whole = torch.cat([state["values"] for state in saved])
    optimizer: list[Any] = []
    for column, (name, value) in enumerate(saved[0]["optimizer"]):
        columns = [state["optimizer"][column][1] for state in saved]
        sharded = isinstance(value, Tensor) and value.shape == saved[0]["values"].shape
        optimizer.append([name, torch.cat(columns)[start:end] if sharded else value])
    return {"values": whole[start:end], "version": saved[0]["version"], "optimizer": optimizer}
