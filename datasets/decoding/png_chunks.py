"""Chunks of a PNG, sorted before anything in them is decompressed."""

import io

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def is_png(data: bytes) -> bool:
    """Whether a file begins as a PNG."""
    return data.startswith(_SIGNATURE)


def pixels_and_exif(data: bytes) -> io.BytesIO:
    """A PNG without texts, colour profiles, further frames and the like.

    These may be compressed, so that a few kilobytes hold megabytes, and Pillow, which reads them all, refuses the file.
    """
    file, view, at = io.BytesIO(), memoryview(data), len(_SIGNATURE)
    file.write(_SIGNATURE)
    while at < len(data):
        kind = data[at + 4 : at + 8]
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        if not kind[:1].islower() or kind == b"eXIf":  # chunks that pixels depend on begin with a capital
            file.write(view[at:end])
        at = end
    file.seek(0)
    return file
