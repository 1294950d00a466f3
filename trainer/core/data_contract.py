"""The contract of a run's data: what the engine, callbacks and reports know of it besides its batches."""

from collections.abc import Sequence

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor


class DataContract:
    """Declarations of a run's data with their defaults, those of loaders that do not say."""

    classes: int | None = None
    image_shape: Sequence[int] | None = None
    """Channels, height, width."""
    class_names: Sequence[str] | None = None
    missed_classes: tuple[str, str] = ("", "")
    """The place in which more classes may be than a dataset of one has found, as the end of a message and as a root."""
    multi_label: bool | None = None
    """Whether an image has any number of classes; None: unknown."""
    synthetic: bool = False

    @property
    def datamodule(self) -> LightningDataModule | None:
        """The data module that a task reads as `self.trainer.datamodule`."""
        return None

    @property
    def user_module(self) -> LightningDataModule | None:
        """The user's data module, whose hooks are called."""
        return None

    @property
    def views(self) -> int:
        """Rows of an evaluation batch for each of its samples."""
        return 1

    @property
    def training_views(self) -> int:
        """Rows of a training batch for each of its samples."""
        return 1

    @property
    def normalization(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each channel, of values from 0 to 1: (1, channels, 1, 1)."""
        return torch.zeros(1), torch.ones(1)

    def plain_images(self, most: int, most_values: int) -> Tensor | None:
        """Training images, evenly spaced in the split, normalized and not augmented: [n, channels, height, width].

        Args:
            most: n is no larger.
            most_values: nor are there more values in all, unless one image has.

        Returns:
            None: the data cannot give images without augmentation.
        """
        return None

    def pixels(self, images: Tensor) -> Tensor | None:
        """Inverse of the normalization: images (batch, channels, height, width) as uint8 on the CPU.

        Returns:
            None: the normalization is unknown.
        """
        return None
