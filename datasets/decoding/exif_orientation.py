"""Orientation of an image: an EXIF tag says how the stored pixels are turned and mirrored to be shown."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

_EXIF = b"Exif\0\0"
_BYTE_ORDERS: Mapping[bytes, Literal["little", "big"]] = {b"II*\0": "little", b"MM\0*": "big"}
_ORIENTATION, _LONG = 0x0112, 4


def jpeg_tag(data: bytes) -> int:
    """1 to 8, from the EXIF segment before a JPEG's tables; 1 without one.

    Of a file without EXIF one or two segments are looked at: half a microsecond.
    """
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF and (data[at + 1] & 0xF0 == 0xE0 or data[at + 1] == 0xFE):
        end = at + 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
        if data[at + 1] == 0xE1 and data.startswith(_EXIF, at + 4):
            return exif_tag(data[at + 4 : end])
        at = end
    return 1


def exif_tag(exif: bytes) -> int:
    """1 to 8; 1 without the tag, or if it is damaged."""
    exif = exif.removeprefix(_EXIF)
    order = _BYTE_ORDERS.get(exif[:4])
    if order is None:
        return 1
    first = int.from_bytes(exif[4:8], order) + 2
    entries = int.from_bytes(exif[first - 2 : first], order)
    for at in range(first, min(first + 12 * entries, len(exif) - 11), 12):
        if int.from_bytes(exif[at : at + 2], order) == _ORIENTATION:
            size = 4 if int.from_bytes(exif[at + 2 : at + 4], order) == _LONG else 2
            value = int.from_bytes(exif[at + 8 : at + 8 + size], order)
            return value if 1 <= value <= 8 else 1
    return 1


def is_turned(tag: int) -> bool:
    """Whether height and width change places."""
    return tag >= 5


def upright(pixels: NDArray[np.uint8], tag: int) -> NDArray[np.uint8]:
    """Pixels [height, width, channels] as they are shown; the same array if they are stored so."""
    if tag == 1:
        return pixels
    shown = pixels.transpose(1, 0, 2) if is_turned(tag) else pixels
    rows = -1 if tag in (3, 4, 7, 8) else 1
    columns = -1 if tag in (2, 3, 6, 7) else 1
    return np.ascontiguousarray(shown[::rows, ::columns])
