"""The one training loop. Strategies are known through their contract alone."""

from collections.abc import Iterator
from copy import copy
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from . import checkpoint
from .data import BadSamples, Part
from .errors import NotLogged
from .evaluation import run_step, untouched_metrics, validate, view_of
from .lightning_module import ScheduleEntry, batch_transfer, positional
from .log import log
from .metric_log import Alone
from .part_draws import PartDraws, run_watched
from .progress_file import ProgressFile
from .pulse import BACKWARD, CALLBACKS, DATA, FORWARD, MEETING, UPDATE, pulse
from .sanity_check import sanity_check
from .state import RunState
from .strategies.turns_protocol import Turns
from .sync_batchnorm import statistics_kept
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
    view_of(state).training = True
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
    view_of(state).training = False


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
        self.losses_of: list[tuple[int, Any]] = []
        """Of each of them: the optimizer step, counted from 1, and the learning rate that this step was made with."""
        self.first_loss_step = state.step + 1
        self.logged_times = self.interval_began = copy(state.times)
        self.step_end = [progress.look, *(c.on_step_end for c in state.callbacks.values() if hasattr(c, "on_step_end"))]
        self.on_batch = [c.on_train_batch for c in state.callbacks.values() if hasattr(c, "on_train_batch")]
        self.takes_batch_idx = positional(state.task.training_step) > 1
        self.transfer = batch_transfer(state)
        self.batch_idx = state.step_in_epoch * self.trainer.accumulate_grad_batches
        state.batch_idx = self.batch_idx - 1
        self.output: Any = None
        self.loss: Any = None
        self.in_step = self.has_gradients = False
        self.no_sync = getattr(state.fabric.strategy, "_backward_sync_control", None) is not None
        self.ledger = state.contract.ledger
        self.begin_part = state.contract.part_hook()
        self.draws = PartDraws(state)
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
        state.log.in_step = state.in_epoch = True
        state.log.ended = False
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
            state.in_epoch = False

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
        state.log.begin_step()
        self.zeroed = self.has_gradients = False
        if not self.zeroes_late:
            self._zero_grad()
        while True:
            pulse.at(DATA, state.step)
            before, waited_before = perf_counter(), self._counted()[0]
            part = next(parts, None)
            if part is None:
                times.sent += self._counted()[1] - sent
                times.sent_between_nodes += self._counted()[2] - between_nodes
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
        state.log.begin_part(part.samples)
        state.sample_keys.set(part.keys)
        state.padding.now = part.samples == 0
        self.draws.begin(part, state.epoch, self.batch_idx)
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
        index = state.batch_idx = self.batch_idx
        for hook in self.on_batch:
            hook(state, batch)
        state.hooks("on_train_batch_start", batch, index)
        if part.samples == 0:
            with untouched_metrics(state), statistics_kept(state.task):
                self._backward(self._loss(batch, index), part)
        else:
            loss = self._loss(batch, index)
            self.losses.append(torch.zeros((), device=state.fabric.device) if loss is None else loss.detach())
            self._backward(loss, part)

    def _backward(self, loss: Tensor | None, part: Part) -> None:
        """Gradients of a loss; None where the task skips the batch."""
        if not self.zeroed:
            self._zero_grad()
        if loss is None:
            return
        state = self.state
        self.loss = scaled = loss if part.weight == 1.0 else loss * part.weight
        pulse.at(BACKWARD, state.step)
        state.hooks("on_before_backward", scaled)
        self.has_gradients = True
        state.fabric.backward(scaled)
        state.hooks("on_after_backward")

    def _batch_end(self, batch: Any) -> None:
        """The hook sees the weights after the step, if this part has ended one."""
        if self.state.hooks.find("on_train_batch_end"):
            more = self.output if isinstance(self.output, dict) else {}
            outputs = {} if self.loss is None else {**more, "loss": self.loss.detach()}
            self.state.hooks("on_train_batch_end", outputs, batch, self.batch_idx)
        self.batch_idx += 1
        self.loss = self.output = None

    def _loss(self, batch: Any, index: int) -> Tensor | None:
        """The batch's loss; None: the task skips the batch, which one worker alone can do.

        Raises:
            RuntimeError: a batch is skipped by one of several workers.
            TypeError: the task returned something else.
        """
        arguments = (batch, index) if self.takes_batch_idx else (batch,)
        run = run_step if self.state.drawing is not None else run_watched
        self.output = output = run(self.state, "training_step", *arguments)
        loss = output.get("loss") if isinstance(output, dict) else output
        step = f"{type(self.state.task).__name__}.training_step"
        if output is None:
            self._refuse_to_skip(step)
            return None
        if not isinstance(loss, Tensor):
            kind = type(loss).__name__
            raise TypeError(f"{step} must return the loss (a tensor, or a dict with 'loss') or None, not {kind}")
        # a reduced precision would round the part's weight
        return loss.float() if loss.dtype in (torch.bfloat16, torch.float16) else loss

    def _refuse_to_skip(self, step: str) -> None:
        if self.state.config.topology.workers > 1 or self.turns is not None:
            raise RuntimeError(
                f"{step} returned None to skip a batch, which one synchronous worker alone can do: others would wait "
                "for its gradients; return a loss of 0 times the network's output instead"
            )
        if not self.state.skips_batches:
            log.info("%s returned None: the batch is skipped (said once)", step)
        self.state.skips_batches = True

    def _update(self, part: Part) -> None:
        state = self.state
        pulse.at(UPDATE, state.step)
        before, after = (state.step_in_epoch, state.step_in_epoch + 1) if part.rounds is None else part.rounds
        epoch_began = state.step - state.step_in_epoch
        self._advance_to(epoch_began + before)
        self._note_rate()
        state.hooks("on_before_optimizer_step", state.raw_optimizer)
        if self.has_gradients and self.trainer.gradient_clip_val is not None:
            state.contract.clip(
                state.module, state.optimizer, self.trainer.gradient_clip_val, self.trainer.gradient_clip_algorithm
            )
        # As in Lightning: a step whose batches were all skipped counts, for schedules, too. Without gradients the
        # optimizer changes nothing, and a loss scaler refuses to step.
        if self.has_gradients or getattr(state.fabric.strategy.precision, "scaler", None) is None:
            state.optimizer.step()
        self._advance_to(epoch_began + after)

    def _note_rate(self) -> None:
        """The step and the learning rate of the losses that this step is made of."""
        rate = self.state.raw_optimizer.param_groups[0]["lr"]
        # a rate on the device changes in place, and to read it here would wait for the device
        of_step = (self.state.step + 1, rate.clone() if isinstance(rate, Tensor) else rate)
        self.losses_of += [of_step] * (len(self.losses) - len(self.losses_of))

    def _advance_to(self, step: int) -> None:
        """Count steps, and move the schedules that do."""
        state = self.state
        while state.step < step:
            for entry in state.schedules:
                batch = state.step_in_epoch if self.turns is not None else state.batch_idx
                if entry.due(state.step + 1, batch + 1):
                    _advance(state, entry, self._just_logged(entry))
            state.step += 1
            state.step_in_epoch += 1

    def _just_logged(self, entry: ScheduleEntry) -> dict[str, float]:
        """What the step has logged, where a schedule watches it: over all workers, or all would go different ways."""
        if entry.monitor is None:
            return {}
        state = self.state
        strategy = state.fabric.strategy if self.turns is None else Alone(state.fabric.device)
        return state.log.step_values(strategy)

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
        if state.copies_wanted:
            checkpoint.write_copies(state)
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
        if state.times.steps > self.logged_times.steps:
            self.interval_began = self.logged_times
        # else the same step is logged again: its interval has grown by what was sent where all workers met
        values = state.log.step_values(Alone(state.fabric.device) if alone else state.fabric.strategy)
        values["lr"] = state.learning_rate()
        values["epoch"] = float(state.epoch)
        values.update(state.times.since(self.interval_began))
        values.update(state.communication(self.interval_began, alone))
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
        self.first_loss_step = self.state.step + 1
        if not self.losses:  # dummy batches only
            return
        finite = torch.isfinite(torch.stack(self.losses).flatten())
        if not bool(finite.all()):
            position = int((~finite).nonzero()[0])
            self._note_rate()  # of a step that was begun, where the data ended in it
            step, rate = self.losses_of[position]
            raise FloatingPointError(
                f"the loss is {self.losses[position].item()} at step {step}, learning rate {float(rate):.3g}"
            )
        self.losses.clear()
        self.losses_of.clear()

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
        state.log.in_step, state.log.ended = False, True
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
        if state.copies_wanted:
            checkpoint.write_copies(state)

    def _save(self) -> None:
        pulse.at(MEETING, self.state.step)
        self._refuse_not_finite()
        self.state.save_wanted = False
        checkpoint.save(self.state)


def _advance(state: RunState, entry: ScheduleEntry, just_logged: dict[str, float] | None = None) -> None:
    """Move a schedule, by the newest value of what it watches: `just_logged` before what was reported earlier."""
    value = None
    if entry.monitor is not None:
        # suffixed where it is logged both by step and by epoch
        suffix = "_epoch" if just_logged is None else "_step"
        metrics = {**state.metrics, **(just_logged or {})}
        name = next((name for name in (entry.monitor, f"{entry.monitor}{suffix}") if name in metrics), None)
        if name is None:
            missing = NotLogged("schedule.monitor", entry.monitor, metrics)
            if entry.strict:
                raise missing
            log.warning("%s: the learning rate stays", missing)
            return
        value = torch.tensor(metrics[name], dtype=torch.float64)
    state.task.lr_scheduler_step(entry.scheduler, value)
