"""Image of the first training samples after augmentation and normalization."""

from math import ceil
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from typing_extensions import override

from ...core.callback_contract import CallbackContract
from ...core.state import RunState

_SIDE = 112
"""Pixels to which a small image is enlarged."""


class TrainImages(CallbackContract):
    """One image of the first `count` training samples of a new run, as the network receives them: `images/train`.

    It is logged with the batch after them, or before a checkpoint or the end of the run: the first step does not wait
    for TensorBoard, which is slow to import.

    The first element of a batch must be images (batch, 1 or 3 channels, height, width); other data gives no image.

    Raises:
        ValueError: count below 1.
    """

    def __init__(self, count: int = 16):
        if count < 1:
            raise ValueError(f"callbacks.train_images.count={count} must be at least 1")
        self.count = count
        self._kept: list[Tensor] = []
        self._done = False

    @override
    def on_train_batch(self, state: RunState, batch: Any) -> None:
        self._report(state)
        if self._done:
            return
        images = _images_of(batch)
        shown = state.fabric.is_global_zero and bool(state.fabric.loggers)
        resumed = state.step > 0 and not self._kept  # its image exists
        if images is None or resumed or not shown:
            self._done = True
            return
        self._kept.append(_pixels(state, images[: self.count - sum(map(len, self._kept))]))

    @override
    def on_checkpoint(self, state: RunState) -> None:
        self._report(state)

    @override
    def on_fit_end(self, state: RunState) -> None:
        self._report(state)

    @override
    def on_exception(self, state: RunState) -> None:
        self._report(state)

    def _report(self, state: RunState) -> None:
        """Log the image if it is complete."""
        if sum(map(len, self._kept)) == self.count:
            images, self._done, self._kept = torch.cat(self._kept), True, []
            state.report_image("images/train", grid(images))


def _images_of(batch: Any) -> Tensor | None:
    first: Any = batch[0] if isinstance(batch, list | tuple) and batch else batch
    shown = isinstance(first, Tensor) and first.ndim == 4 and first.shape[1] in (1, 3)
    return first if shown else None


def _pixels(state: RunState, images: Tensor) -> Tensor:
    """Images as uint8 on the CPU; with unknown normalization, scaled from their minimum to their maximum."""
    known: Tensor | None = state.data.pixels(images)
    if known is not None:
        return known
    values = images.detach().float().cpu()
    low, high = values.min(), values.max()
    return values.sub(low).mul(255.0 / max(float(high - low), 1e-30)).to(torch.uint8)


def grid(images: Tensor, columns: int | None = None) -> Image.Image:
    """Images (count, 1 or 3, height, width), uint8, row by row, small ones enlarged.

    Args:
        columns: images in a row; None: as many as there are rows.
    """
    columns = ceil(len(images) ** 0.5) if columns is None else columns
    height, width = images.shape[2:]
    scale = max(1, _SIDE // max(height, width))
    size = (width * scale, height * scale)
    picture = Image.new("RGB", (columns * (size[0] + 2), ceil(len(images) / columns) * (size[1] + 2)), "white")
    for number, image in enumerate(images.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).contiguous()):
        tile = Image.fromarray(image.numpy()).resize(size, Image.Resampling.NEAREST)
        picture.paste(tile, (number % columns * (size[0] + 2), number // columns * (size[1] + 2)))
    return picture
