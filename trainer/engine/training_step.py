"""One optimizer step: data, forward and backward of each part, update."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..base.heartbeat import BACKWARD, CALLBACKS, DATA, FORWARD, UPDATE, heartbeat
from ..base.log import log
from ..core.batch import Part
from ..core.callback_contract import CallbackContract
from ..core.configure_optimizers import ScheduleEntry
from ..core.hooks import positional
from ..core.lightning_adapter import batch_transfer
from ..core.lightning_compat import can_skip_sync
from ..core.metric_log import NoReduction
from ..core.state import RunState
from ..core.sync_batchnorm import statistics_kept
from .gradients import Gradients
from .losses import Losses
from .network.compilation import own_gradients, uses_cuda_graphs
from .part_draws import PartDraws, run_watched
from .schedules import advance
from .step_clock import StepClock
from .step_module import backward_runner, step_runner, steps_unwrapped, untouched_metrics

_REDUCED = (torch.bfloat16, torch.float16)


class TrainingStep:
    """The steps of one epoch, made one after the other.

    Args:
        asynchronous: workers make steps of their own, and nothing in a step may wait for another worker.

    Attributes:
        batch_idx: of the next batch in the epoch.
        incomplete: whether a step was begun and has not been made.
    """

    def __init__(self, state: RunState, asynchronous: bool):
        self._state = state
        self._trainer = state.config.trainer
        self._asynchronous = asynchronous
        self.losses = Losses(state)
        self._gradients = Gradients(state, asynchronous)
        self.clock = StepClock(state.times, state.contract.ledger, state.fabric.device)
        self.batch_idx = state.step_in_epoch * self._trainer.accumulate_grad_batches
        state.batch_idx = self.batch_idx - 1
        self.incomplete = False
        self._on_batch = state.callback_hooks(CallbackContract.on_train_batch)
        self._takes_batch_idx = positional(state.task.training_step) > 1
        self._transfer = batch_transfer(state)
        self._draws = PartDraws(state)
        self._can_skip_sync = can_skip_sync(state.fabric.strategy)
        hooks = state.hooks
        self._on_batch_start = hooks.bind_hook("on_train_batch_start")
        self._on_batch_end = hooks.bind_hook("on_train_batch_end")
        self._before_backward = hooks.bind_hook("on_before_backward")
        self._after_backward = hooks.bind_hook("on_after_backward")
        self._before_zero_grad = hooks.bind_hook("on_before_zero_grad")
        self._before_optimizer_step = hooks.bind_hook("on_before_optimizer_step")
        # If a hook reads the gradients they are zeroed as in Lightning, after the forward; else before it, which takes
        # less memory.
        self._zeroes_late = self._before_zero_grad is not None and not state.contract.gradients_in_forward
        self._zeroed = self._has_gradients = False
        self._optimizer = state.raw_optimizer
        self._zeroes_as_torch = type(self._optimizer).zero_grad is Optimizer.zero_grad
        self._run = step_runner(state)
        self._run_backward = backward_runner(state.fabric.strategy)
        # bound at each step: schedules replace an optimizer's step by one that counts
        self._stepped_optimizer = self._optimizer if steps_unwrapped(state.fabric.strategy) else state.optimizer
        self._replays_graphs = uses_cuda_graphs(self._trainer.compile, state.fabric.device)
        self._output: Any = None
        self._loss: Tensor | None = None

    def run(self, parts: Iterator[Part]) -> int | None:
        """Make a step. Returns its samples over all workers; None: the data has ended.

        An error leaves the heartbeat in the phase that it was raised in.
        """
        state, clock = self._state, self.clock
        clock.begin()
        state.log.begin_step()
        self._zeroed = self._has_gradients = False
        if not self._zeroes_late:
            self._zero_grad()
        samples = 0
        while True:
            heartbeat.enter(DATA)
            clock.begin_data()
            part = next(parts, None)
            if part is None:
                clock.no_step()
                heartbeat.enter(CALLBACKS)
                return None
            batch = self._transfer(part.batch)
            clock.end_data()
            heartbeat.enter(FORWARD)
            self._compute_gradients(batch, part)
            samples += part.all_samples
            if part.ends_step:
                heartbeat.enter(UPDATE)
                self._update(part)
            heartbeat.enter(CALLBACKS)
            self._end_batch(batch)
            if part.ends_step:
                clock.end_update(samples)
                self.incomplete = False
                return samples

    def advance_to(self, step: int) -> None:
        """Count optimizer steps, and advance the schedules that are due at them."""
        state = self._state
        while state.step < step:
            for entry in state.schedules:
                batch = state.step_in_epoch if self._asynchronous else state.batch_idx
                if entry.due(state.step + 1, batch + 1):
                    advance(state, entry, self._just_logged(entry))
            state.step += 1
            state.step_in_epoch += 1
            heartbeat.step = state.step

    def _compute_gradients(self, batch: Any, part: Part) -> None:
        """Gradients of one part, added to those of the parts before."""
        state = self._state
        self.incomplete = True
        state.log.begin_part(part.samples)
        state.sample_keys.set(part.keys)
        state.padding.now = part.samples == 0
        self._draws.begin(part, state.epoch, self.batch_idx)
        state.contract.begin_part(part)
        # gradients are averaged over workers in the backward of a step's last part alone
        if part.ends_step or not self._can_skip_sync:
            self._forward_and_backward(batch, part)
            return
        # around the forward as well: that is where DDP decides whether this backward is averaged
        with state.fabric.no_backward_sync(state.module):  # pyright: ignore[reportArgumentType]
            self._forward_and_backward(batch, part)

    def _forward_and_backward(self, batch: Any, part: Part) -> None:
        state = self._state
        state.batch_idx = self.batch_idx
        for hook in self._on_batch:
            hook(state, batch)
        if self._on_batch_start is not None:
            self._on_batch_start(batch, self.batch_idx)
        if part.samples:
            loss = self._forward(batch)
            self.losses.add(loss)
            self._backward(loss, part)
            return
        with _nothing_counts(state):
            self._backward(self._forward(batch), part)

    def _forward(self, batch: Any) -> Tensor | None:
        """The batch's loss; None: the task skips the batch, which one worker alone can do.

        Raises:
            RuntimeError: a batch is skipped by one of several workers.
            TypeError: the task returned something else.
        """
        arguments = (batch, self.batch_idx) if self._takes_batch_idx else (batch,)
        if self._replays_graphs:
            torch.compiler.cudagraph_mark_step_begin()
        if self._state.drawing is None:
            output = run_watched(self._state, "training_step", *arguments)
        else:
            output = self._run("training_step", *arguments)
        self._output = output
        loss = output.get("loss") if isinstance(output, dict) else output
        if output is None:
            self._refuse_to_skip()
            self._state.loss_watch.skip(self._state.task)
            return None
        if not isinstance(loss, Tensor):
            step, kind = f"{type(self._state.task).__name__}.training_step", type(loss).__name__
            raise TypeError(f"{step} must return the loss (a tensor, or a dict with 'loss') or None, not {kind}")
        self._state.loss_watch.add()
        # a reduced precision would round the part's weight
        return loss.float() if loss.dtype in _REDUCED else loss

    def _refuse_to_skip(self) -> None:
        step = f"{type(self._state.task).__name__}.training_step"
        if self._state.config.topology.workers > 1 or self._asynchronous:
            raise RuntimeError(
                f"{step} returned None to skip a batch, which one synchronous worker alone can do: others would wait "
                "for its gradients; return a loss of 0 times the network's output instead"
            )
        if not self._state.skips_batches:
            log.info("%s returned None: the batch is skipped (said once)", step)
        self._state.skips_batches = True

    def _backward(self, loss: Tensor | None, part: Part) -> None:
        if not self._zeroed:
            self._zero_grad()
        if loss is None:
            return
        state = self._state
        self._loss = scaled = loss if part.weight == 1.0 else loss * part.weight
        heartbeat.enter(BACKWARD)
        self.clock.begin_backward()
        if self._before_backward is not None:
            self._before_backward(scaled)
        self._has_gradients = True
        self._run_backward(scaled)
        if self._replays_graphs and (self._zeroes_late or not part.ends_step):
            own_gradients(state.task.parameters())
        if self._after_backward is not None:
            self._after_backward()
        self.clock.end_backward()

    def _zero_grad(self) -> None:
        self._zeroed = True
        if self._before_zero_grad is not None:
            self._before_zero_grad(self._optimizer)
        if not self._zeroes_as_torch:
            self._optimizer.zero_grad(set_to_none=True)
            return
        # what torch's own does, but for a mark in its profiles that takes as long as a small layer's forward
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def _update(self, part: Part) -> None:
        state = self._state
        before, after = (state.step_in_epoch, state.step_in_epoch + 1) if part.rounds is None else part.rounds
        epoch_began = state.step - state.step_in_epoch
        self.advance_to(epoch_began + before)
        self.losses.begin_update()
        if self._before_optimizer_step is not None:
            self._before_optimizer_step(self._optimizer)
        self._gradients.forget_norm()
        if self._has_gradients:
            self._gradients.clip(epoch_began + after)
        # As in Lightning: a step whose batches were all skipped counts, for schedules, too. Without gradients the
        # optimizer changes nothing, and a loss scaler refuses to step.
        if self._has_gradients or getattr(state.fabric.strategy.precision, "scaler", None) is None:
            self._stepped_optimizer.step()
        self.advance_to(epoch_began + after)

    def _just_logged(self, entry: ScheduleEntry) -> dict[str, float]:
        """Metrics of the step, if a schedule monitors one: over all workers, or their rates would differ."""
        if entry.monitor is None:
            return {}
        state = self._state
        reduction = NoReduction(state.fabric.device) if self._asynchronous else state.fabric.strategy
        return state.log.step_values(reduction)

    def _end_batch(self, batch: Any) -> None:
        """The hook sees the weights after the step, if this part has ended one."""
        if self._on_batch_end is not None:
            more = self._output if isinstance(self._output, dict) else {}
            outputs = {} if self._loss is None else {**more, "loss": self._loss.detach()}
            self._on_batch_end(outputs, batch, self.batch_idx)
        self.batch_idx += 1
        self._loss = self._output = None


@contextmanager
def _nothing_counts(state: RunState) -> Iterator[None]:
    """Context in which neither metrics nor statistics of batch normalization take a batch in, for a dummy batch."""
    with untouched_metrics(state.task), statistics_kept(state.task):
        yield
