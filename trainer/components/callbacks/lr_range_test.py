"""Range test of learning rates: `leyden find lr`."""

import json
import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from typing_extensions import override

from ...base.atomic_file import atomic_file, write_atomically
from ...base.errors import CannotStart, NotLogged, Problem
from ...base.log import log
from ...base.paths import shorten_path
from ...config.lightning.base_classes import overrides
from ...config.schema import Config, Target
from ...core.callback_contract import CallbackContract
from ...core.state import RunState
from .lr_curve import LRCurve

_DIVERGED = 3.0
"""The loss has diverged where its average is this many times its first value above its least one."""
_FIRST = 10
"""Steps before the loss can count as diverged."""


class LRRangeTest(CallbackContract):
    """Exponentially growing learning rate, and the loss at each (Smith 2017, arXiv 1506.01186; section 3.3).

    In step t of T optimizer.lr is low (high / low)^((t - 1) / (T - 1)); what scales it (optimizer.lr_batch_size, the
    options of a parameter group) scales each of these values. The test ends where the loss has diverged.
    RUN/lr_range_test.png has the curve, RUN/lr_range_test.json what was found.

    Args:
        low: learning rate of the first step.
        high: of the last one.
        steps: optimizer steps.
        smoothing: weight of the past in the moving average of the loss.
        monitor: the metric that is drawn.
    """

    sets_learning_rates = True

    def __init__(self, low: float, high: float, steps: int, smoothing: float, monitor: str):
        self.low, self.high, self.steps = low, high, steps
        self.monitor = monitor
        self.curve = LRCurve(smoothing)
        self._reference = 0.0
        self._initial: list[float] = []
        self._ended = False

    @override
    @staticmethod
    def validate_config(config: Config, key: str, node: Target) -> Iterator[Problem]:
        """What cannot work, before anything starts."""
        given = node.arguments
        low, high = given["low"], given["high"]
        if not low > 0:
            yield Problem(f"{key}.low", "must be greater than 0", low, "low=1e-6")
        elif not high > low:
            yield Problem(f"{key}.high", f"must be greater than low, {low}", high, "high=10")
        if given["steps"] < 2 * _FIRST:
            yield Problem(f"{key}.steps", f"must be at least {2 * _FIRST}", given["steps"], "steps=200")
        if not 0 <= given["smoothing"] < 1:
            text = "must be at least 0 and less than 1"
            yield Problem(f"{key}.smoothing", text, given["smoothing"], "smoothing=0.9")
        processes = config.processes
        if processes is not None and (processes.servers or processes.simulated):
            text = "workers take steps at their own times, and have no common loss of a step"
            yield Problem("strategy", text, config.strategy.target, "strategy=ddp, whose steps are those of one worker")

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        return self.low * (self.high / self.low) ** (step / (self.steps - 1))

    @override
    def on_fit_start(self, state: RunState) -> None:
        """
        Raises:
            CannotStart: asynchronous workers.
        """
        if state.contract.ticket_source is not None:
            raise CannotStart("find lr needs workers in lockstep: strategy=ddp")
        state.tolerates_divergence = True
        # of a resumed test the groups have the rates of its last step
        self._initial = self._initial or [float(group["lr"]) for group in state.raw_optimizer.param_groups]
        self._reference = _own_rate(state) or self._initial[0]
        self._set(state)

    @override
    def on_step_end(self, state: RunState) -> None:
        """
        Raises:
            NotLogged: the task does not log the metric.
        """
        if self.monitor not in state.metrics:
            raise NotLogged("monitor", self.monitor, state.metrics)
        rate, loss = self.rate(state.step - 1), state.metrics[self.monitor]
        if math.isfinite(loss):
            average = self.curve.add(rate, loss)
            state.report({"range_test/lr": rate, "range_test/loss": average})
        if not math.isfinite(loss) or self.curve.has_diverged(_DIVERGED, _FIRST):
            self.curve.diverged_at = rate
            state.stop_reason = f"{self.monitor} diverges at learning rate {rate:.3g}"
        self._set(state)

    @override
    def on_fit_end(self, state: RunState) -> None:
        for name in [name for name, value in state.metrics.items() if not math.isfinite(value)]:
            del state.metrics[name]  # of what diverged; JSON has no NaN
        if state.step < self.steps and state.stop_reason is None:
            return  # a signal
        if state.fabric.is_global_zero and not self._ended and not state.evaluates_only:
            self._ended = True
            self._write(state)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"rates": list(self.curve.rates), "losses": list(self.curve.losses), "initial": self._initial}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._initial = state["initial"]
        for rate, loss in zip(state["rates"], state["losses"], strict=True):
            self.curve.add(rate, loss)

    def _set(self, state: RunState) -> None:
        factor = self.rate(state.step) / self._reference
        for group, initial in zip(state.raw_optimizer.param_groups, self._initial, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(factor * initial)
            else:
                group["lr"] = factor * initial

    def _write(self, state: RunState) -> None:
        found = self.curve.suggestion()
        file = state.run_dir / "lr_range_test.png"
        picture = self.curve.picture(self.monitor, found)
        with atomic_file(file, "wb") as stream:
            picture.save(stream, format="PNG")
        state.report_image("range_test/curve", picture)
        about = {"suggestion": found, "lowest": self.curve.lowest(), "diverged_at": self.curve.diverged_at,
                 "steps": len(self.curve.rates)}  # fmt: skip
        write_atomically(state.run_dir / "lr_range_test.json", json.dumps(about, indent=2) + "\n")
        name = f"{type(state.task).__name__}'s learning rate " if _decides(state) else "optimizer.lr="
        for line in _lines(about, self.monitor, name, (self.low, self.high)):
            log.info("%s", line)
        log.info("the curve: %s", shorten_path(file))


def _decides(state: RunState) -> bool:
    """Whether the task makes its own optimizer."""
    return state.config.optimizer is None or overrides(state.task, "configure_optimizers")


def _own_rate(state: RunState) -> float:
    """The learning rate as it is typed; of a task's own optimizer the one that it was made with; 0: neither."""
    rate = None
    if state.config.optimizer is not None and not _decides(state):
        rate = state.config.optimizer.arguments.get("lr")
    return float(rate or state.raw_optimizer.defaults.get("lr") or 0.0)


def _lines(about: dict[str, Any], monitor: str, name: str, between: tuple[float, float]) -> Iterator[str]:
    diverged = "" if about["diverged_at"] is None else f"; it diverges at {about['diverged_at']:.3g}"
    if about["suggestion"] is None:
        yield f"no suggestion: {monitor} falls nowhere from {between[0]:.3g} to {between[1]:.3g}{diverged}"
        return
    yield f"suggested: {name}{about['suggestion']:.2g}"
    yield f"the smoothed {monitor} falls fastest there, and is lowest at {about['lowest']:.3g}{diverged}"
