"""Interface of executors: run the update rules of this process's workers, one (distributed) or all (simulated)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from ...core.ticket_source import TicketSource
from .ops import UpdateRule


class Executor(Protocol):
    """Runs update rules for a local-update strategy."""

    @property
    def ticket_source(self) -> TicketSource | None:
        """Tickets of asynchronous workers; None: workers in lockstep."""
        ...

    @property
    def rules(self) -> Sequence[UpdateRule]:
        """Rules of this process's workers."""
        ...

    @property
    def current_rule(self) -> UpdateRule:
        """Rule of the worker whose gradient the loop computes."""
        ...

    def start(self, weights: Tensor) -> None:
        """Start all workers at these weights (flat)."""
        ...

    def start_servers(self, weights: Tensor) -> None:
        """Start the servers at these weights."""
        ...

    def before_gradient(self) -> None:
        """Run the ops that come before a gradient."""
        ...

    def after_step(self) -> None:
        """Run the ops that come after it, and after the optimizer's step where the rule has one."""
        ...

    def eval_weights(self) -> Tensor:
        """The flat weights that are evaluated. A collective, between two steps."""
        ...

    def shared_weights(self) -> Tensor | None:
        """After a step, without waiting for another worker: the flat weights as of the last exchange; None: not known
        to this process, or not all of its workers have done this step."""
        ...

    def mean_buffers(self, task: nn.Module) -> list[Tensor]:
        """Mean over all workers of floating-point buffers (BatchNorm statistics); of others, the first worker's."""
        ...

    def worker_weights(self, task: nn.Module) -> Iterable[tuple[Tensor, list[Tensor]]]:
        """Weights (flat) and buffers of every worker of the run. A collective."""
        ...

    def worker_states(self, task: nn.Module, optimizer: Optimizer) -> list[dict[str, Any]]:
        """State of this process's workers, see `worker_state`."""
        ...

    def load_worker_states(self, saved: Sequence[dict[str, Any]], task: nn.Module, optimizer: Optimizer) -> None:
        """Restore this process's workers from the states of all workers of the run."""
        ...

    def replicate(self, task: nn.Module, optimizer: Optimizer) -> None:
        """Copy the task's buffers and the optimizer's state to every worker of this process."""
        ...

    def save_servers(self, step: int) -> int:
        """Have every server write its file next to the checkpoint of a step. Returns the number of servers."""
        ...

    def restore_servers(self, step: int, servers: int) -> None:
        """Restore the servers from the files that `servers` servers wrote. A collective."""
        ...

    def collect_metrics(self) -> tuple[dict[str, float], Counter[int]]:
        """Scalars by metric name, and pushes by staleness since the start."""
        ...

    def leave(self) -> None:
        """Sign off from the servers."""
        ...
