"""Mixing of pairs of images and of their labels."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .checks import not_negative, probability
from .draws import Draws, per_image, uniform

_QUANTILES = 2048


class Mix:
    """Mixup (H. Zhang et al., ICLR 2018) and cutmix (S. Yun et al., ICCV 2019), with a weight of its own for each
    image.

    Mixup: x_i <- lambda x_i + (1 - lambda) x_j, lambda ~ Beta(alpha, alpha). Cutmix: a rectangle of the part 1 - lambda
    of the image's area, its centre anywhere, is cut off at the border and filled from x_j. Labels become weights of the
    classes, in proportion to the pixels.

    x_j is the neighbour of x_i: of two adjacent samples in the order of the epoch each is mixed with the other. So the
    result does not depend on the number of workers as long as each has an even number of samples; a last one without a
    neighbour stays as it is. Of several views of a sample, the neighbour's view of the same number is taken.

    Args:
        mixup: alpha of mixup; 0: no mixup.
        cutmix: alpha of cutmix; 0: no cutmix. With both each image takes one or the other, with equal probability.
        p: probability that an image is mixed.

    Raises:
        ValueError: both alphas are 0 or one is negative; a probability outside 0..1.
    """

    def __init__(self, mixup: float = 0.2, cutmix: float = 0.0, p: float = 1.0) -> None:
        self.mixup = not_negative("mixup", mixup)
        self.cutmix = not_negative("cutmix", cutmix)
        if not mixup and not cutmix:
            raise ValueError(f"mixup={mixup} and cutmix={cutmix}: at least one must be greater than 0")
        self.p = probability("p", p)
        self._tables: dict[float, Tensor] = {}

    def augment_batch(self, images: Tensor, labels: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Mixed images, and weights of the classes (batch, classes)."""
        drawn = uniform(draws.keys, 5)
        kept = self._kept_pixels(images, drawn)
        kept = torch.where(per_image(drawn[:, 0] < self.p), kept, torch.ones_like(kept))
        other = neighbours(len(images), draws.views, images.device)
        weights = kept.mean((2, 3))
        soft = class_weights(labels, draws.classes)
        return torch.lerp(images[other], images, kept), weights * soft + (1 - weights) * soft[other]

    def _kept_pixels(self, images: Tensor, drawn: Tensor) -> Tensor:
        """Weight of each image's own pixels: (batch, 1, height, width), or of size 1 for mixup alone."""
        if not self.cutmix:
            return per_image(self._beta(drawn[:, 1], self.mixup))
        boxes = self._outside_of_boxes(images, drawn)
        if not self.mixup:
            return boxes
        return torch.where(per_image(drawn[:, 4] < 0.5), per_image(self._beta(drawn[:, 1], self.mixup)), boxes)

    def _outside_of_boxes(self, images: Tensor, drawn: Tensor) -> Tensor:
        """0 in each image's rectangle, 1 outside."""
        part = torch.sqrt(1 - self._beta(drawn[:, 1], self.cutmix))
        inside = []
        for side, centre in ((images.shape[2], drawn[:, 2]), (images.shape[3], drawn[:, 3])):
            half, middle = (part * side).floor() / 2, (centre * side).floor()
            places = torch.arange(side, device=images.device)
            first, end = (middle - half).floor()[:, None], (middle + half).floor()[:, None]
            inside.append((places >= first) & (places < end))
        return 1 - (inside[0][:, None, :, None] & inside[1][:, None, None, :]).to(images.dtype)

    def _beta(self, draws: Tensor, alpha: float) -> Tensor:
        """Beta(alpha, alpha) by its quantile function, interpolated between the entries of a table."""
        table = self._tables.get(alpha)
        if table is None or table.device != draws.device:
            table = torch.from_numpy(beta_powers(alpha, _QUANTILES)).float()
            table = table.pin_memory() if draws.device.type == "cuda" else table
            self._tables[alpha] = table = table.to(draws.device, non_blocking=True)
        low = torch.minimum(draws, 1 - draws) * (2 * _QUANTILES)
        first = low.long().clamp_(max=_QUANTILES - 1)
        quantile = torch.lerp(table[first], table[first + 1], low - first) ** (1 / min(alpha, 1.0))
        return torch.where(draws < 0.5, quantile, 1 - quantile)


def class_weights(labels: Tensor, classes: int) -> Tensor:
    """Labels as weights of the classes, float32 (batch, classes); such weights as they are."""
    if labels.ndim > 1:
        return labels
    # one_hot may look at the values, for which the host waits
    return (labels[:, None] == torch.arange(classes, device=labels.device)).float()


def neighbours(count: int, views: int, device: torch.device) -> Tensor:
    """Row of the image that each is mixed with: the same view of the sample next to its own."""
    rows = torch.arange(count, device=device)
    other = (rows // views ^ 1) * views + rows % views
    return torch.where(other < count, other, rows)


def beta_powers(alpha: float, count: int) -> NDArray[np.float64]:
    """Quantiles q of Beta(alpha, alpha) to the power of e = min(alpha, 1), at probabilities from 0 to 1/2 in `count`
    steps.

    With s = t^e the distribution's density t^(alpha - 1) (1 - t)^(alpha - 1) dt becomes
    s^(alpha / e - 1) (1 - s^(1 / e))^(alpha - 1) ds, which is bounded up to t = 1/2; for alpha under 1 the quantile is
    nearly linear in s.
    """
    e = min(alpha, 1.0)
    s = np.linspace(0.0, 0.5**e, 64 * count + 1)
    density = s ** (alpha / e - 1.0) * (1.0 - s ** (1.0 / e)) ** (alpha - 1.0)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return np.interp(np.linspace(0.0, 0.5, count + 1), 0.5 * mass / mass[-1], s)
