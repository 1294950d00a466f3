"""Stochastic weight averaging."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import get_swa_multi_avg_fn
from typing_extensions import override

from ...base.errors import Problem
from ...base.log import log
from ...config.locate import locate
from ...config.schema import Config, Target
from ...config.strategy_class import declarations_of
from ...core.state import RunState
from .weight_average import WeightAverage, local, precise, replace_values

_START = "must be an epoch, counted from 0, or a fraction of trainer.max_epochs of at least 0.0 and less than 1.0"


class SWA(WeightAverage):
    """average <- (n average + weights) / (n + 1) at the end of each epoch from `start` on (Izmailov et al. 2018, UAI).

    n is the number of weights averaged so far. As in the paper's algorithm 1, running statistics of BatchNorm are taken
    anew for the average, by a pass over the training data (`engine.network.batchnorm_statistics`): after each epoch
    averaged, so that what is validated is what a checkpoint of that epoch holds. Without BatchNorm there is no
    pass. Validation, test and evaluation use the average from its first epoch on; training continues with the weights
    themselves. The learning rate is the schedule's.

    The update is torch's (get_swa_multi_avg_fn). Not its AveragedModel, a copy of the module, which strategies that
    divide parameters do not allow.

    Args:
        start: the first epoch whose weights are averaged, counted from 0, or the fraction of trainer.max_epochs before.

    Raises:
        ValueError: start out of range.
    """

    NUMBERS = ("epochs", "seen")

    def __init__(self, start: float = 0.75):
        super().__init__()
        if not _is_start(start):
            raise ValueError(f"callbacks.swa.start={start} {_START}")
        self.start = start
        self.epochs = 0
        """n."""
        self._seen = 0
        """Complete epochs that have been looked at."""
        self._statistics: dict[str, Tensor] = {}
        """Buffers of BatchNorm for the average, by name; the same on all workers."""
        self._update = get_swa_multi_avg_fn()

    @override
    @staticmethod
    def validate_config(config: Config, key: str, node: Target) -> Iterator[Problem]:
        """What cannot work, before anything starts."""
        start, epochs = node.arguments.get("start", 0.75), config.trainer.max_epochs
        if not _is_start(start):
            yield Problem(f"{key}.start", _START, start, f"{key}.start=0.75")
        elif first_epoch(start, epochs) >= epochs:
            text = f"leaves no epoch to average of trainer.max_epochs={epochs}"
            yield Problem(f"{key}.start", text, start, f"{key}.start=0.75")
        strategy = locate(config.strategy.target)
        if declarations_of(strategy).local_updates:
            text = f"averages weights that all workers share, and each worker of {strategy.__name__} has its own"
            yield Problem(key, text, node.target, "callbacks=[default,ema], or strategy=ddp")
        if config.pipeline is not None:
            text = "takes statistics over all training data, of which a worker of a pipeline may hold a part"
            yield Problem(key, text, node.target, "callbacks=[default,ema], or one run alone")
        others = [name for name, other in config.callbacks.items() if other not in (None, node) and _averages(other)]
        if others:
            text = f"and callbacks.{others[0]} are two averages, of which one can be evaluated"
            yield Problem(key, text, node.target, f"~callbacks.{others[0]}")

    @override
    def on_fit_start(self, state: RunState) -> None:
        self._state, self._seen = state, state.epoch
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            self.epochs, self._seen = loaded["epochs"], loaded["seen"]
            if self.epochs:
                self.average = self.own_parts(state, loaded)
                device = state.fabric.device
                self._statistics = {name: value.to(device) for name, value in loaded["statistics"].items()}

    @override
    def on_epoch_end(self, state: RunState) -> None:
        """An epoch that was not validated at its end."""
        if self._is_due(state, state.epoch):
            state.contract.flush_pending_updates(state.task)
            with state.contract.eval_weights(state.task), self._average_in(state, state.epoch):
                pass

    @override
    def on_fit_end(self, state: RunState) -> None:
        if not self.epochs and state.step >= state.total_steps:
            log.warning(
                "callbacks.swa: the training has ended before epoch %d, and nothing was averaged", self.first(state)
            )

    def first(self, state: RunState) -> int:
        """Number of the first epoch that is averaged, counted from 0."""
        return first_epoch(self.start, state.config.trainer.max_epochs)

    @override
    @contextmanager
    def evaluated(self, state: RunState) -> Iterator[None]:
        """The average in place of the weights. Deferred steps of a strategy are done (`flush_pending_updates`)."""
        at_end = state.in_epoch and state.step_in_epoch >= state.steps_per_epoch
        complete = state.epoch + 1 if at_end and self._is_due(state, state.epoch + 1) else None
        if complete is None and not self.average:
            yield
            return
        with self._average_in(state, complete):
            yield

    @contextmanager
    def _average_in(self, state: RunState, complete: int | None) -> Iterator[None]:
        """
        Args:
            complete: epochs after which the task's weights enter the average first; None: they do not.
        """
        if complete is not None:
            self._take(state, complete)
        # One context for the pass and the evaluation: after a forward FSDP2 keeps gathered parameters, which are not
        # those that the optimizer has.
        with self.in_place(state):
            if complete is not None:
                self._statistics = state.batchnorm_statistics()
            buffers = dict(state.task.named_buffers())
            with replace_values(list(self._statistics.values()), [buffers[name] for name in self._statistics]):
                yield

    def _is_due(self, state: RunState, complete: int) -> bool:
        """Whether the weights after so many complete epochs are to be averaged, and are not yet."""
        return complete > self._seen and complete > self.first(state)

    @torch.no_grad()
    def _take(self, state: RunState, complete: int) -> None:
        weights = [local(w.detach()) for w in state.task.parameters()]
        if not self.average:
            self.average = [precise(w.detach().clone()) for w in state.task.parameters()]
        own = [local(average) for average in self.average]
        self._update(own, [w.to(a.dtype) for w, a in zip(weights, own, strict=True)], self.epochs)  # pyright: ignore[reportArgumentType]
        self.epochs += 1
        self._seen = complete

    @override
    def state_dict(self) -> dict[str, Any]:
        """The average by the parameters' names, in one device's layout except for `pieces`. Collective."""
        if self._state is None:  # training has not begun
            return {}
        saved: dict[str, Any] = {"epochs": self.epochs, "seen": self._seen}
        if self.average:
            saved |= {"average": self.whole_average(self._state), "statistics": dict(self._statistics)}
        return saved


def _averages(node: Target) -> bool:
    found = locate(node.target)
    return isinstance(found, type) and issubclass(found, WeightAverage)


def first_epoch(start: float, epochs: int) -> int:
    """Number of the first epoch that is averaged, counted from 0."""
    return start if isinstance(start, int) else int(start * epochs)


def _is_start(start: Any) -> bool:
    whole = isinstance(start, int) and not isinstance(start, bool)
    return start >= 0 if whole else isinstance(start, float) and 0.0 <= start < 1.0
