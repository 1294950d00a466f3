"""What distinguishes files wherever they lie: names below the folder of their split, and sizes, never times."""

import hashlib
import os
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def fingerprint(names: Iterable[str], *numbers: NDArray[np.int64]) -> str:
    """Digest of names and of numbers that belong to them, such as sizes."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
    for each in numbers:
        digest.update(each.astype("<i8").tobytes())
    return digest.hexdigest()


def name_hashes(names: Iterable[str]) -> NDArray[np.uint64]:
    """[N], a number for each name, equally distributed, the same on every machine; 0: there is no name."""
    encoded = (name.encode("utf-8", "surrogateescape") for name in names)
    digests = b"".join(hashlib.blake2b(name, digest_size=8).digest() for name in encoded)
    return np.frombuffer(digests, "<u8").clip(1)


def size_of(path: str) -> int:
    """Bytes of a file; -1 if it does not exist."""
    try:
        return os.stat(path).st_size
    except OSError:
        return -1
