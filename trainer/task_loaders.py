"""Loaders of the task itself (`dataset=null`): train_dataloader and the like, as under Lightning's Trainer."""

from typing import Any

from lightning.fabric import Fabric
from lightning.pytorch import LightningDataModule, LightningModule

from .config import Config
from .loader_data import LoaderData


class TaskLoaders(LightningDataModule):
    """What `dataset._target_` names where the loaders are the task's. It is never built."""


class TaskLoaderData(LoaderData):
    """The loop's view of the loaders of a task.

    Args:
        task: prepared and set up by `open`, when it has its trainer.
    """

    module = None  # pyright: ignore[reportAssignmentType]  # no data module: trainer.datamodule is None, as in Lightning
    classes = image_shape = None

    def __init__(self, config: Config, fabric: Fabric, task: LightningModule, parts: int = 1, stand_in: bool = False):
        if config.dataset.partitions != 1:
            raise ValueError("dataset.partitions is for Leyden's datasets, and dataset=null takes the task's loaders")
        self._settings(config, fabric, parts, stand_in)
        self._task = task

    @property
    def source(self) -> LightningModule:
        return self._task

    def open(self) -> None:
        """Prepare and set up the task, and ask it for its loaders.

        Raises:
            ValueError: it has none, several at once, or one without a length and a limit.
        """
        if self.fabric.local_rank == 0:
            self._task.prepare_data()
        self.fabric.barrier()
        self._task.setup("fit")
        self._open()

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """The batch as it is: the task's own hook comes after this one."""
        return batch

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loaders have no state of their own: their order is a function of seed and epoch."""
