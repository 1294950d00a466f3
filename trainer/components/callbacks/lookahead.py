"""Lookahead."""

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from typing_extensions import override

from ...base.errors import Problem
from ...config.locate import locate
from ...config.schema import Config, Target
from ...config.strategy_class import declarations_of
from ...core.state import RunState
from .weight_average import WeightAverage, decay_out_of_range, local, precise, steps_out_of_range


class Lookahead(WeightAverage):
    """slow <- d_t slow + (1 - d_t) weights; weights <- slow, after every `every` steps (Zhang et al. 2019, NeurIPS,
    algorithm 1, where d_t is 1 - alpha).

    d_t = decay (t / T)^power at step t of T: with power 0 the paper's, and with power 3 that of K. Jordan's airbench
    (arXiv 2404.00498), in which the slow weights begin to matter late. The training ends with the slow weights.
    Between two of these updates evaluation uses the weights themselves. Buffers and the optimizer's state are left
    alone.

    Args:
        every: optimizer steps from one update to the next, at least 1 (the paper's k).
        decay: in [0, 1).
        power: at least 0.

    Raises:
        ValueError: an argument out of range.
    """

    averages_weights: ClassVar[bool] = False

    def __init__(self, every: int = 5, decay: float = 0.5, power: float = 0.0):
        super().__init__()
        for problem in _out_of_range("callbacks.lookahead", {"every": every, "decay": decay, "power": power}):
            raise ValueError(f"{problem.key}={problem.value} {problem.text}")
        self.every = every
        self.decay = decay
        self.power = power

    @override
    @staticmethod
    def validate_config(config: Config, key: str, node: Target) -> Iterator[Problem]:
        """What cannot work, before anything starts."""
        yield from _out_of_range(key, node.arguments)
        strategy = locate(config.strategy.target)
        if declarations_of(strategy).local_updates:
            text = f"replaces weights that all workers share, and each worker of {strategy.__name__} has its own"
            yield Problem(key, text, node.target, "strategy=ddp")

    @override
    def on_fit_start(self, state: RunState) -> None:
        self._state = state
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            self.average = self.own_parts(state, loaded)
        elif not self.average:
            self.average = [precise(local(w.detach()).clone()) for w in state.task.parameters()]

    @override
    @torch.no_grad()
    def on_step_end(self, state: RunState) -> None:
        is_last, is_due = state.step >= state.total_steps, state.step % self.every == 0
        if not (is_due or is_last):
            return
        state.contract.flush_pending_updates(state.task)
        weights = [local(w.detach()) for w in state.task.parameters()]
        slow = [local(average) for average in self.average]
        if is_due:
            decay = self.decay * (state.step / state.total_steps) ** self.power
            torch._foreach_lerp_(slow, [w.to(s.dtype) for w, s in zip(weights, slow, strict=True)], 1.0 - decay)
        torch._foreach_copy_(weights, slow)

    @override
    def state_dict(self) -> dict[str, Any]:
        """The slow weights by the parameters' names, in one device's layout except for `pieces`. Collective."""
        return {} if self._state is None else {"average": self.whole_average(self._state)}


def _out_of_range(key: str, arguments: dict[str, Any]) -> Iterator[Problem]:
    yield from steps_out_of_range(f"{key}.every", arguments.get("every", 1), 5)
    yield from decay_out_of_range(f"{key}.decay", arguments.get("decay", 0.0), 0.5)
    power = arguments.get("power", 0.0)
    if isinstance(power, bool) or not isinstance(power, int | float) or not power >= 0.0:
        yield Problem(f"{key}.power", "must be at least 0", power, f"{key}.power=0")
