"""Decoding of image files to pixels."""

from collections.abc import Callable

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from .decoding.exif_orientation import exif_tag, is_turned, jpeg_tag, upright
from .decoding.grey import as_rgb, is_grey
from .decoding.jpeg_scans import count_scans
from .decoding.pillow_decoder import decode_by_pillow
from .limits import DEFAULTS, Limits, TooLargeError

SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif",
)  # fmt: skip
"""Suffixes of image files, in any case."""

_JPEG = b"\xff\xd8\xff"
_SMALL = 10 << 18
"""Bytes of a scan's header, the least that a scan takes, times the pixels of a small image, 512 x 512. Scans are not
counted in a file that cannot hold more than the allowed number of them over such an image: for 32 x 32 pixels counting
takes half as long as decoding."""


def is_image(name: str) -> bool:
    """Whether a file name has a suffix of a supported image format."""
    return name.lower().endswith(SUFFIXES)


Least = int | Callable[[int, int], int]
"""Pixels a side that a decoded JPEG has at least, or what gives them by the height and width in its header."""


def decode(
    data: bytes, name: object, least: Least = 0, limits: Limits = DEFAULTS, exif_orientation: bool = True
) -> NDArray[np.uint8]:
    """Pixels of an image: uint8 [height, width, 3], RGB; of a grey one the channels may share their memory (`is_grey`).

    The format is that of the bytes, whatever the name. Transparency is dropped, and of an animation or of several
    pages the first is taken.

    Args:
        data: the whole file.
        name: is printed in error messages.
        least: a large JPEG may be decoded at a fraction of its size, with at least this many pixels a side, if the
            caller shrinks it further anyway; 0: at full size.
        exif_orientation: the image is turned as its EXIF tag says, which is how viewers show it; False: as it is
            stored. A TIFF is always turned.

    Raises:
        ValueError: unsupported format, damaged, cut off, or beyond the limits; the message begins with `name`.
    """
    try:
        if data.startswith(_JPEG):
            tag = jpeg_tag(data) if exif_orientation else 1
            pixels = _decode_jpeg(data, _as_stored(least, tag), limits)
            return upright(decode_by_pillow(data, limits)[0] if pixels is None else pixels, tag)
        pixels, exif = decode_by_pillow(data, limits)
        return upright(pixels, exif_tag(exif)) if exif_orientation else pixels
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
    return square(decode(data, name, least=2 * side, limits=limits), side)


def square(pixels: NDArray[np.uint8], side: int) -> Tensor:
    """The image with its shorter side resized to `side` pixels, cut to its centre: uint8 [3, side, side], RGB."""
    height, width = pixels.shape[:2]
    short = min(height, width)
    if short == side:
        left, top = (width - side) // 2, (height - side) // 2
        return to_tensor(pixels[top : top + side, left : left + side])
    left, top = (width - short) / 2, (height - short) / 2
    box = (left, top, left + short, top + short)
    grey = is_grey(pixels)
    whole = Image.fromarray(pixels[:, :, 0] if grey else pixels)
    resized = np.asarray(whole.resize((side, side), Image.Resampling.BILINEAR, box=box))
    return to_tensor(as_rgb(resized) if grey else resized)


_LONGEST = 4
Box = tuple[int, int, int, int]
"""Left, top, width, height of a part of an image, in pixels."""


def resized_crop(pixels: NDArray[np.uint8], box: Box, size: tuple[int, int], out: Tensor | None = None) -> Tensor:
    """A part of an image resized by antialiased bilinear interpolation: uint8 [1, 3, *size], channels last in memory.

    It differs from Pillow's by at most 2 grey levels and takes a third of its time. Grey pixels are Pillow's.

    Args:
        pixels: [height, width, 3].
        size: height and width of the result.
        out: where it is written, of this form; None: new memory, or the image's own if nothing is resized.
    """
    part = _cut(pixels, box, size)
    if part.shape[2:] == size:
        return part if out is None else out.copy_(part)
    if out is not None:  # as `interpolate` calls it, which takes no `out`
        resize = torch._C._nn._upsample_bilinear2d_aa  # pyright: ignore[reportAttributeAccessIssue]  # no stub
        return resize(part, size, False, None, None, out=out)
    whole = interpolate(part, size=size, mode="bilinear", antialias=True)
    return whole.contiguous(memory_format=torch.channels_last)  # of a single pixel torch makes planes


def _cut(pixels: NDArray[np.uint8], box: Box, size: tuple[int, int]) -> Tensor:
    """A part of an image, uint8 [1, 3, height, width]; a grey one's is resized already."""
    left, top, width, height = box
    if is_grey(pixels):  # by Pillow: torch takes four bytes a pixel
        grey = Image.fromarray(pixels[top : top + height, left : left + width, 0])
        resized = np.asarray(grey.resize((size[1], size[0]), Image.Resampling.BILINEAR))
        return torch.from_numpy(np.ascontiguousarray(as_rgb(resized)))[None].permute(0, 3, 1, 2)
    # contiguous in this layout it is resized without being taken apart into planes; by NumPy, as each of torch's calls
    # lets another thread have the interpreter
    cut = np.ascontiguousarray(pixels[top : top + height, left : left + width])
    return torch.from_numpy(cut.reshape(1, height, width, 3).transpose(0, 3, 1, 2))


def scaled_box(box: Box, scale: float, size: tuple[int, int]) -> Box:
    """The place of a part in the scaled image of this height and width, rounded to pixels."""
    left, top, width, height = box
    first, last = min(round(left * scale), size[1] - 1), min(round((left + width) * scale), size[1])
    upper, lower = min(round(top * scale), size[0] - 1), min(round((top + height) * scale), size[0])
    return first, upper, max(1, last - first), max(1, lower - upper)


def resized_centre(pixels: NDArray[np.uint8], resize: int, crop: int) -> Tensor:
    """The image with its shorter side resized to `resize` pixels, cut to its centre: uint8 [3, crop, crop], RGB.

    As torchvision's Resize and CenterCrop: the longer side is rounded down, the corner to the nearest even number. Of
    an image longer than 4:1 the centre of that shape is taken first: all of it could become too large when enlarged.
    """
    return resized_crops(pixels, resize, crop, 1)[0]


def resized_crops(pixels: NDArray[np.uint8], resize: int, crop: int, crops: int) -> Tensor:
    """Crops of the image with its shorter side resized to `resize` pixels: uint8 [crops, 3, crop, crop], RGB.

    Args:
        crops: 1: the centre, as `resized_centre`; 5: the corners (left before right, top before bottom) and the centre;
            10: these and their mirror images. As torchvision's FiveCrop and TenCrop.

    Raises:
        ValueError: the resized image is smaller than the crop.
    """
    if resize < crop:
        raise ValueError(f"a shorter side of {resize} pixels is smaller than the crop of {crop}")
    height, width = pixels.shape[:2]
    short = min(height, width)
    if max(height, width) > _LONGEST * short:
        rows, columns = min(height, _LONGEST * short), min(width, _LONGEST * short)
        top, left = (height - rows) // 2, (width - columns) // 2
        pixels = pixels[top : top + rows, left : left + columns]
        height, width = rows, columns
    rows, columns = (int(resize * side / short) for side in (height, width))
    whole = resized_crop(pixels, (0, 0, width, height), (rows, columns))
    corners = [(0, 0), (0, columns - crop), (rows - crop, 0), (rows - crop, columns - crop)] if crops > 1 else []
    places = [*corners, (round((rows - crop) / 2), round((columns - crop) / 2))]
    views = torch.stack([whole[0, :, top : top + crop, left : left + crop] for top, left in places])
    return torch.cat([views, views.flip(3)]) if crops == 10 else views


def to_tensor(pixels: NDArray[np.uint8]) -> Tensor:
    """uint8 [3, height, width] from [height, width, 3], in new memory."""
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def _as_stored(least: Least, tag: int) -> Least:
    """The same of the height and width that a JPEG has before it is turned."""
    return (lambda height, width: least(width, height)) if callable(least) and is_turned(tag) else least


def _decode_jpeg(data: bytes, least: Least, limits: Limits) -> NDArray[np.uint8] | None:
    """Pixels, or None if Pillow must decode: CMYK, which simplejpeg refuses, and tolerable format errors."""
    try:
        rows, columns, *_ = simplejpeg.decode_jpeg_header(data)
        height, width = int(rows), int(columns)
        limits.check_pixels(width, height)
        if height * width * len(data) > limits.scans * _SMALL:
            _check_scans(data, limits)
        # The header's size is checked above; scaling needs both sides, and small files are cheapest as they are.
        least = least(height, width) if callable(least) else least
        least = least if least and min(height, width) >= 2 * least else 0
        return simplejpeg.decode_jpeg(data, "RGB", min_height=least, min_width=least)
    except TooLargeError:
        raise
    except ValueError as error:
        # Pillow would fill missing data with grey if the file has an end marker.
        if "premature end" in str(error).lower():
            raise
        _check_scans(data, limits)  # Pillow may take what has no header for simplejpeg
        return None


def _check_scans(data: bytes, limits: Limits) -> None:
    scans = count_scans(data)
    if scans > limits.scans:
        raise TooLargeError(f"{scans:,} scans are more than dataset.limits.scans={limits.scans}")


def _reason(data: bytes, error: Exception) -> str:
    if not data:
        return "the file is empty"
    if isinstance(error, Image.UnidentifiedImageError):
        return "not a JPEG, PNG, WebP, BMP, GIF, TIFF or AVIF image that can be read"
    if isinstance(error, Image.DecompressionBombError):  # its text speaks of an attack, and names none of our keys
        text = "it has more pixels than Pillow reads, 178,956,970; only a JPEG or PNG may have dataset.limits.pixels"
        return f"the image cannot be read: {text}"
    return f"the image cannot be read: {error}"
