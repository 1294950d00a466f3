"""Composition of an augmentation's two parts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from .crops import View
from .draws import Draws, salted


class Compose:
    """Crops chosen before decoding, then changes of the batch, one after the other.

    Args:
        crop: has `views(size, key)`; None: images are taken as the dataset gives them.
        batch: changes by name, in this order, each with `augment_batch(images, labels, draws)`; null leaves one out.
            The draws of a change depend on its name, not on the others.
        size: pixels a side of training images by epoch, progressive resizing: {0: 128, 6: 160, 12: 224} is 128 pixels
            in epochs 0 to 5, and so on; None: the dataset's. The network must take images of each size.

    Raises:
        ValueError: sizes that do not begin at epoch 0, or a size under 1.
    """

    def __init__(
        self,
        crop: Any = None,
        batch: Mapping[str, Any] | None = None,
        size: Mapping[int, int] | None = None,
    ) -> None:
        self._changes: dict[str, Any] = {name: change for name, change in (batch or {}).items() if change is not None}
        for name, change in self._changes.items():
            if not hasattr(change, "augment_batch"):
                raise ValueError(f"batch.{name}={type(change).__name__} must have augment_batch(images, labels, draws)")
        if crop is not None:
            if not hasattr(crop, "views"):
                raise ValueError(f"crop={type(crop).__name__} must have views(size, key)")
            self.views: Callable[[tuple[int, int], int], Sequence[View]] = crop.views
        self.thread_safe: bool = crop is None or getattr(crop, "thread_safe", False)
        self._sizes = {int(epoch): side for epoch, side in sorted((size or {}).items())}
        if self._sizes and (min(self._sizes) != 0 or min(self._sizes.values()) < 1):
            raise ValueError(f"size={self._sizes} must begin with epoch 0, and hold sizes of at least 1 pixel")

    def size_at(self, epoch: int) -> int | None:
        """Pixels a side in this epoch, counted from 0; None: the dataset's."""
        return next((side for first, side in reversed(self._sizes.items()) if first <= epoch), None)

    def augment_batch(self, images: Tensor, labels: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """All changes of the batch."""
        for name, change in self._changes.items():
            images, labels = change.augment_batch(images, labels, salted(draws, name))
        return images, labels
