"""The workers that one process stands for: itself (`live`), or all of a run in virtual time (`virtual`)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from .requests import Rule
from .turns_protocol import Turns


class WorkersHere(Protocol):
    """What a strategy whose workers run ahead asks of whoever carries its rules out."""

    @property
    def turns(self) -> Turns | None:
        """Who trains on what, where workers go by their own clocks; None: in lockstep."""
        ...

    @property
    def rules(self) -> Sequence[Rule]:
        """Of the workers here."""
        ...

    @property
    def current(self) -> Rule:
        """Of the worker whose gradient the loop computes."""
        ...

    def start(self, weights: Tensor) -> None:
        """All workers begin at these weights (flat)."""
        ...

    def start_servers(self, weights: Tensor) -> None:
        """So do the servers."""
        ...

    def begin(self) -> None:
        """What comes before a gradient."""
        ...

    def stepped(self) -> None:
        """What comes after it, and after the optimizer's step where the rule has one."""
        ...

    def judged(self) -> Tensor:
        """The flat weights that count. Every process must ask, between two steps."""
        ...

    def shared(self) -> Tensor | None:
        """After a step, without waiting for another worker: the flat weights as the workers last shared them; None:
        not known here, or not all workers of this process have done this step."""
        ...

    def mean_buffers(self, task: nn.Module) -> list[Tensor]:
        """Mean over all workers of what BatchNorm and its kin have measured; counters are the first worker's."""
        ...

    def each(self, task: nn.Module) -> Iterable[tuple[Tensor, list[Tensor]]]:
        """Weights (flat) and buffers of every worker of the run. Every process must ask."""
        ...

    def saved(self, task: nn.Module, optimizer: Optimizer) -> list[dict[str, Any]]:
        """What the workers here have for themselves, see `saved_workers`."""
        ...

    def load(self, saved: Sequence[dict[str, Any]], task: nn.Module, optimizer: Optimizer) -> None:
        """The opposite, from what all workers of the run have saved."""
        ...

    def inherit(self, task: nn.Module, optimizer: Optimizer) -> None:
        """Every worker here takes over the buffers of the task and what its optimizer remembers."""
        ...

    def save_servers(self, step: int) -> int:
        """Have every server write its file beside the checkpoint of a step. Returns how many there are."""
        ...

    def restore_servers(self, step: int, servers: int) -> None:
        """Have the servers begin at what `servers` of them wrote. Every process must ask."""
        ...

    def measured(self) -> tuple[dict[str, float], Counter[int]]:
        """Scalars under TensorBoard's names, and how many pushes were so many versions late since the start."""
        ...

    def leave(self) -> None:
        """Nothing more is asked of the servers."""
        ...
