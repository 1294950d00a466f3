"""Decoding of image files to pixels."""

import io
import warnings

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from .jpeg_scans import count_scans
from .limits import DEFAULTS, Limits

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")
"""Suffixes of image files, in any case."""

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")  # Pillow opens nothing else: fewer decoders to trust
_JPEG = b"\xff\xd8\xff"
_SMALL = 10 << 18
"""Bytes of a scan's header, the least that a scan takes, times the pixels of a small image, 512 x 512. Scans are not
counted in a file that cannot hold more than the allowed number of them over such an image: for 32 x 32 pixels counting
takes half as long as decoding."""


def is_image(name: str) -> bool:
    """Whether a file name has a suffix of a supported image format."""
    return name.lower().endswith(SUFFIXES)


def decode(data: bytes, name: str, least: int = 0, limits: Limits = DEFAULTS) -> NDArray[np.uint8]:
    """Pixels of an image: uint8 [height, width, 3], RGB.

    The format is that of the bytes, whatever the name. Transparency is dropped, an animation's first frame is taken,
    and the EXIF orientation is ignored.

    Args:
        data: the whole file.
        name: for error messages.
        least: a large JPEG may be decoded at a fraction of its size, with at least this many pixels a side, if the
            caller shrinks it further anyway; 0: at full size.

    Raises:
        ValueError: unsupported format, damaged, cut off, or beyond the limits; the message begins with `name`.
    """
    try:
        pixels = _decode_jpeg(data, least, limits) if data.startswith(_JPEG) else None
        return _decode_other(data, limits) if pixels is None else pixels
    except MemoryError:
        raise
    except Exception as error:  # decoders may raise anything on damaged data
        raise ValueError(f"{name}: {_reason(data, error)}") from error


def decode_square(data: bytes, name: str, side: int, limits: Limits = DEFAULTS) -> Tensor:
    """The image with its shorter side resized to `side` pixels, cut to its centre: uint8 [3, side, side], RGB.

    Raises:
        ValueError: as `decode`.
    """
    # To twice the size or more, the decoder's own shrinking changes the result by one grey level at most on average.
    pixels = decode(data, name, least=2 * side, limits=limits)
    height, width = pixels.shape[:2]
    short = min(height, width)
    if short == side:
        left, top = (width - side) // 2, (height - side) // 2
        return to_tensor(pixels[top : top + side, left : left + side])
    left, top = (width - short) / 2, (height - short) / 2
    box = (left, top, left + short, top + short)
    return to_tensor(np.asarray(Image.fromarray(pixels).resize((side, side), Image.Resampling.BILINEAR, box=box)))


def to_tensor(pixels: NDArray[np.uint8]) -> Tensor:
    """uint8 [3, height, width] from [height, width, 3], in new memory."""
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def _decode_jpeg(data: bytes, least: int, limits: Limits) -> NDArray[np.uint8] | None:
    """Pixels, or None if Pillow must decode: CMYK, which simplejpeg refuses, and tolerable format errors."""
    try:
        rows, columns, *_ = simplejpeg.decode_jpeg_header(data)
        height, width = int(rows), int(columns)
        _check_size(width, height, limits)
        if height * width * len(data) > limits.scans * _SMALL:
            _check_scans(data, limits)
        # The header's size is checked above; scaling needs both sides, and small files are cheapest as they are.
        least = least if least and min(height, width) >= 2 * least else 0
        return simplejpeg.decode_jpeg(data, "RGB", min_height=least, min_width=least)
    except _TooLargeError:
        raise
    except ValueError as error:
        # Pillow would fill missing data with grey if the file has an end marker.
        if "premature end" in str(error).lower():
            raise
        _check_scans(data, limits)  # Pillow may take what has no header for simplejpeg
        return None


def _decode_other(data: bytes, limits: Limits) -> NDArray[np.uint8]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's warnings (odd EXIF and the like) name no file; size is checked below
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _check_size(*image.size, limits)
            image.load()
            if image.mode.startswith("I"):  # 16 bits a pixel, which Pillow would cut off at 255
                grey = (np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
                return np.repeat(grey[:, :, None], 3, axis=2)
            return np.array(image.convert("RGB"))


class _TooLargeError(ValueError):
    pass


def _check_scans(data: bytes, limits: Limits) -> None:
    scans = count_scans(data)
    if scans > limits.scans:
        raise _TooLargeError(f"{scans:,} scans are more than dataset.limits.scans={limits.scans}")


def _check_size(width: int, height: int, limits: Limits) -> None:
    if width * height > limits.pixels:
        raise _TooLargeError(f"{width} x {height} pixels are more than dataset.limits.pixels={limits.pixels}")


def _reason(data: bytes, error: Exception) -> str:
    if not data:
        return "the file is empty"
    if isinstance(error, Image.UnidentifiedImageError):
        return "not a JPEG, PNG, WebP, BMP or GIF image"
    return f"the image cannot be read: {error}"
