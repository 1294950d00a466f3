"""An epoch of asynchronous workers: each draws tickets, slices of the epoch's order, and trains on them."""

from typing import ClassVar

from typing_extensions import override

from ..base.heartbeat import SYNCHRONIZATION, heartbeat
from ..core.communication.plain_values import all_gather_values
from ..core.state import RunState
from .loop import Epoch
from .progress import ProgressFile


class TicketEpoch(Epoch):
    """An epoch in which workers synchronize to validate, to save, to stop, and at its end."""

    asynchronous: ClassVar[bool] = True

    def __init__(self, state: RunState, progress: ProgressFile):
        super().__init__(state, progress)
        tickets = state.contract.ticket_source
        assert tickets is not None
        self._tickets = tickets

    @override
    def stop_if_asked(self) -> None:
        return  # the others are at other steps: `_train_tickets` asks for a synchronization

    @override
    def make_steps(self) -> None:
        while self._train_range():
            pass

    def _train_range(self) -> bool:
        """Train until all workers are synchronized, at the same step. Returns whether the epoch goes on after it."""
        state, tickets = self.state, self._tickets
        first, epoch_began, samples = state.step_in_epoch, state.step - state.step_in_epoch, state.samples
        with heartbeat.phase(SYNCHRONIZATION):
            tickets.begin(state.epoch, first, self._end_of_range(), state.step)
        reason = None
        while reason is None:
            self._train_tickets()
            with heartbeat.phase(SYNCHRONIZATION), self.step.clock.bytes_sent():
                reason = tickets.synchronize()
        self.step.advance_to(epoch_began + tickets.completed_rounds())
        state.samples = samples + state.data.samples_of(state.epoch, first, state.step_in_epoch)
        if reason == "stop":
            self.stop()
            return False
        if reason == "save":
            self.save()
        elif state.step_in_epoch >= self.steps or state.step >= self.last_step:
            return False
        elif self.due_inside():
            self.log()
            self.validate_inside()
        self.agree_on_the_end()
        return state.stop_reason is None

    def _end_of_range(self) -> int:
        """The round of the epoch at which all workers synchronize: the next validation, or the training's end."""
        state = self.state
        validated = state.validated_at == state.step or not state.data.has("val")
        until_validation = self.validation.steps_to_next(state.epoch, state.step_in_epoch, state.step, validated)
        return state.step_in_epoch + min(until_validation, self.last_step - state.step)

    def _train_tickets(self) -> None:
        """Train the tickets that there are for this worker; what it needs of the others it asks for."""
        state, tickets = self.state, self._tickets
        parts = state.data.ticket_parts(state.epoch, tickets.numbers(), tickets.prefetches)
        while self.make_step(parts):
            tickets.ticket_done()
            if state.stop_request.signal is not None or state.time_limit.over:
                tickets.request_sync("stop")
            elif state.save_wanted:
                tickets.request_sync("save")

    @override
    def save_between_steps(self) -> None:
        return  # likewise

    @override
    def agree_on_the_end(self) -> None:
        state = self.state
        if state.fabric.world_size == 1:
            return
        reasons: list[str | None] = all_gather_values(state.stop_reason)
        state.stop_reason = next((reason for reason in reasons if reason is not None), None)
