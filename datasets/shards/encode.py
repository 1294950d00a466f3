"""Images of a source as shards hold them: JPEG files or raw pixels, shrunk to a size."""

import errno
import zlib
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from torch import Tensor

from ..decode import decode, resized_crop
from ..decoding.exif_orientation import is_turned, jpeg_tag
from ..limits import DEFAULTS

_JPEG = b"\xff\xd8\xff"
_LONGEST = 65535
_OF_THE_HOST = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class Encoded(NamedTuple):
    """An image as it is stored."""

    data: Any
    """bytes or contiguous pixels."""
    size: int
    crc: int
    label: int
    height: int
    width: int


class Encoder:
    """Encodes samples of a source: a dataset with `original(index)` and `name(index)`, or any other of uint8 images.

    Args:
        size: most pixels of the shorter side; None: images keep their sizes.
        quality: of JPEG. A JPEG that is small enough keeps its bytes, unless an EXIF tag says how it is to be turned.
        labels: number of classes, or of sets of classes: labels are below it.
    """

    def __init__(self, kind: Literal["jpeg", "raw"], size: int | None, quality: int, labels: int) -> None:
        self._kind, self._size, self._quality, self._labels = kind, size, quality, labels

    def __call__(self, source: Any, index: int) -> Encoded | str:
        """The sample as it is stored, or why it cannot be read."""
        try:
            return self._encoded(source, index)
        except OSError as error:
            if error.errno in _OF_THE_HOST:  # the sample may be good
                raise
            return str(error)
        except ValueError as error:
            return str(error)

    def _encoded(self, source: Any, index: int) -> Encoded:
        name = source.name(index) if hasattr(source, "name") else f"sample {index}"
        data, pixels, label = self._read(source, index, name)
        if isinstance(label, Tensor) and label.ndim:
            raise ValueError(f"{name}: shards hold targets {list(label.shape)} only of a dataset that has `label_sets`")
        label = int(label)
        if not 0 <= label < self._labels:
            raise ValueError(f"{name}: class {label} of {self._labels}")
        height, width = pixels.shape[:2]
        if self._size is not None and min(height, width) > self._size:
            turned = getattr(source, "exif_orientation", True)
            pixels, data = _shrunk(pixels, _size_of(data, pixels, turned), self._size), None
            height, width = pixels.shape[:2]
        if max(height, width) > _LONGEST:
            raise ValueError(f"{name}: {width} x {height} pixels, a side may have {_LONGEST}")
        if self._kind == "raw":
            pixels = np.ascontiguousarray(pixels)
            return Encoded(pixels, pixels.nbytes, zlib.crc32(pixels.data), label, height, width)
        if data is None or not data.startswith(_JPEG) or jpeg_tag(data) != 1:
            data = self._jpeg(pixels, name)
        return Encoded(data, len(data), zlib.crc32(data), label, 0, 0)

    def _read(self, source: Any, index: int, name: str) -> tuple[bytes | None, NDArray[np.uint8], int]:
        """The file, if there is one, its pixels [height, width, 3], and the class."""
        if not hasattr(source, "original"):
            image, label = source[index]
            return None, _pixels(image, name), label
        data, label = source.original(index)
        if not isinstance(data, bytes):
            return None, data, label
        # at twice the size or more the decoder's own shrinking changes one grey level at most on average
        limits, turned = getattr(source, "limits", DEFAULTS), getattr(source, "exif_orientation", True)
        return data, decode(data, name, 2 * (self._size or 0), limits, turned), label

    def _jpeg(self, pixels: NDArray[np.uint8], name: str) -> bytes:
        try:
            return simplejpeg.encode_jpeg(
                np.ascontiguousarray(pixels), self._quality, colorsubsampling="420", fastdct=False
            )
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error


def _pixels(image: Tensor, name: str) -> NDArray[np.uint8]:
    """[height, width, 3] of an image of a dataset; grey values are repeated."""
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or len(pixels) not in (1, 3):
        raise ValueError(f"{name}: an image must be uint8 [1 or 3, height, width], not {pixels.dtype} {pixels.shape}")
    return np.ascontiguousarray(np.broadcast_to(pixels, (3, *pixels.shape[1:])).transpose(1, 2, 0))


def _size_of(data: bytes | None, pixels: NDArray[np.uint8], exif_orientation: bool) -> tuple[int, int]:
    """Height and width of the whole image, of which a JPEG's pixels may be a fraction."""
    if data is not None and data.startswith(_JPEG):
        with suppress(ValueError):
            height, width, *_ = simplejpeg.decode_jpeg_header(data)
            turned = exif_orientation and is_turned(jpeg_tag(data))
            return (int(width), int(height)) if turned else (int(height), int(width))
    height, width, _ = pixels.shape
    return height, width


def _shrunk(pixels: NDArray[np.uint8], whole: tuple[int, int], size: int) -> NDArray[np.uint8]:
    """The shorter side of the whole becomes `size`, the longer is rounded down, as by torchvision's Resize."""
    height, width = pixels.shape[:2]
    shape = (int(size * whole[0] / min(whole)), int(size * whole[1] / min(whole)))
    return resized_crop(pixels, (0, 0, width, height), shape)[0].permute(1, 2, 0).numpy()
