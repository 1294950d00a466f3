"""Decoding by Pillow: of all formats but JPEG, and of the JPEGs that simplejpeg does not take."""

import io
import threading
import warnings
from types import TracebackType

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.ImageFile import ImageFile
from PIL.PngImagePlugin import PngImageFile

from ..limits import Limits
from .grey import as_rgb
from .png_chunks import is_png, pixels_and_exif

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "AVIF")  # nothing else is opened: fewer decoders to trust
_STRIP = 1 << 22
"""Pixels converted at a time: of a whole image Pillow makes three copies."""
_TILE_WIDTH, _TILE_HEIGHT = 322, 323


class _NoWarnings:
    """A context without warnings. Python's own is one of the whole process: two threads that enter and leave it in
    turns would leave it changed, so that the first to enter and the last to leave do it for all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._context = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._context = warnings.catch_warnings()
                self._context.__enter__()
                warnings.simplefilter("ignore")
            self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._context.__exit__(kind, error, trace)


_no_warnings = _NoWarnings()


def decode_by_pillow(data: bytes, limits: Limits) -> tuple[NDArray[np.uint8], bytes]:
    """Pixels as they are stored (uint8 [height, width, 3], RGB) and the file's EXIF; a TIFF is upright and has none.

    Raises:
        Exception: of any kind, on damaged data; TooLargeError: beyond the limits.
    """
    # Pillow's warnings (odd EXIF and the like) name no file; size is checked below
    with _no_warnings, _opened(data) as image:
        limits.check_pixels(*image.size)
        _check_tiles(image, limits)
        image.load()
        return _rgb(image), image.info.get("exif") or b""


def _opened(data: bytes) -> ImageFile:
    if is_png(data):  # without the limit of Image.open, which is below dataset.limits.pixels
        return PngImageFile(pixels_and_exif(data))
    return Image.open(io.BytesIO(data), formats=_FORMATS)


def _check_tiles(image: Image.Image, limits: Limits) -> None:
    """Raise TooLargeError if a TIFF declares tiles that are larger than any image may be."""
    tags = getattr(image, "tag_v2", {})
    sides = [side for tag in (_TILE_WIDTH, _TILE_HEIGHT) if isinstance(side := tags.get(tag), int)]
    if len(sides) == 2:
        limits.check_pixels(*sides)


def _rgb(image: Image.Image) -> NDArray[np.uint8]:
    if image.mode.startswith("I;16"):  # Pillow would cut it off at 255
        return as_rgb((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("its pixels are numbers of 32 bits, whose brightest is not known; save it with 8 or 16 bits")
    if image.mode in ("1", "L", "LA"):
        return as_rgb(_converted(image, "L", ()))
    return _converted(image, "RGB", (3,))


def _converted(image: Image.Image, mode: str, channels: tuple[int, ...]) -> NDArray[np.uint8]:
    width, height = image.size
    rows = max(1, _STRIP // width)
    if rows >= height:
        return np.array(image.convert(mode))
    pixels = np.empty((height, width, *channels), np.uint8)
    for top in range(0, height, rows):
        strip = image.crop((0, top, width, min(top + rows, height)))
        pixels[top : top + rows] = np.asarray(strip.convert(mode))
    return pixels
