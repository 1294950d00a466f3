"""Size of an image from the first bytes of its file, without a decoder."""

import struct
from collections.abc import Callable

from ..limits import Limits, TooLargeError
from .jpeg_scans import FRAMES

_LENGTHS = (1 << 12, 1 << 16)
"""Bytes that are read at first, and where those do not suffice: cameras put a small image before a JPEG's size."""
_AVIF = tuple(b"ftyp" + brand for brand in (b"avif", b"avis", b"mif1", b"msf1"))


def looks_whole(start: Callable[[int], bytes], limits: Limits) -> bool:
    """Whether a file begins as an image within the limits does; if not, only decoding it says whether it is one.

    The sizes of WebP, TIFF and AVIF images are not read.

    Args:
        start: the file's first bytes by their number.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    data = b""
    for length in _LENGTHS:
        data = start(length)
        size = _size(data)
        if size is not None:
            try:
                limits.check_pixels(*size)
            except TooLargeError:
                return False
            return min(size) > 0
        if len(data) < length:
            break
    return data.startswith((b"II*\0", b"MM\0*")) or data[8:12] == b"WEBP" or data[4:12] in _AVIF


def _size(data: bytes) -> tuple[int, int] | None:
    """Width and height; None: unknown."""
    if data.startswith(b"\xff\xd8\xff"):
        return _of_jpeg(data)
    if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR" and len(data) >= 24:
        return struct.unpack_from(">II", data, 16)
    if data.startswith(b"GIF8") and len(data) >= 10:
        return struct.unpack_from("<HH", data, 6)
    if data.startswith(b"BM") and len(data) >= 26 and data[14] >= 40:
        width, height = struct.unpack_from("<ii", data, 18)
        return abs(width), abs(height)
    return None


def _of_jpeg(data: bytes) -> tuple[int, int] | None:
    """Width and height from the frame's header; None: it is not among these bytes."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        if data[at + 1] in FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None
