"""Samples of a dataset of images: squares, chosen crops, and what evaluation sees."""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .decode import Box, Least, resized_centre, resized_crop, resized_crops, scaled_box, square
from .limits import DEFAULTS, Limits

SPLITS = ("train", "val", "test")
Label = int | Tensor
"""Class, or float32 [classes] of 0 and 1 where an image has any number of classes."""


class ImageSamples:
    """Base of datasets whose samples are an image of any size and a class.

    A subclass has `__len__`, `_pixels(index, least)` and `_label(index)`, whose indices are those of its arrays. With
    several labels an image, `_label` gives the number of a set of classes.

    Args:
        image_size: pixels a side; without an augmentation that chooses crops the shorter side is resized to this, then
            the centre is cropped.
        limits: sizes beyond which a file is not read.
        resize: pixels of the shorter side in evaluation, before the centre is cropped; "auto": crop * 8 / 7, which is
            256 for 224; None: `crop`.
        crop: pixels a side of the centre in evaluation; None: `image_size`.
        scaled_decoding: a JPEG of which chosen crops are shrunk to half their size or less is decoded at a fraction of
            its size, with as many pixels as they get.
        exif_orientation: images are turned as their EXIF tag says, which is how viewers show them; False: as stored.

    Attributes:
        mean, std: of ImageNet's training images, scaled to 0..1.
        crop: pixels a side of what evaluation sees.
        label_sets: the classes of each set of labels; None: an image has one class.
        shares_pixels: whether an image's pixels are memory that later reads see.

    Raises:
        ValueError: a size under 1, or `resize` smaller than the crop.
    """

    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    label_sets: Sequence[Sequence[int]] | None = None
    classes: int
    shares_pixels = False

    def __init__(
        self,
        image_size: int = 224,
        limits: Limits = DEFAULTS,
        resize: int | Literal["auto"] | None = None,
        crop: int | None = None,
        scaled_decoding: bool = False,
        exif_orientation: bool = True,
    ) -> None:
        self.exif_orientation = exif_orientation
        self.scaled_decoding = scaled_decoding
        self.image_shape, _ = self.declared(image_size, resize, crop)
        self.crop = image_size if crop is None else crop
        self._resize = round(self.crop * 8 / 7) if resize == "auto" else resize or self.crop
        self.image_size = image_size
        self.limits = limits

    @staticmethod
    def declared(
        image_size: int = 224,
        resize: int | Literal["auto"] | None = None,
        crop: int | None = None,
        **others: object,
    ) -> tuple[tuple[int, int, int], None]:
        """Shape of an image, without reading anything; the classes are the data's.

        Raises:
            ValueError: a size under 1, or `resize` smaller than the crop.
        """
        for name, value in (("image_size", image_size), ("crop", crop)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if isinstance(resize, int) and resize < (crop or image_size):
            raise ValueError(f"resize={resize} must be at least the {crop or image_size} pixels of the crop, or auto")
        return (3, image_size, image_size), None

    @property
    def multi_label(self) -> bool:
        """Whether an image has any number of classes: its target is float32 [classes] of 0 and 1."""
        return self.label_sets is not None

    def __getitem__(self, index: int) -> tuple[Tensor, Label]:
        """Image (uint8 [3, image_size, image_size], RGB) and class.

        Raises:
            OSError, ValueError: the file cannot be read or decoded; the message has its name.
        """
        # at twice the size or more the decoder's own shrinking changes one grey level at most on average
        pixels = self._pixels(operator.index(index), 2 * self.image_size)
        return square(pixels, self.image_size), self._target(index)

    def crops(
        self, index: int, boxes: Callable[[int, int], Sequence[Box]], size: tuple[int, int]
    ) -> tuple[Tensor, Label]:
        """Crops of an image that is decoded once (uint8 [crops, 3, *size], RGB, channels last in memory), and class.

        Args:
            boxes: left, top, width and height of each crop, by height and width of the image.
            size: height and width to which each crop is resized.

        Raises:
            OSError, ValueError: as `dataset[index]`.
        """
        pixels, chosen = self._image_and_boxes(index, boxes, size)
        parts = [resized_crop(pixels, box, size) for box in chosen]
        if len(parts) > 1:
            return torch.cat(parts), self._target(index)
        # a crop that needs no resizing is the image's memory itself
        is_shared = self.shares_pixels and chosen[0][:1:-1] == size
        return parts[0].clone() if is_shared else parts[0], self._target(index)

    def crops_into(self, index: int, boxes: Callable[[int, int], Sequence[Box]], room: Tensor) -> tuple[Tensor, Label]:
        """As `crops`, written into `room` (uint8 [crops, 3, height, width]) if there are as many crops."""
        size = (room.shape[2], room.shape[3])
        pixels, chosen = self._image_and_boxes(index, boxes, size)
        if len(chosen) != room.shape[0]:
            return torch.cat([resized_crop(pixels, box, size) for box in chosen]), self._target(index)
        for box, out in zip(chosen, room.split(1) if len(chosen) > 1 else [room], strict=True):
            resized_crop(pixels, box, size, out)
        return room, self._target(index)

    def _image_and_boxes(
        self, index: int, boxes: Callable[[int, int], Sequence[Box]], size: tuple[int, int]
    ) -> tuple[NDArray[np.uint8], Sequence[Box]]:
        if self.scaled_decoding:
            return self._scaled(operator.index(index), boxes, size)
        pixels = self._pixels(operator.index(index), 0)
        return pixels, boxes(*pixels.shape[:2])

    def _scaled(
        self, index: int, boxes: Callable[[int, int], Sequence[Box]], size: tuple[int, int]
    ) -> tuple[NDArray[np.uint8], list[Box]]:
        """Pixels with as many as the crops need, or more, and the crops' places in them."""
        whole: list[tuple[int, int]] = []
        chosen: list[Box] = []
        errors: list[Exception] = []

        def least(height: int, width: int) -> int:
            whole[:] = [(height, width)]
            try:
                chosen[:] = boxes(height, width)
            except Exception as error:  # the decoder would name the file as damaged
                errors.append(error)
                return 0
            scale = max(max(size[0] / rows, size[1] / columns) for _, _, columns, rows in chosen)
            return math.ceil(scale * min(height, width))

        pixels = self._pixels(index, least)
        height, width = pixels.shape[:2]
        if not whole:  # no JPEG
            least(height, width)
        if errors:
            raise errors[0]
        if whole == [(height, width)]:
            return pixels, chosen
        scale = round(8 * height / whole[0][0]) / 8  # JPEG's are eighths; sides are rounded up
        return pixels, [scaled_box(box, scale, (height, width)) for box in chosen]

    def evaluation_sample(self, index: int) -> tuple[Tensor, Label]:
        """Image (uint8 [3, crop, crop], RGB) as evaluation sees it, and class.

        Raises:
            OSError, ValueError: as `dataset[index]`.
        """
        if self._resize == self.crop == self.image_size:
            return self[index]
        pixels = self._pixels(operator.index(index), 0)
        return resized_centre(pixels, self._resize, self.crop), self._target(index)

    def evaluation_views(self, index: int, crops: int, scales: Sequence[int]) -> tuple[Tensor, Label]:
        """Views of an image that is decoded once (uint8 [views, 3, crop, crop], RGB), and label.

        Args:
            crops: 1: the centre; 5: the corners, too; 10: these and their mirror images.
            scales: pixels of the shorter side before crops are cut; none: `resize`.

        Raises:
            OSError, ValueError: as `dataset[index]`, or a scale smaller than the crop.
        """
        pixels = self._pixels(operator.index(index), 0)
        parts = [resized_crops(pixels, scale, self.crop, crops) for scale in scales or (self._resize,)]
        return torch.cat(parts), self._target(index)

    def _target(self, index: int) -> Label:
        label = self._label(index)
        if self.label_sets is None:
            return label
        target = torch.zeros(self.classes)
        target[list(self.label_sets[label])] = 1.0
        return target

    def _pixels(self, index: int, least: Least) -> NDArray[np.uint8]:
        """[height, width, 3], RGB. `least`: as `decode` takes it."""
        raise NotImplementedError

    def _label(self, index: int) -> int:
        raise NotImplementedError
