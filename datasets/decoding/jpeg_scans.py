"""Scans of a JPEG, counted from its markers before anything is decoded."""

_SOS, _EOI = 0xDA, 0xD9
FRAMES = frozenset({0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})
_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})


def count_scans(data: bytes) -> int:
    """Number of scans; 1 if the first holds all components of a sequential image, as the decoder reads no other.

    A marker inside of a comment between two scans counts as well: the number is never too small.
    """
    at, components = 2, 0
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            at += 1  # as libjpeg does with bytes between segments
            continue
        marker = data[at + 1]
        if marker == 0xFF or marker in _WITHOUT_LENGTH:
            at += 1 if marker == 0xFF else 2
            continue
        if marker == _EOI:
            break
        if marker == _SOS:
            return 1 if components and data[at + 4 : at + 5] == bytes([components]) else data.count(b"\xff\xda", at)
        if marker in FRAMES and marker != 0xC2:
            components = data[at + 9] if at + 9 < len(data) else 0
        at += 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
    return 0
