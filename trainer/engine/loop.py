"""The training loop, of workers in lockstep. Strategies are known through their contract alone.

Our own and not that of Lightning's Trainer, which resumes at no exact sample, saves inside the signal handler, and
costs several times as much a step (docs/decisions.md, docs/figures.md).

`fit` trains epochs; an `Epoch` makes steps, and logs, validates and saves between them; a step is `TrainingStep.run`.
`TicketEpoch` is the epoch of asynchronous workers.
"""

from collections.abc import Iterator
from copy import copy
from typing import ClassVar

import torch

from ..base.heartbeat import CALLBACKS, SYNCHRONIZATION, heartbeat
from ..core.batch import BadSamples, Part
from ..core.callback_contract import CallbackContract
from ..core.checkpoints.checkpoint_io import NotFinite
from ..core.communication.plain_values import all_gather_values, broadcast_value
from ..core.metric_log import NoReduction
from ..core.state import RunState
from ..core.stragglers import gather_times
from ..core.trainer_view.view import view_of
from ..runs.goodput import goodput
from . import device_memory
from .checkpoints import checkpoint
from .evaluate import validate
from .losses import how_to_go_on
from .progress import ProgressFile
from .sanity_check import sanity_check
from .schedules import advance
from .training_step import TrainingStep
from .validation_schedule import ValidationSchedule


class Stopped(Exception):
    """Training ended on request, at a step that is saved."""


class HandedOff(Exception):
    """The model goes on at another worker; nothing is saved."""


def fit(state: RunState, epoch: type["Epoch"]) -> None:
    """Train until the config's end, a callback's wish, the end of trainer.max_time, or a signal.

    Args:
        epoch: the class of its epochs.

    Raises:
        Stopped: on a signal; the checkpoint of this step is written.
        HandedOff: at the step that `state.leaves_at` names.
        NotFiniteValue: the loss is NaN or infinite, or the weights that were to be saved are.
        OSError: a checkpoint could not be written.
    """
    heartbeat.at(CALLBACKS, state.step)
    with heartbeat.phase(SYNCHRONIZATION):
        state.contract.begin_fit()
    view_of(state).training = True
    with heartbeat.phase(CALLBACKS, "the training's start"):
        state.hooks("on_fit_start")
        state.call(CallbackContract.on_fit_start)
    sanity_check(state)
    state.hooks("on_train_start")
    _begin_time(state)
    try:
        _train_and_save(state, epoch)
    except NotFinite as error:
        raise NotFinite(f"{error} at step {state.step}; {how_to_go_on(state)}") from error
    with heartbeat.phase(SYNCHRONIZATION):
        state.contract.flush_pending_updates(state.task)
    with heartbeat.phase(CALLBACKS, "the training's end"):
        state.hooks("on_train_end")
        state.hooks("on_fit_end")
    view_of(state).training = False


def _train_and_save(state: RunState, epoch: type["Epoch"]) -> None:
    """Train, until every checkpoint is complete."""
    try:
        _train(state, epoch)
    except (Stopped, HandedOff):
        checkpoint.finish(state)
        raise
    except BaseException:
        state.checkpoint_writer.finish()
        raise
    checkpoint.finish(state)


def _train(state: RunState, epoch: type["Epoch"]) -> None:
    progress = ProgressFile(state)
    with torch.autograd.set_detect_anomaly(state.config.trainer.detect_anomaly):
        while not _is_finished(state):
            if state.step == state.leaves_at:
                raise HandedOff
            epoch(state, progress).run()


def _begin_time(state: RunState) -> None:
    """Count the time of this session; a run that is resumed may have none left."""
    limit = state.time_limit
    limit.begin()
    if limit.seconds is not None and broadcast_value(limit.over, state.fabric.strategy):
        state.stop_reason = limit.reason


def _is_finished(state: RunState) -> bool:
    at_end = state.step >= state.total_steps or state.epoch >= state.config.trainer.max_epochs
    return at_end or state.stop_reason is not None


class Epoch:
    """One pass over the training data, or what a checkpoint left of it: all workers make the same steps, each on its
    share of every global batch."""

    asynchronous: ClassVar[bool] = False

    def __init__(self, state: RunState, progress: ProgressFile):
        self.state = state
        self.trainer = state.config.trainer
        self.steps = state.steps_per_epoch
        self.last_step = state.total_steps
        self.step = TrainingStep(state, self.asynchronous)
        self.losses = self.step.losses
        self.validation = ValidationSchedule.of(self.trainer, self.steps)
        self.data_ended = False
        self._logged_at = state.step
        self._pictured = False
        self._logged_times = self._interval_began = copy(state.times)
        self._on_step_end = [progress.look, *state.callback_hooks(CallbackContract.on_step_end)]

    def run(self) -> None:
        """
        Raises:
            Stopped: on a signal.
            HandedOff: the model goes on at another worker.
        """
        state = self.state
        self.stop_if_asked()  # before an epoch is announced of which nothing would be trained
        if state.stop_reason is not None:
            return
        state.set_frozen(state.epoch)
        state.log.in_step = state.in_epoch = True
        state.log.ended = False
        if state.step_in_epoch == 0:
            state.log.in_step = False
            state.hooks("on_train_epoch_start")
            state.log.in_step = True
        try:
            self.make_steps()
            self.step.clock.read()
            if state.step_in_epoch > 0 or state.stop_reason is None:
                self._end()
        except BaseException as error:
            heartbeat.enter(CALLBACKS)
            self._save_before_failing(error)
            raise
        finally:
            state.in_epoch = False

    def make_steps(self) -> None:
        """Make the epoch's steps, as far as nothing ends the training before."""
        state = self.state
        end = self.steps if state.leaves_at is None else state.leaves_at - state.step + state.step_in_epoch
        parts = iter(state.data.train_parts(state.epoch, state.step_in_epoch, end))
        while state.step_in_epoch < min(end, self.steps) and state.step < self.last_step:
            self.stop_if_asked()
            if state.stop_reason is not None:
                break
            if not self.make_step(parts):
                self.data_ended = True
                break
            if self.due_inside():
                self.validate_inside()
        if state.step == state.leaves_at and self._goes_on and state.stop_reason is None:
            self.losses.refuse_not_finite()
            self.step.clock.read()
            raise HandedOff

    def make_step(self, parts: Iterator[Part]) -> bool:
        """Make one optimizer step, log, and call the callbacks. False: the data has ended."""
        state = self.state
        samples = self.step.run(parts)
        if samples is None:
            return False
        state.samples += samples
        every = self.trainer.log_every_n_steps
        if state.step // every > self._logged_at // every:
            self.log(alone=self.asynchronous)
        for hook in self._on_step_end:
            hook(state)
        if state.copies_wanted:
            checkpoint.write_copies(state)
        if state.save_wanted:
            self.save_between_steps()
        if state.checkpoint_writer.failed:
            checkpoint.complete(state)
        self.step.clock.end()
        return True

    def save_between_steps(self) -> None:
        """Save, as a callback wants it, if all workers are at this step."""
        # at its end an epoch still has to be validated: it saves then
        if self._goes_on and not self.due_inside():
            self.save()

    def agree_on_the_end(self) -> None:
        """Make one worker's reason to stop that of all; in lockstep all have the same."""

    @property
    def _goes_on(self) -> bool:
        """Whether the epoch has steps left."""
        return self.state.step_in_epoch < self.steps and self.state.step < self.last_step

    def stop_if_asked(self) -> None:
        """Stop before the next step on a signal, or at the end of trainer.max_time."""
        state = self.state
        if state.stop_request.due(state.step, state.contract.max_step_skew, state.time_limit.over):
            self.stop()

    def due_inside(self) -> bool:
        """Whether the present step is validated though the epoch goes on."""
        state = self.state
        return (
            self.validation.due_inside(state.epoch, state.step_in_epoch, state.step)
            and state.step < self.last_step
            and state.validated_at != state.step
            and state.data.has("val")
        )

    def validate_inside(self) -> None:
        """Validate between two steps. What is saved at this step is saved after it, so that a resumption goes on."""
        validate(self.state)
        with heartbeat.phase(CALLBACKS, "a validation's end"):
            self.state.call(CallbackContract.on_validation_end)
        if self.state.save_wanted:
            self.save()

    def log(self, alone: bool = False) -> None:
        """Hand the last step's values to the loggers. The one place where training waits for the device.

        Args:
            alone: this worker's own values, if the others are at other steps.
        """
        state = self.state
        with heartbeat.phase(SYNCHRONIZATION):
            self.losses.refuse_not_finite()
            self.step.clock.read()
            self._logged_at = max(self._logged_at, state.step)
            if state.times.steps > self._logged_times.steps:
                self._interval_began = self._logged_times
            # else the same step is logged again: its interval has grown by what was sent to synchronize all workers
            values = state.log.step_values(NoReduction(state.fabric.device) if alone else state.fabric.strategy)
            own = {"lr": state.learning_rate(), "epoch": float(state.epoch)}
            own.update(state.times.since(self._interval_began))
            own.update(state.communication(self._interval_began, alone))
            own.update(self._compare_workers())
            own.update(state.contract.extra_metrics())
            own.update(device_memory.peaks(state.fabric.device))
            values.update({state.own_name(name): value for name, value in own.items()})
        self._logged_times = copy(state.times)
        with heartbeat.phase(CALLBACKS, "logging"):
            state.report(values)
            if state.fabric.is_global_zero:
                state.report_histograms(state.contract.histograms())

    def _compare_workers(self) -> dict[str, float]:
        """The slowest of workers in lockstep; those of asynchronous ones do not wait for each other."""
        state, before = self.state, self._logged_times
        steps = state.times.steps - before.steps
        if self.asynchronous or state.fabric.world_size == 1 or not steps:
            return {}
        times = gather_times(state.fabric, state.times, before)
        return state.stragglers.add(times, state.fabric.global_rank, steps, state.step)

    def save(self) -> None:
        """Write the checkpoint of this step. Every worker must call it."""
        with heartbeat.phase(SYNCHRONIZATION):
            self.losses.refuse_not_finite()
            self.step.clock.read()
        self.state.save_wanted = False
        checkpoint.save(self.state)

    def stop(self) -> None:
        """End at this step, which all workers have come to: saved as it is, so that a resumption goes on from it.

        Raises:
            Stopped: on a signal. The end of trainer.max_time ends the training as an early stop does.
        """
        state = self.state
        self.step.clock.read()
        limited = state.time_limit.seconds is not None
        signal = (
            state.stop_request.agreed_signal(all_gather_values) if limited else state.stop_request.received_signal()
        )
        self.save()
        if signal is not None:
            raise Stopped
        state.stop_reason = state.time_limit.reason

    def _save_before_failing(self, error: BaseException) -> None:
        """Save if a sample cannot be read: between two steps one worker alone can."""
        alone = self.state.fabric.world_size == 1
        if isinstance(error, BadSamples) and alone and self.state.step > 0 and not self.step.incomplete:
            self.save()
            checkpoint.complete(self.state)

    def _end(self) -> None:
        """Validation, epoch values, schedules by epoch, and the callbacks' hooks at an epoch's end."""
        state = self.state
        if self.asynchronous or self.losses.unchecked:
            self.log()
        complete = self.data_ended or state.step_in_epoch >= self.steps
        if complete:
            state.loss_watch.end_epoch(state.task)
        seen_by_callbacks = state.validated_at == state.step  # validated inside the epoch, which then was to end
        ends = state.step >= self.last_step or (state.stop_reason is not None and not complete)
        due = ends or self.validation.due_at_end(state.epoch, state.step_in_epoch, state.step)
        if due and state.data.has("val") and not seen_by_callbacks:
            validate(state)
        self._report_epoch()
        for entry in state.schedules:
            if complete and entry.interval == "epoch" and (state.epoch + 1) % entry.frequency == 0:
                advance(state, entry)
        if complete:
            state.epoch += 1
            state.step_in_epoch = 0
        with heartbeat.phase(CALLBACKS, "an epoch's end"):
            if state.validated_at == state.step and not seen_by_callbacks:
                state.call(CallbackContract.on_validation_end)
            state.call(CallbackContract.on_epoch_end)
        if state.save_wanted:
            self.save()
        if state.copies_wanted:
            checkpoint.write_copies(state)

    def _report_epoch(self) -> None:
        """Means over the epoch, of all workers, to the loggers."""
        state = self.state
        with heartbeat.phase(SYNCHRONIZATION):
            state.data.share_bad_samples(state.fabric)
        state.log.in_step, state.log.ended = False, True
        with heartbeat.phase(CALLBACKS, "an epoch's means"):
            state.hooks("on_train_epoch_end")
        with heartbeat.phase(SYNCHRONIZATION, "an epoch's means"):
            values = state.log.epoch_values(state.fabric.strategy)
            values[state.own_name("epoch")] = float(state.epoch)
            good = goodput([*state.earlier_sessions, state.session_record()]) if state.fabric.is_global_zero else None
            state.report(values if good is None else {**values, state.own_name("time/goodput"): good.share})
            self.agree_on_the_end()
        state.log.entries.clear()
        if not self._pictured and state.fabric.loggers:
            self._pictured = True
            pictures = state.contract.pictures()
            if state.fabric.is_global_zero:
                for name, picture in pictures.items():
                    state.report_image(name, picture)
