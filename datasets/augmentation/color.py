"""Changes of colour and brightness of a batch of images with values from 0 to 1."""

import torch
from torch import Tensor

from .checks import not_negative, probability
from .draws import Draws, between, per_image, uniform

_LUMA = (0.299, 0.587, 0.114)


def grey(images: Tensor) -> Tensor:
    """Luma by ITU-R BT.601: (batch, 1, height, width); images of other than three channels are averaged."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images.unbind(1)
    return (red * _LUMA[0] + green * _LUMA[1] + blue * _LUMA[2])[:, None]


def blended(images: Tensor, other: Tensor, factors: Tensor) -> Tensor:
    """`other` at factor 0, the image at 1, and beyond, cut off at 0 and 1.

    Args:
        factors: (batch,).
    """
    return torch.lerp(other.expand_as(images), images, per_image(factors)).clamp_(0.0, 1.0)


class ColorJitter:
    """Random brightness, contrast, saturation and hue, in this order; torchvision's ColorJitter draws the order, too.

    A factor is drawn from max(0, 1 - value) to 1 + value: 0 makes the image black, its mean grey, or without colour.

    Args:
        brightness: largest relative change; 0: none.
        contrast: largest relative change of the distance to the image's mean luma.
        saturation: largest relative change of the distance to the luma.
        hue: largest turn of the hue, of a whole circle: 0 to 0.5.
        p: probability that an image is changed.

    Raises:
        ValueError: a negative value, a hue over 0.5, a probability outside 0..1.
    """

    def __init__(
        self,
        brightness: float = 0.4,
        contrast: float = 0.4,
        saturation: float = 0.4,
        hue: float = 0.0,
        p: float = 1.0,
    ) -> None:
        self.brightness = not_negative("brightness", brightness)
        self.contrast = not_negative("contrast", contrast)
        self.saturation = not_negative("saturation", saturation)
        if not 0 <= hue <= 0.5:
            raise ValueError(f"hue={hue} must be at least 0 and at most 0.5")
        self.hue = float(hue)
        self.p = probability("p", p)

    def augment_batch(self, images: Tensor, labels: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Changed images, the same labels."""
        chosen, *drawn = uniform(draws.keys, 5).unbind(1)
        changed = images
        if self.brightness:
            changed = blended(changed, torch.zeros_like(changed), self._factor(drawn[0], self.brightness))
        if self.contrast:
            mean = grey(changed).mean((1, 2, 3), keepdim=True)
            changed = blended(changed, mean, self._factor(drawn[1], self.contrast))
        if self.saturation:
            changed = blended(changed, grey(changed), self._factor(drawn[2], self.saturation))
        if self.hue and images.shape[1] == 3:
            changed = turned_hue(changed, between(drawn[3], -self.hue, self.hue))
        return (changed if self.p == 1.0 else torch.where(per_image(chosen < self.p), changed, images)), labels

    @staticmethod
    def _factor(draws: Tensor, value: float) -> Tensor:
        return between(draws, max(0.0, 1.0 - value), 1.0 + value)


class RandomGrayscale:
    """Images without colour: luma in all channels.

    Args:
        p: probability that an image is changed.

    Raises:
        ValueError: a probability outside 0..1.
    """

    def __init__(self, p: float = 0.2) -> None:
        self.p = probability("p", p)

    def augment_batch(self, images: Tensor, labels: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Changed images, the same labels."""
        chosen = per_image(uniform(draws.keys, 1)[:, 0] < self.p)
        return torch.where(chosen, grey(images), images), labels


def turned_hue(images: Tensor, turns: Tensor) -> Tensor:
    """RGB images with their hue in HSV turned.

    Args:
        turns: of a whole circle, (batch,).
    """
    value, brightest = images.max(1)
    chroma = value - images.amin(1)
    red, green, blue = images.unbind(1)
    divisor = torch.where(chroma == 0, 1.0, chroma)
    sector = torch.where(
        brightest == 0,
        (green - blue) / divisor,
        torch.where(brightest == 1, (blue - red) / divisor + 2, (red - green) / divisor + 4),
    )
    sector = sector + turns[:, None, None] * 6
    # S. Smith's conversion without cases: f(n) = v - c max(0, min(k, 4 - k, 1)), k = (n + h) mod 6
    places = 5 - 2 * torch.arange(3, device=images.device)
    k = (sector[:, None] + places[:, None, None]) % 6
    return value[:, None] - chroma[:, None] * torch.minimum(k, 4 - k).clamp_(0.0, 1.0)


class ColorCast:
    """Colour casting of Deep Image (R. Wu et al., arXiv 1501.02876, section 4): three Booleans say which channels
    change, each by a whole number of grey levels.

    Args:
        levels: largest change, of 255; every whole number from -levels to levels is equally likely.

    Raises:
        ValueError: `levels` is negative.
    """

    def __init__(self, levels: int = 20) -> None:
        not_negative("levels", levels)
        self.levels = levels

    def augment_batch(self, images: Tensor, labels: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Changed images, the same labels."""
        channels = images.shape[1]
        drawn = uniform(draws.keys, 2 * channels)
        casts = (drawn[:, channels:] * (2 * self.levels + 1)).floor() - self.levels
        changes = torch.where(drawn[:, :channels] < 0.5, casts / 255.0, 0.0)
        return (images + changes[:, :, None, None]).clamp_(0.0, 1.0), labels


class Vignette:
    """Vignetting of Deep Image (section 4): the periphery becomes darker, by two random numbers, the area and the
    reduction of brightness. The formula is ours, as the paper has none.

    At r of the way from the centre to a corner the image is multiplied by 1 - reduction * t^2, with
    t = max(0, (r - start) / (1 - start)).

    Args:
        start: the smallest r at which the effect begins; it is drawn from there to 1.
        reduction: largest reduction in the corners; drawn from 0.
        p: probability that an image is changed.

    Raises:
        ValueError: a number outside 0..1.
    """

    def __init__(self, start: float = 0.3, reduction: float = 0.6, p: float = 0.5) -> None:
        self.start = probability("start", start)
        self.reduction = probability("reduction", reduction)
        self.p = probability("p", p)

    def augment_batch(self, images: Tensor, labels: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Changed images, the same labels."""
        chosen, start, reduction = uniform(draws.keys, 3).unbind(1)
        start = per_image(between(start, self.start, 1.0))
        reduction = per_image(torch.where(chosen < self.p, reduction * self.reduction, 0.0))
        height, width = images.shape[2:]
        rows, columns = (
            torch.linspace(-1 + 1 / side, 1 - 1 / side, side, device=images.device) for side in (height, width)
        )
        distance = torch.sqrt((rows[:, None] ** 2 + columns**2) / 2)
        t = ((distance - start) / (1 - start).clamp_min(1e-6)).clamp_(0.0, 1.0)
        return images * (1 - reduction * t**2), labels
