"""Crops chosen before an image is decoded."""

import math
from collections.abc import Sequence

from ..decode import Box
from ..hashing import splitmix64
from .checks import positive_range, probability

_TRIES = 10
_GOLDEN = 0x9E3779B97F4A7C15
_STRIDE = 1 << 20
"""More than the draws of one view."""

View = tuple[Box, bool]
"""Box of a crop, and whether it is mirrored."""


class _Stream:
    """The outputs of splitmix64's generator that starts at a key."""

    def __init__(self, key: int, view: int) -> None:
        self._state = splitmix64(key) + view * _STRIDE * _GOLDEN

    def uniform(self) -> float:
        """A number from 0 to 1, 1 excluded, of 53 bits."""
        self._state += _GOLDEN
        return (splitmix64(self._state) >> 11) * 2.0**-53

    def below(self, count: int) -> int:
        """A whole number from 0 to count - 1."""
        return int(self.uniform() * count)


class RandomResizedCrop:
    """A part of the image of random area, shape and place (C. Szegedy et al., Going deeper with convolutions, CVPR
    2015, section 6), as torchvision defines it: ten tries, then the centre.

    A try has the area U(scale) times the image's, and width / height = exp(U(log ratio)).

    Args:
        scale: smallest and largest part of the image's area.
        ratio: smallest and largest width / height.
        flip: probability that a view is mirrored.
        views: crops of each image in a batch, which is that much larger: repeated augmentation (E. Hoffer et al.,
            Augment your batch, CVPR 2020). The image is read and decoded once.

    Raises:
        ValueError: a range that is none, a probability outside 0..1, fewer views than 1.
    """

    thread_safe: bool = True

    def __init__(
        self,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        flip: float = 0.5,
        views: int = 1,
    ) -> None:
        self.scale = positive_range("scale", scale)
        if self.scale[1] > 1:
            raise ValueError(f"scale=[{scale[0]},{scale[1]}] must be at most 1: parts of the image's area")
        self.ratio = positive_range("ratio", ratio)
        self.flip = probability("flip", flip)
        if views < 1:
            raise ValueError(f"views={views} must be at least 1")
        self.count = views

    def views(self, size: tuple[int, int], key: int) -> list[View]:
        """Boxes and mirroring, drawn from the key and the view's number."""
        found: list[View] = []
        for view in range(self.count):
            draw = _Stream(key, view)
            flip = draw.uniform() < self.flip
            found.append((self._box(*size, draw), flip))
        return found

    def _box(self, height: int, width: int, draw: _Stream) -> Box:
        low, high = map(math.log, self.ratio)
        for _ in range(_TRIES):
            area = height * width * (self.scale[0] + draw.uniform() * (self.scale[1] - self.scale[0]))
            aspect = math.exp(low + draw.uniform() * (high - low))
            columns, rows = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < columns <= width and 0 < rows <= height:
                return draw.below(width - columns + 1), draw.below(height - rows + 1), columns, rows
        return self._centre(height, width)

    def _centre(self, height: int, width: int) -> Box:
        """The largest part at the centre whose shape is within the range."""
        columns, rows = width, height
        if width / height < self.ratio[0]:
            rows = max(1, round(width / self.ratio[0]))
        elif width / height > self.ratio[1]:
            columns = max(1, round(height * self.ratio[1]))
        return (width - columns) // 2, (height - rows) // 2, columns, rows


class RandomCrop:
    """A square of random place out of the image at a fixed scale: R. Wu et al., Deep Image, arXiv 1501.02876, section
    4.

    Of an image whose shorter side is `resize` pixels, `crop` pixels are taken, each place as likely as the others. What
    is cut out of the original is that part of it, rounded to pixels, and resized once.

    Args:
        resize: pixels of the shorter side.
        crop: pixels a side of the crop at that scale; what the network gets is `dataset.image_size`.
        flip: probability that a crop is mirrored.

    Raises:
        ValueError: `crop` is under 1 or larger than `resize`, or a probability outside 0..1.
    """

    thread_safe: bool = True

    def __init__(self, resize: int = 512, crop: int = 224, flip: float = 0.5) -> None:
        if not 1 <= crop <= resize:
            raise ValueError(f"crop={crop} must be at least 1 and at most the {resize} pixels of resize")
        self.part = crop / resize
        self.flip = probability("flip", flip)

    def views(self, size: tuple[int, int], key: int) -> list[View]:
        """One box and its mirroring, drawn from the key."""
        draw = _Stream(key, 0)
        flip = draw.uniform() < self.flip
        height, width = size
        side = max(1, round(min(size) * self.part))
        return [((draw.below(width - side + 1), draw.below(height - side + 1), side, side), flip)]
