"""The one training loop. Strategies are known through their contract alone."""

from collections.abc import Iterator
from copy import copy
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from . import checkpoint
from .data import BadSamples, Part
from .evaluation import run_step, untouched_metrics, validate, view_of
from .lightning_module import ScheduleEntry, batch_transfer, positional
from .log import log
from .metric_log import Alone
from .progress_file import ProgressFile
from .pulse import BACKWARD, CALLBACKS, DATA, FORWARD, MEETING, UPDATE, pulse
from .sanity_check import sanity_check
from .state import RunState
from .strategies.turns_protocol import Turns
from .validation_schedule import ValidationSchedule


class Stopped(Exception):
    """Training ended on request, at a step that is saved."""


class Left(Exception):
    """The model goes on at another worker; nothing is saved."""


def fit(state: RunState) -> None:
    """Train until the config's end, a callback's wish, the end of trainer.max_time, or a signal.

    Raises:
        Stopped: on a signal; the checkpoint of this step is written.
        Left: at the step that `state.leaves_at` names.
        FloatingPointError: the loss is NaN or infinite.
    """
    pulse.at(MEETING, state.step)
    state.contract.begin_fit()
    pulse.at(CALLBACKS, state.step)
    state.hooks("on_fit_start")
    state.call("on_fit_start")
    sanity_check(state)
    state.hooks("on_train_start")
    _begin_time(state)
    progress = ProgressFile(state)
    with torch.autograd.set_detect_anomaly(state.config.trainer.detect_anomaly):
        while not _finished(state):
            if state.step == state.leaves_at:
                raise Left
            Epoch(state, progress).train()
    pulse.at(MEETING, state.step)
    state.contract.settle(state.task)
    pulse.at(CALLBACKS, state.step)
    state.hooks("on_train_end")
    state.hooks("on_fit_end")


def _begin_time(state: RunState) -> None:
    """Count the time of this session; a run that is resumed may have none left."""
    limit = state.time_limit
    limit.begin()
    if limit.seconds is not None and state.fabric.broadcast(limit.over):
        state.stop_reason = limit.reason


def _finished(state: RunState) -> bool:
    trainer = state.config.trainer
    at_end = state.step >= state.total_steps or state.epoch >= trainer.max_epochs
    return at_end or state.stop_reason is not None


class Epoch:
    """One pass over the training data, or what a checkpoint left of it."""

    def __init__(self, state: RunState, progress: ProgressFile):
        self.state = state
        self.trainer = state.config.trainer
        self.losses: list[Tensor] = []
        self.first_loss_step = state.step + 1
        self.logged_times = copy(state.times)
        self.step_end = [progress.look, *(c.on_step_end for c in state.callbacks.values() if hasattr(c, "on_step_end"))]
        self.takes_batch_idx = positional(state.task.training_step) > 1
        self.transfer = batch_transfer(state)
        self.batch_idx = state.step_in_epoch * self.trainer.accumulate_grad_batches
        self.output: Any = None
        self.loss: Any = None
        self.in_step = False
        self.no_sync = getattr(state.fabric.strategy, "_backward_sync_control", None) is not None
        self.ledger = state.contract.ledger
        self.begin_part = state.contract.part_hook()
        self.zeroed = False
        # Where a hook looks at the gradients they are zeroed as in Lightning, after the forward; else before it, which
        # takes less memory. A strategy that is told of each part may compute gradients in the forward.
        self.zeroes_late = bool(state.hooks.find("on_before_zero_grad")) and self.begin_part is None
        self.turns = state.contract.turns
        self.data_ended = False
        self.logged_at = state.step
        self.steps = state.steps_per_epoch
        self.last_step = state.total_steps
        self.validation = ValidationSchedule.of(self.trainer, self.steps)

    def train(self) -> None:
        state = self.state
        if self.turns is None:
            self._stop_if_asked()  # before an epoch is announced of which nothing would be trained
            if state.stop_reason is not None:
                return
        state.log.in_step = True
        view_of(state).training = True
        if state.step_in_epoch == 0:
            state.log.in_step = False
            state.hooks("on_train_epoch_start")
            state.log.in_step = True
        try:
            while self._stretch():
                pass
            if state.step_in_epoch > 0 or state.stop_reason is None:
                self._end()
        except ValueError as error:
            self._save_before_failing(error)
            raise
        finally:
            view_of(state).training = False

    def _stretch(self) -> bool:
        """Train until all workers have to meet. Whether the epoch goes on after it."""
        if self.turns is not None:
            return self._by_own_clocks(self.turns)
        state = self.state
        end = self.steps if state.leaves_at is None else state.leaves_at - state.step + state.step_in_epoch
        parts = iter(state.data.train_parts(state.epoch, state.step_in_epoch, end))
        while state.step_in_epoch < min(end, self.steps) and state.step < self.last_step:
            self._stop_if_asked()
            if state.stop_reason is not None:
                break
            if not self._step(parts):
                self.data_ended = True
                break
            if self._due_inside():
                self._validate_inside()
        going_on = state.step_in_epoch < self.steps and state.step < self.last_step and state.stop_reason is None
        if state.step == state.leaves_at and going_on:
            self._refuse_not_finite()
            raise Left
        return False

    def _by_own_clocks(self, turns: Turns) -> bool:
        """Train on what this worker's tickets name, until the counter calls a meeting, of all at the same step."""
        state = self.state
        first = state.step_in_epoch
        validated = state.validated_at == state.step or not state.data.has("val")
        until_validation = self.validation.steps_to_next(state.epoch, first, state.step, validated)
        end = first + min(until_validation, self.last_step - state.step)
        pulse.at(MEETING, state.step)
        turns.begin(state.epoch, first, end, state.step)
        epoch_began = state.step - first
        samples = state.samples
        meeting = None
        while meeting is None:
            self._train_tickets(turns)
            pulse.at(MEETING, state.step)
            _, sent, between_nodes = self._counted()
            pulse.at(MEETING, state.step)
            meeting = turns.meet()
            state.times.sent += self._counted()[1] - sent
            state.times.sent_between_nodes += self._counted()[2] - between_nodes
        self._advance_to(epoch_began + turns.round())
        state.samples = samples + state.data.samples_of(state.epoch, first, state.step_in_epoch)
        if meeting == "stop":
            self._stop()
            return False
        if meeting == "save":
            self._save()
        elif state.step_in_epoch >= self.steps or state.step >= self.last_step:
            return False
        elif self._due_inside():
            self._validate_inside()
        self._agree_on_the_end()
        return state.stop_reason is None

    def _agree_on_the_end(self) -> None:
        """Asynchronous workers ask to stop at steps of their own: where all meet, what one asks for holds for all."""
        state = self.state
        if self.turns is None or state.fabric.world_size == 1:
            return
        reasons: list[str | None] = [None] * state.fabric.world_size
        torch.distributed.all_gather_object(reasons, state.stop_reason)
        state.stop_reason = next((reason for reason in reasons if reason is not None), None)

    def _train_tickets(self, turns: Turns) -> None:
        """As long as there are any for this worker."""
        state = self.state
        parts = state.data.ticket_parts(state.epoch, turns.numbers(), turns.reads_ahead)
        while self._step(parts):
            turns.trained()
            if state.stop_request.signal is not None or state.time_limit.over:
                turns.ask("stop")
            elif state.save_wanted:
                turns.ask("save")

    def _step(self, parts: Iterator[Part]) -> bool:
        """One optimizer step. False when the data has ended."""
        state, times = self.state, self.state.times
        began = perf_counter()
        waited, sent, between_nodes = self._counted()
        data = 0.0
        trained = 0
        self.zeroed = False
        if not self.zeroes_late:
            self._zero_grad()
        while True:
            pulse.at(DATA, state.step)
            before, waited_before = perf_counter(), self._counted()[0]
            part = next(parts, None)
            if part is None:
                return False
            batch = self.transfer(part.batch)
            data += perf_counter() - before - (self._counted()[0] - waited_before)
            trained += self._forward_backward(batch, part)
            if part.ends_step:
                self._update(part)
            self._batch_end(batch)
            if part.ends_step:
                break
        computed = perf_counter()
        now_waited, now_sent, now_between_nodes = self._counted()
        communication = now_waited - waited
        times.sent += now_sent - sent
        times.sent_between_nodes += now_between_nodes - between_nodes
        times.data += data
        times.communication += communication
        times.compute += computed - began - data - communication
        times.total += computed - began
        times.steps += 1
        times.samples += trained
        self._count(trained)
        times.total += perf_counter() - computed
        return True

    def _zero_grad(self) -> None:
        self.zeroed = True
        self.state.hooks("on_before_zero_grad", self.state.raw_optimizer)
        self.state.raw_optimizer.zero_grad(set_to_none=True)

    def _counted(self) -> tuple[float, float, float]:
        """Seconds waited for the network, bytes sent, and what of them left the node, since the start."""
        ledger = self.ledger
        return (0.0, 0.0, 0.0) if ledger is None else (ledger.exposed_seconds, ledger.bytes, ledger.inter_node_bytes)

    def _forward_backward(self, batch: Any, part: Part) -> int:
        """Gradients of one part; returns the samples that it stands for over all workers."""
        state = self.state
        pulse.at(FORWARD, state.step)
        self.in_step = True
        state.log.samples = part.samples
        state.sample_keys.set(part.keys)
        if self.begin_part is not None:
            self.begin_part(part)
        if self.no_sync and not part.ends_step:
            # around the forward as well: that is where DDP decides whether this backward is averaged
            with state.fabric.no_backward_sync(state.module):  # pyright: ignore[reportArgumentType]
                self._gradients(batch, part)
        else:
            self._gradients(batch, part)
        return part.all_samples

    def _gradients(self, batch: Any, part: Part) -> None:
        state = self.state
        index = self.batch_idx
        state.hooks("on_train_batch_start", batch, index)
        if part.samples == 0:
            with untouched_metrics(state):
                loss = self._loss(batch, index)
        else:
            loss = self._loss(batch, index)
            self.losses.append(loss.detach())
        if not self.zeroed:
            self._zero_grad()
        scaled = loss if part.weight == 1.0 else loss * part.weight
        self.loss = scaled
        pulse.at(BACKWARD, state.step)
        state.hooks("on_before_backward", scaled)
        state.fabric.backward(scaled)
        state.hooks("on_after_backward")

    def _batch_end(self, batch: Any) -> None:
        """The hook sees the weights after the step, if this part has ended one."""
        if self.state.hooks.find("on_train_batch_end"):
            more = self.output if isinstance(self.output, dict) else {}
            self.state.hooks("on_train_batch_end", {**more, "loss": self.loss.detach()}, batch, self.batch_idx)
        self.batch_idx += 1
        self.loss = self.output = None

    def _loss(self, batch: Any, index: int) -> Tensor:
        arguments = (batch, index) if self.takes_batch_idx else (batch,)
        self.output = output = run_step(self.state, "training_step", *arguments)
        loss = output.get("loss") if isinstance(output, dict) else output
        if not isinstance(loss, Tensor):
            raise TypeError(
                f"{type(self.state.task).__name__}.training_step must return the loss (a tensor, or a dict with "
                f"'loss'), not {type(loss).__name__}"
            )
        # a reduced precision would round the part's weight
        return loss.float() if loss.dtype in (torch.bfloat16, torch.float16) else loss

    def _update(self, part: Part) -> None:
        state = self.state
        pulse.at(UPDATE, state.step)
        before, after = (state.step_in_epoch, state.step_in_epoch + 1) if part.rounds is None else part.rounds
        epoch_began = state.step - state.step_in_epoch
        self._advance_to(epoch_began + before)
        state.hooks("on_before_optimizer_step", state.raw_optimizer)
        if self.trainer.gradient_clip_val is not None:
            state.contract.clip(
                state.module, state.optimizer, self.trainer.gradient_clip_val, self.trainer.gradient_clip_algorithm
            )
        state.optimizer.step()
        self._advance_to(epoch_began + after)

    def _advance_to(self, step: int) -> None:
        """Count steps, and move the schedules that do."""
        state = self.state
        while state.step < step:
            for entry in state.schedules:
                if entry.interval == "step" and (state.step + 1) % entry.frequency == 0:
                    _advance(state, entry)
            state.step += 1
            state.step_in_epoch += 1

    def _count(self, trained: int) -> None:
        state = self.state
        state.samples += trained
        self.in_step = False
        pulse.at(CALLBACKS, state.step)
        every = self.trainer.log_every_n_steps
        if state.step // every > self.logged_at // every:
            self._log()
        for hook in self.step_end:
            hook(state)
        # At its end an epoch still has to be judged: it saves then.
        if (
            self.turns is None
            and state.save_wanted
            and state.step_in_epoch < self.steps
            and state.step < self.last_step
            and not self._due_inside()
        ):
            self._save()

    def _due_inside(self) -> bool:
        """Whether the present step is validated though the epoch goes on."""
        state = self.state
        return (
            self.validation.due_inside(state.epoch, state.step_in_epoch, state.step)
            and state.step < self.last_step
            and state.validated_at != state.step
            and state.data.has("val")
        )

    def _validate_inside(self) -> None:
        """Validation between two steps. What is saved at this step is saved after it, so that a resumption goes on."""
        state = self.state
        if self.turns is not None:
            self._log(meeting=True)
        pulse.at(MEETING, state.step)
        validate(state)
        pulse.at(CALLBACKS, state.step)
        state.call("on_validation_end")
        if state.save_wanted:
            self._save()

    def _log(self, meeting: bool = False) -> None:
        """Hand the last step's values to the loggers. The one place where training waits for the device.

        Workers that go by their own clocks log by themselves, but where all meet.
        """
        pulse.at(MEETING, self.state.step)
        self._refuse_not_finite()
        state = self.state
        self.logged_at = max(self.logged_at, state.step)
        alone = self.turns is not None and not meeting
        values = state.log.step_values(Alone(state.fabric.device) if alone else state.fabric.strategy)
        values["lr"] = state.learning_rate()
        values["epoch"] = float(state.epoch)
        values.update(state.times.since(self.logged_times))
        values.update(state.communication(self.logged_times, alone))
        values.update(state.contract.measured())
        pulse.at(CALLBACKS, state.step)
        self.logged_times = copy(state.times)
        state.report(values)
        if state.fabric.is_global_zero:
            state.report_histograms(state.contract.histograms())

    def _refuse_not_finite(self) -> None:
        """
        Raises:
            FloatingPointError: a loss since the last look is NaN or infinite.
        """
        first, self.first_loss_step = self.first_loss_step, self.state.step + 1
        if not self.losses:  # stand-ins only
            return
        losses = torch.stack(self.losses).flatten()
        finite = torch.isfinite(losses)
        if not bool(finite.all()):
            parts = max(1, round(len(losses) / max(1, self.state.step - first + 1)))
            position = int((~finite).nonzero()[0])
            step = first + position // parts
            raise FloatingPointError(
                f"the loss is {losses[position].item()} at step {step}, learning rate {self.state.learning_rate():.3g}"
            )
        self.losses.clear()

    def _stop_if_asked(self) -> None:
        state = self.state
        if state.stop_request.due(state.step, state.contract.lead(), state.time_limit.over):
            self._stop()

    def _stop(self) -> None:
        """End at this step, which all workers have come to: saved as it is, so that a resumption goes on from it.

        Raises:
            Stopped: on a signal. The end of trainer.max_time ends the training as an early stop does.
        """
        state = self.state
        limited = state.time_limit.seconds is not None
        signal = state.stop_request.agreed() if limited else state.stop_request.told()
        self._save()
        if signal is not None:
            raise Stopped
        state.stop_reason = state.time_limit.reason

    def _save_before_failing(self, error: ValueError) -> None:
        """Between two steps nothing is half done: one worker alone can still save what it has."""
        alone = self.state.fabric.world_size == 1
        if isinstance(error, BadSamples) and alone and self.state.step > 0 and not self.in_step:
            self._save()

    def _end(self) -> None:
        """Validation, epoch values, schedules by epoch, and the callbacks' turn."""
        state = self.state
        if self.turns is not None or self.first_loss_step <= state.step:
            self._log(meeting=True)
        complete = self.data_ended or state.step_in_epoch >= self.steps
        seen_by_callbacks = state.validated_at == state.step  # validated inside the epoch, which then was to end
        ends = state.step >= self.last_step or (state.stop_reason is not None and not complete)
        due = ends or self.validation.due_at_end(state.epoch, state.step_in_epoch, state.step)
        if due and state.data.has("val") and not seen_by_callbacks:
            validate(state)
        pulse.at(MEETING, state.step)
        state.data.share_bad_samples(state.fabric)
        pulse.at(CALLBACKS, state.step)
        state.log.in_step = False
        state.hooks("on_train_epoch_end")
        pulse.at(MEETING, state.step)
        state.report({**state.log.epoch_values(state.fabric.strategy), "epoch": float(state.epoch)})
        self._agree_on_the_end()
        pulse.at(CALLBACKS, state.step)
        state.log.entries.clear()
        for entry in state.schedules:
            if complete and entry.interval == "epoch" and (state.epoch + 1) % entry.frequency == 0:
                _advance(state, entry)
        if complete:
            state.epoch += 1
            state.step_in_epoch = 0
        if state.validated_at == state.step and not seen_by_callbacks:
            state.call("on_validation_end")
        state.call("on_epoch_end")
        if state.save_wanted:
            self._save()

    def _save(self) -> None:
        pulse.at(MEETING, self.state.step)
        self._refuse_not_finite()
        self.state.save_wanted = False
        checkpoint.save(self.state)


def _advance(state: RunState, entry: ScheduleEntry) -> None:
    value = None
    if entry.monitor is not None:
        names = (entry.monitor, f"{entry.monitor}_epoch")  # the latter where it is logged by step as well
        name = next((name for name in names if name in state.metrics), None)
        if name is None:
            known = ", ".join(sorted(state.metrics)) or "none yet"
            message = f"schedule.monitor={entry.monitor!r} was never logged; logged so far: {known}"
            if entry.strict:
                raise ValueError(message)
            log.warning("%s: the learning rate stays", message)
            return
        value = torch.tensor(state.metrics[name])
    state.task.lr_scheduler_step(entry.scheduler, value)
