"""All trained parameters of a module as one vector."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...core.traffic import Workload
from ..param_server.shard import shard_bounds


class FlatParameters:
    """One vector of all trained parameters, each of which becomes a view of it.

    An exchange is then one message or one all-reduce, not one a tensor, and a server needs a length, not a model.

    Raises:
        ValueError: no parameter is trained, or parameters differ in dtype.
    """

    def __init__(self, module: nn.Module):
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not self.parameters:
            raise ValueError("the module has no parameter with requires_grad=True")
        types = sorted({str(parameter.dtype) for parameter in self.parameters})
        if len(types) > 1:
            raise ValueError(f"this strategy sends all parameters as one vector, and they are of {' and '.join(types)}")
        first = self.parameters[0]
        ends = torch.tensor([parameter.numel() for parameter in self.parameters]).cumsum(0).tolist()
        self.ranges = list(zip([0, *ends[:-1]], ends, strict=True))
        self.values = torch.empty(ends[-1], dtype=first.dtype, device=first.device)
        for parameter, view in zip(self.parameters, self.views(self.values), strict=True):
            view.copy_(parameter.detach())
            parameter.data = view

    def views(self, vector: Tensor) -> list[Tensor]:
        """Views of the vector, one for each parameter, in its shape and memory layout."""
        found: list[Tensor] = []
        for parameter, (start, end) in zip(self.parameters, self.ranges, strict=True):
            layout = torch.empty_like(parameter, device="meta").stride()
            found.append(vector[start:end].as_strided(parameter.shape, layout, vector.storage_offset() + start))
        return found

    def gradient(self) -> Tensor:
        """A new vector of all gradients; zero where a parameter got none."""
        vector = torch.zeros_like(self.values)
        for parameter, view in zip(self.parameters, self.views(vector), strict=True):
            if parameter.grad is not None:
                view.copy_(parameter.grad)
        return vector

    def segments(self, optimizer: Optimizer) -> list[tuple[int, int]]:
        """(parameter group, elements) of consecutive segments of the vector, each of one group of the optimizer.

        Raises:
            ValueError: the optimizer leaves a trained parameter out.
        """
        owner = {id(p): number for number, group in enumerate(optimizer.param_groups) for p in group["params"]}
        found: list[tuple[int, int]] = []
        for parameter in self.parameters:
            if id(parameter) not in owner:
                raise ValueError("the optimizer leaves out a parameter with requires_grad=True")
            group = owner[id(parameter)]
            if found and found[-1][0] == group:
                found[-1] = (group, found[-1][1] + parameter.numel())
            else:
                found.append((group, parameter.numel()))
        return found


class Replica:
    """One worker's parameters and optimizer state.

    Args:
        flat: the module's parameters.
        values: this worker's vector; of a worker process, the module's own.
    """

    def __init__(self, flat: FlatParameters, values: Tensor, optimizer: Optimizer):
        self.flat = flat
        self.values = values
        self.own_state: Any = None
        """Optimizer state of a simulated worker, as `torch.optim.Optimizer.state`."""
        self.own_groups: list[dict[str, Any]] | None = None
        """Options of each parameter group of a simulated worker, with the learning rate of its own step."""
        self.last_rates: list[float] | None = None
        """Learning rates of the parameter groups in the worker's last step; None: not known."""
        self._optimizer = optimizer

    @property
    def optimizer_state(self) -> Any:
        # looked up each time: loading a checkpoint replaces the optimizer's own
        return self._optimizer.state if self.own_state is None else self.own_state

    @property
    def groups(self) -> list[dict[str, Any]]:
        return self._optimizer.param_groups if self.own_groups is None else self.own_groups

    def gradient(self) -> Tensor:
        return self.flat.gradient()

    def learning_rates(self) -> tuple[float, ...]:
        return tuple(float(group["lr"]) for group in self.groups)

    def scale_groups(self, vector: Tensor, factors: tuple[float, ...]) -> Tensor:
        """Each element times the factor of its parameter group."""
        if len(set(factors)) == 1:
            return vector * factors[0]
        start, parts = 0, []
        for group, elements in self.flat.segments(self._optimizer):
            parts.append(vector[start : start + elements] * factors[group])
            start += elements
        return torch.cat(parts)

    def position(self) -> Tensor:
        """The weights x. With Nesterov momentum torch stores the point where the gradient is taken instead, x + d v
        with v = - lr * momentum buffer, lr that of the last step.
        """
        rates = self.last_rates or self.learning_rates()
        groups = zip(self.groups, rates, self._optimizer.param_groups, strict=True)
        offsets = [(float(group["momentum"]) * rate, owner) for group, rate, owner in groups if group.get("nesterov")]
        if not offsets:
            return self.values
        position = self.values.clone()
        views = {id(p): v for p, v in zip(self.flat.parameters, self.flat.views(position), strict=True)}
        for factor, owner in offsets:
            for parameter in owner["params"]:
                velocity = self.optimizer_state.get(parameter, {}).get("momentum_buffer")
                if velocity is not None and id(parameter) in views:
                    views[id(parameter)].add_(velocity, alpha=factor)
        return position


def flat_bytes(workload: Workload) -> int:
    """Bytes of a network's trained parameters as one vector."""
    return sum(parameter.nbytes for parameter in workload.parameters)


def shard_bytes(workload: Workload, servers: int) -> list[int]:
    """Bytes of each server's shard of that vector."""
    elements, size = sum(p.numel() for p in workload.parameters), workload.parameters[0].element_size()
    ranges = [shard_bounds(elements, servers, index) for index in range(servers)]
    return [(end - start) * size for start, end in ranges]
