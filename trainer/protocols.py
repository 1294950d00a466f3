"""What the islands promise each other. Datasets, models and augmentations follow these without importing them."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Dataset(Protocol):
    """Samples by index. Built once for each split: `Target(split="train" | "val" | "test", **arguments)`.

    A class that carries `mean` and `std` (a float for each channel, of values between 0 and 1) has its uint8 images
    scaled and normalized on the device; float images are left as they are.
    """

    classes: int
    image_shape: Sequence[int]
    """Channels, height, width."""
    splits: Sequence[str]
    """Which of train, val and test the set has of its own."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Image (channels, height, width; uint8 or float) and class: a pure function of the index.

        Raises OSError or ValueError, with the sample's name, for a sample that cannot be read.
        """
        ...


class Augmentation(Protocol):
    """A random change of one training image that draws from `key` alone (63 random bits, never negative)."""

    def __call__(self, image: Tensor, key: int) -> Tensor: ...


class Stateful(Protocol):
    """Whatever is saved in a checkpoint: plain Python values and tensors."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
