"""Loaders of the task itself (`dataset=null`): train_dataloader and the like, as under Lightning's Trainer."""

from typing import Any

from lightning.fabric import Fabric
from lightning.pytorch import LightningDataModule, LightningModule

from ..config.schema import Config
from .lightning_data import LoaderData, refuse_reading_keys


class TaskLoaders(LightningDataModule):
    """Placeholder for `dataset._target_` with dataset=null. Never built."""


class TaskLoaderData(LoaderData):
    """The loop's view of the loaders of a task.

    Args:
        task: prepared and set up by `open`, once it has its trainer.
    """

    module = None  # pyright: ignore[reportAssignmentType]  # no data module: trainer.datamodule is None, as in Lightning

    def __init__(
        self, config: Config, fabric: Fabric, task: LightningModule, parts: int = 1, dummy_batches: bool = False
    ):
        if config.dataset.partitions != 1:
            raise ValueError("dataset.partitions is for Leyden's datasets, and dataset=null takes the task's loaders")
        refuse_reading_keys(config, "the task")
        self._settings(config, fabric, parts, dummy_batches)
        self._task = task

    @property
    def source(self) -> LightningModule:
        return self._task

    def open(self) -> None:
        """Prepare and set up the task, and get its loaders.

        Raises:
            ValueError: no loader, several at once, or one with neither length nor limit.
        """
        if self.fabric.local_rank == 0:
            self._task.prepare_data()
        self.fabric.barrier()
        self._task.setup("fit")
        self._open()

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """The batch unchanged: the task's own hook follows."""
        return batch

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: the order is a function of seed and epoch."""
