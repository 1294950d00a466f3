"""Exponential moving average of the weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from typing_extensions import override

from ...base.errors import Problem
from ...config.schema import Config, Target
from ...core.state import RunState
from .weight_average import WeightAverage, decay_out_of_range, local, precise, steps_out_of_range


class EMA(WeightAverage):
    """average <- d_t average + (1 - d_t) weights every `update_every` steps (Polyak and Juditsky 1992).

    d_t = min(decay, (1 + t) / (10 + t)) after t updates, as in TensorFlow's ExponentialMovingAverage with
    num_updates, so that the initial weights lose their influence early; without `warmup` d_t = decay.

    Validation, test and evaluation use the average; training continues with the weights themselves. Buffers are not
    averaged. Under local-update strategies (easgd, asgd, local_sgd) the average is of the weights that they
    evaluate, as last synchronized: the center, the mean of the workers, or the servers' parameters, which rank 0 then
    fetches (all parameters once every `update_every` rounds, in addition to the strategy's own traffic).

    Args:
        decay: in [0, 1); the average reaches back about update_every / (1 - decay) steps.
        warmup: whether the first updates weigh more, as above.
        update_every: optimizer steps from one update to the next, at least 1.

    Raises:
        ValueError: decay or update_every out of range.
    """

    NUMBERS = ("updates", "warmup")

    def __init__(self, decay: float = 0.999, warmup: bool = True, update_every: int = 1):
        super().__init__()
        for problem in _out_of_range("callbacks.ema", {"decay": decay, "update_every": update_every}):
            raise ValueError(f"{problem.key}={problem.value} {problem.text}")
        self.decay = decay
        self.warmup = warmup
        self.update_every = update_every
        self.updates = 0
        """t."""
        self._seen = 0
        """The last step counted for updates."""
        self._due = False
        """Whether an update is pending: on a sum over workers, or on deferred optimizer steps."""

    @override
    @staticmethod
    def validate_config(config: Config, key: str, node: Target) -> Iterator[Problem]:
        """What cannot work, before anything starts."""
        yield from _out_of_range(key, node.arguments)
        if config.elastic:
            text = "is kept by rank 0, and with strategy.execution.elastic=true a restarted one has lost it"
            yield Problem(key, text, node.target, "strategy.execution.elastic=false")

    @override
    def on_fit_start(self, state: RunState) -> None:
        self._state, self._seen = state, state.step
        if self._loaded is not None:
            self.updates, self.warmup = self._loaded["updates"], self._loaded["warmup"]
            self.average = self.own_parts(state, self._loaded)
            self._loaded = None
        elif not self.average:
            with state.contract.eval_weights(state.task):
                self.average = [precise(w.detach().clone()) for w in state.task.parameters()]

    @override
    def on_step_end(self, state: RunState) -> None:
        if state.contract.updates_pending():  # the weights are still those of the previous step
            self._update(state)
            self._mark(state)
        else:
            self._mark(state)
            self._update(state)

    def _mark(self, state: RunState) -> None:
        # asynchronous workers skip steps, simulated ones repeat some
        self._due = self._due or state.step // self.update_every > self._seen // self.update_every
        self._seen = max(self._seen, state.step)

    @torch.no_grad()
    def _update(self, state: RunState) -> None:
        """Apply the pending update, if its weights are available."""
        weights = state.contract.weights_to_average(state.task) if self._due else None
        if weights is None:
            return
        self._due = False
        own = [local(average) for average in self.average]
        new = [local(w.detach()).to(a.dtype) for w, a in zip(weights, own, strict=True)]
        torch._foreach_lerp_(own, new, 1.0 - self._next_decay())
        self.updates += 1

    def _next_decay(self) -> float:
        t = self.updates
        return min(self.decay, (1 + t) / (10 + t)) if self.warmup else self.decay

    @override
    @contextmanager
    def evaluated(self, state: RunState) -> Iterator[None]:
        """The average in place of the weights. Deferred steps of a strategy are done (`flush_pending_updates`)."""
        if not self.average:
            yield
            return
        self._update(state)
        state.contract.share_average([local(average) for average in self.average])
        with self.in_place(state):
            yield

    @override
    def state_dict(self) -> dict[str, Any]:
        """The average by the parameters' names, in one device's layout except for `pieces`. Collective."""
        if self._state is None:  # training has not begun
            return {}
        self._update(self._state)
        return {"average": self.whole_average(self._state), "updates": self.updates, "warmup": self.warmup}


def _out_of_range(key: str, arguments: dict[str, Any]) -> Iterator[Problem]:
    yield from decay_out_of_range(f"{key}.decay", arguments.get("decay", 0.0), 0.999)
    yield from steps_out_of_range(f"{key}.update_every", arguments.get("update_every", 1), 1)
