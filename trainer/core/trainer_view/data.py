"""Data attributes of `self.trainer`: loaders, numbers of batches, limits."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..state import RunState


class TrainerDataAttributes:
    """Loaders of a run and numbers of batches, as this worker has them."""

    _state: "RunState"

    @property
    def train_dataloader(self) -> Any:
        """The DataLoader of the data module or of the task; of Leyden's own datasets a LoaderView."""
        return self._loader("train")

    @property
    def val_dataloaders(self) -> Any:
        return self._loader("val")

    @property
    def test_dataloaders(self) -> Any:
        return self._loader("test")

    def _loader(self, split: str) -> Any:
        data = self._state.data
        return None if data is None else data.loader_of(split)

    @property
    def accumulate_grad_batches(self) -> int:
        return self._state.config.trainer.accumulate_grad_batches

    @property
    def num_training_batches(self) -> int:
        """Batches of an epoch that this worker trains on, of `accumulate_grad_batches` a step."""
        state = self._state
        batches = state.steps_per_epoch * self.accumulate_grad_batches
        available = state.data.batches_of("train")
        return batches if available is None else min(batches, available)

    @property
    def num_val_batches(self) -> "list[int | float]":
        return self._evaluation_batches("val", self.limit_val_batches)

    @property
    def num_test_batches(self) -> "list[int | float]":
        return self._evaluation_batches("test", self.limit_test_batches)

    def _evaluation_batches(self, split: str, limit: int | float) -> "list[int | float]":
        """Number of batches evaluated from the split's loader; empty without one."""
        from ..state import limit_batches

        state = self._state
        if not state.data.has(split):
            return []
        batches = state.data.batches_of(split)
        if batches is None:  # a stream
            return [limit if isinstance(limit, int) else float("inf")]
        return [limit_batches(limit, batches, state.config)]

    @property
    def limit_train_batches(self) -> int | float:
        """Limit in optimizer steps, as in Leyden's config; without accumulation equal to Lightning's, in batches."""
        return self._state.config.trainer.train_limit

    @property
    def limit_val_batches(self) -> int | float:
        return self._state.config.trainer.val_limit

    @property
    def limit_test_batches(self) -> int | float:
        return self._state.config.trainer.limit_test_batches

    @property
    def enable_validation(self) -> bool:
        from ...config.lightning.base_classes import overrides

        validates = self._state.data.has("val") and overrides(self._state.task, "validation_step")
        return validates and self.limit_val_batches > 0

    @property
    def check_val_every_n_epoch(self) -> int | None:
        return self._state.config.trainer.check_val_every_n_epoch
