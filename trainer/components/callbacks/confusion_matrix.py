"""Confusion matrix of the last evaluation, as an image."""

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from typing_extensions import override

from ...core.callback_contract import CallbackContract
from ...core.communication.plain_values import broadcast_value
from ...core.state import RunState

_SMALLEST, _LARGEST, _MARGIN = 480, 800, 90
"""Pixels of the matrix, at least for its title, and at most; of the names next to it."""
_CELL = 48
"""Pixels of a cell that has room for a count."""
_NAMED = 40
"""Maximum number of classes with names."""
_WHITE, _BLUE = torch.full((3,), 255.0, dtype=torch.float64), torch.tensor([8.0, 48.0, 107.0], dtype=torch.float64)


class ConfusionMatrix(CallbackContract):
    """Counts of samples by true class (rows) and predicted class (columns), over all workers.

    Logged at the run's end as `confusion/val` and `confusion/test`, of the newest evaluation of each, if the task's
    validation_step and test_step return class scores (batch, classes) for a batch (images, labels).

    Args:
        max_classes: with more classes there is no matrix.

    Raises:
        ValueError: max_classes below 2.
    """

    def __init__(self, max_classes: int = 1000):
        if max_classes < 2:
            raise ValueError(f"callbacks.confusion_matrix.max_classes={max_classes} must be at least 2")
        self.max_classes = max_classes
        self.counts: dict[str, Tensor] = {}
        """The matrix of each split: int64, (classes, classes)."""
        self._training = False

    @override
    def on_validation_end(self, state: RunState) -> None:
        # not by a batch of this worker: of asynchronous workers one may train none, and reporting is collective
        self._training = True  # `leyden eval` must not write to a run's files

    @override
    def on_epoch_end(self, state: RunState) -> None:
        self._training = True

    @override
    def on_evaluation_batch(self, state: RunState, split: str, index: int, output: Any, batch: Any) -> None:
        labels = batch[1] if isinstance(batch, list | tuple) and len(batch) == 2 else None
        if not _scores_of(output, labels) or output.shape[1] > self.max_classes:
            return
        classes = output.shape[1]
        if index == 0 or split not in self.counts:
            self.counts[split] = torch.zeros(classes, classes, dtype=torch.int64, device=output.device)
        cells = labels * classes + output.argmax(1)
        self.counts[split].view(-1).index_add_(0, cells, torch.ones_like(cells))

    @override
    def on_fit_end(self, state: RunState) -> None:
        """Report the matrices. Collective."""
        if not self._training:
            return
        names = state.data.class_names
        sizes = [(split, len(self.counts[split])) for split in sorted(self.counts)]
        for split, classes in broadcast_value(sizes, state.fabric.strategy):
            total = state.fabric.all_reduce(self._of(split, classes, state.fabric.device), reduce_op="sum")
            assert isinstance(total, Tensor)
            if state.fabric.is_global_zero:
                state.report_image(f"confusion/{split}", picture(total.cpu(), names))

    def _of(self, split: str, classes: int, device: torch.device) -> Tensor:
        """This worker's counts; zeros without samples."""
        return self.counts.get(split, torch.zeros(classes, classes, dtype=torch.int64, device=device))


def _scores_of(output: Any, labels: Any) -> bool:
    both = isinstance(output, Tensor) and isinstance(labels, Tensor)
    return both and output.ndim == 2 and labels.shape == output.shape[:1] and not labels.is_floating_point()


def picture(counts: Tensor, names: Sequence[str] | None = None) -> Image.Image:
    """A cell for each pair of classes, darker for a larger share of the true class; with counts if they fit.

    Args:
        counts: (classes, classes), true classes in rows.
        names: of the classes; without names, or with too many classes, their numbers.
    """
    classes = len(counts)
    cell = max(1, min(_LARGEST // classes, max(_CELL, _SMALLEST // classes)))
    image = Image.new("RGB", (_MARGIN + classes * cell + 34, _MARGIN + classes * cell + 10), "white")
    shares = counts.double() / counts.sum(1, keepdim=True).clamp(min=1)
    colours = torch.lerp(_WHITE, _BLUE, shares[:, :, None]).round().to(torch.uint8)
    heat = Image.fromarray(colours.numpy()).resize((classes * cell, classes * cell), Image.Resampling.NEAREST)
    image.paste(heat, (_MARGIN, _MARGIN))
    draw = ImageDraw.Draw(image)
    accuracy = float(counts.diagonal().sum()) / max(1, int(counts.sum()))
    title = f"rows: true class, columns: predicted; {int(counts.sum())} samples, {100 * accuracy:.2f} % on the diagonal"
    draw.text((8, 8), title, fill="black", font=ImageFont.load_default(12))
    if classes <= _NAMED:
        _label(draw, counts, shares, cell, names)
    return image


def _label(draw: ImageDraw.ImageDraw, counts: Tensor, shares: Tensor, cell: int, names: Sequence[str] | None) -> None:
    font = ImageFont.load_default(max(8, min(14, cell // 3)))
    shown = [str(row) if names is None else names[row][:12] for row in range(len(counts))]
    staggered = 14 if max(font.getlength(name) for name in shown) > cell - 4 else 0
    for row, name in enumerate(shown):
        middle = _MARGIN + row * cell + cell // 2
        draw.text((_MARGIN - 6, middle), name, fill="black", font=font, anchor="rm")
        draw.text((middle, _MARGIN - 6 - staggered * (row % 2)), name, fill="black", font=font, anchor="ms")
        for column in range(len(counts)):
            if cell >= 20 and counts[row, column]:
                fill = "white" if shares[row, column] > 0.5 else "black"
                at = (_MARGIN + column * cell + cell // 2, middle)
                draw.text(at, str(int(counts[row, column])), fill=fill, font=font, anchor="mm")
