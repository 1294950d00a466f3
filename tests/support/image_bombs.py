"""Images and archives that declare more than they hold or decode to more than a machine has; harmless neighbours."""

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from leyden.datasets.decoding.jpeg_scans import count_scans


def encoded(kind: str = "JPEG", progressive: bool = False, shape: tuple[int, int] = (24, 32)) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (*shape, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **({"progressive": True} if progressive else {}))
    return buffer.getvalue()


def with_scans(scans: int, shape: tuple[int, int] = (240, 320)) -> bytes:
    """A progressive JPEG whose last scan is repeated."""
    data = encoded(progressive=True, shape=shape)
    last = data.rfind(b"\xff\xda")
    return data[:last] + data[last:-2] * (scans - count_scans(data) + 1) + b"\xff\xd9"


def claims_pixels(side: int) -> bytes:
    """A JPEG whose header declares a square of so many pixels a side."""
    data = bytearray(encoded())
    at = data.find(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", side, side)
    return bytes(data)


def tiff(width: int, height: int, more: Mapping[int, int] | None = None) -> bytes:
    """A deflated grey TIFF that declares this size, and has further tags; its one strip or tile is 256 zeros."""
    strip = zlib.compress(bytes(256))
    tags = {256: width, 257: height, 258: 8, 259: 8, 262: 1, 273: 8, 277: 1, 278: height, 279: len(strip)}
    if more:
        tags = {324 if tag == 273 else 325 if tag == 279 else tag: value for tag, value in tags.items() if tag != 278}
    tags = dict(sorted({**tags, **(more or {})}.items()))
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    content = strip + bytes(len(strip) % 2)
    return b"II*\0" + struct.pack("<I", 8 + len(content)) + content + struct.pack("<H", len(tags)) + entries + bytes(4)


def zeros(path: Path, size: int) -> None:
    """A zip whose member decompresses to `size` zeros, next to an image."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("cat/bomb.jpg", "w", force_zip64=True) as member:
            for _ in range(size >> 20):
                member.write(bytes(1 << 20))
        archive.writestr("cat/photo.jpg", encoded())


def understated(path: Path, size: int) -> None:
    """The same, the header declaring 1,000 bytes."""
    zeros(path, size)
    data = bytearray(path.read_bytes())
    entry = data.rfind(b"PK\x01\x02", 0, data.rfind(b"PK\x01\x02"))
    data[entry + 24 : entry + 28] = struct.pack("<I", 1000)
    path.write_bytes(data)


def overstated(path: Path, size: int) -> None:
    """A stored member whose header declares 3 GB."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("cat/bomb.jpg", b"x")
        archive.writestr("cat/photo.jpg", encoded())
    data = bytearray(path.read_bytes())
    entry = data.find(b"PK\x01\x02")
    data[entry + 20 : entry + 28] = struct.pack("<II", 3 << 30, 3 << 30)
    path.write_bytes(data)
