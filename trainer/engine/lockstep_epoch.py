"""An epoch of workers in lockstep: all make the same steps, each on its share of every global batch."""

from typing import ClassVar

from .epoch import Epoch, HandedOff


class LockstepEpoch(Epoch):
    """An epoch in which every step is one of all workers."""

    asynchronous: ClassVar[bool] = False

    def train(self) -> None:
        self._stop_if_asked()  # before an epoch is announced of which nothing would be trained
        if self.state.stop_reason is None:
            super().train()

    def train_steps(self) -> None:
        state = self.state
        end = self.steps if state.leaves_at is None else state.leaves_at - state.step + state.step_in_epoch
        parts = iter(state.data.train_parts(state.epoch, state.step_in_epoch, end))
        while state.step_in_epoch < min(end, self.steps) and state.step < self.last_step:
            self._stop_if_asked()
            if state.stop_reason is not None:
                break
            if not self.train_step(parts):
                self.data_ended = True
                break
            if self.due_inside():
                self.validate_inside()
        if state.step == state.leaves_at and self._goes_on and state.stop_reason is None:
            self.losses.refuse_not_finite()
            self.step.clock.read()
            raise HandedOff

    def save_between_steps(self) -> None:
        # at its end an epoch still has to be validated: it saves then
        if self.state.save_wanted and self._goes_on and not self.due_inside():
            self.save()

    def agree_on_the_end(self) -> None:
        return  # in lockstep all have the same reasons

    @property
    def _goes_on(self) -> bool:
        """Whether the epoch has steps left."""
        return self.state.step_in_epoch < self.steps and self.state.step < self.last_step

    def _stop_if_asked(self) -> None:
        state = self.state
        if state.stop_request.due(state.step, state.contract.max_step_skew, state.time_limit.over):
            self.stop()
