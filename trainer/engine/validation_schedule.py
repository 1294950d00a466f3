"""When a training is validated: trainer.val_check_interval and trainer.check_val_every_n_epoch."""

from dataclasses import dataclass

from ..config.schema import Trainer


@dataclass(frozen=True)
class ValidationSchedule:
    """The optimizer steps after which a training is validated, with the meaning of Lightning's Trainer.

    Lightning counts batches; here a batch is an optimizer step, as for trainer.limit_train_batches.
    """

    steps_per_epoch: int
    every_n_epoch: int | None
    """Epochs between validations; steps are counted across epochs if None."""
    every_n_steps: int | None
    """Steps between validations; at the end of an epoch if None."""

    @classmethod
    def of(cls, trainer: Trainer, steps_per_epoch: int) -> "ValidationSchedule":
        """
        Raises:
            ValueError: the interval is longer than an epoch, and steps are counted within epochs.
        """
        interval = trainer.val_check_interval
        if interval is None or trainer.fast_dev_run:
            return cls(steps_per_epoch, trainer.check_val_every_n_epoch or 1, None)
        every = interval if isinstance(interval, int) else max(1, int(steps_per_epoch * interval))
        if every > steps_per_epoch and trainer.check_val_every_n_epoch is not None:
            raise ValueError(
                f"trainer.val_check_interval={every} is more than the {steps_per_epoch} steps of an epoch: at most "
                f"{steps_per_epoch}, or trainer.check_val_every_n_epoch=null, which counts steps across epochs"
            )
        return cls(steps_per_epoch, trainer.check_val_every_n_epoch, every)

    @property
    def first_step(self) -> int:
        """The optimizer step after which the first validation is, counted from 1; the training's end is one, too."""
        if self.every_n_steps is None:
            return (self.every_n_epoch or 1) * self.steps_per_epoch
        return ((self.every_n_epoch or 1) - 1) * self.steps_per_epoch + self.every_n_steps

    def due_inside(self, epoch: int, step_in_epoch: int, step: int) -> bool:
        """Whether validation is due after a step that does not end its epoch.

        Args:
            epoch: counted from 0.
            step_in_epoch: optimizer steps done in the epoch.
            step: optimizer steps done in all.
        """
        if self.every_n_steps is None or not 0 < step_in_epoch < self.steps_per_epoch:
            return False
        return self._on_interval(epoch, step_in_epoch, step)

    def due_at_end(self, epoch: int, step_in_epoch: int, step: int) -> bool:
        """Whether validation is due after the last step of an epoch; arguments as in `due_inside`."""
        if self.every_n_steps is None:
            return self._in_epoch(epoch)
        return self._on_interval(epoch, step_in_epoch, step)

    def steps_to_next(self, epoch: int, step_in_epoch: int, step: int, validated: bool) -> int:
        """Steps until validation is due or the epoch ends.

        Args:
            validated: whether the present step is; 0 steps are left where it is due and has not been.
        """
        left = self.steps_per_epoch - step_in_epoch
        if self.every_n_steps is None or not self._in_epoch(epoch):
            return left
        if self.due_inside(epoch, step_in_epoch, step) and not validated:
            return 0
        counted = step if self.every_n_epoch is None else step_in_epoch
        return min(left, self.every_n_steps - counted % self.every_n_steps)

    def _in_epoch(self, epoch: int) -> bool:
        return self.every_n_epoch is None or (epoch + 1) % self.every_n_epoch == 0

    def _on_interval(self, epoch: int, step_in_epoch: int, step: int) -> bool:
        assert self.every_n_steps is not None
        counted = step if self.every_n_epoch is None else step_in_epoch
        return self._in_epoch(epoch) and counted % self.every_n_steps == 0
