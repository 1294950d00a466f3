"""Classes of ImageNet's validation images by the development kit of ILSVRC 2012."""

import gzip
import io
import tarfile
import zlib
from pathlib import Path

from .limits import CountedStream, Limits, read_regular

ANNOTATIONS = ("ILSVRC2012_devkit_t12", "ILSVRC2012_devkit_t12.tar.gz")
"""Folder, or the archive as it is downloaded (2.5 MB)."""
_TRUTH, _META = "data/ILSVRC2012_validation_ground_truth.txt", "data/meta.mat"
_HEADER, _COMPRESSED = 128, 15
"""Bytes before the first element of a .mat file of level 5, and the type of a compressed element."""


def devkit_classes(path: Path, limits: Limits) -> list[str]:
    """WordNet's number (n01440764) of each validation image, in the order of their numbers.

    Raises:
        OSError: it cannot be read.
        ValueError: damaged.
    """
    truth, meta = _read(path, limits)
    names = _wordnet_numbers(path, meta, limits)
    found: list[str] = []
    for number, line in enumerate(truth.split(), 1):
        name = names.get(int(line)) if line.isdigit() and len(line) < 6 else None
        if name is None:
            raise ValueError(f"{path}/{_TRUTH}, line {number}: {line[:20]!r} is no class of {_META}")
        found.append(name)
    return found


def _read(path: Path, limits: Limits) -> tuple[bytes, bytes]:
    if path.is_dir():
        truth, meta = (read_regular(str(path / name), limits) for name in (_TRUTH, _META))
        return truth, meta
    wanted = dict[str, bytes]()
    try:
        with gzip.open(path) as unpacked:
            # a stream, which is read once from its beginning: nothing is extracted
            stream = CountedStream(unpacked, limits.file_bytes, str(path))
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    file = archive.extractfile(member) if member.isreg() else None
                    for name in (_TRUTH, _META):
                        if file is not None and member.name.endswith(name):
                            wanted[name] = file.read()
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    lacking = [name for name in (_TRUTH, _META) if name not in wanted]
    if lacking:
        raise ValueError(f"{path} lacks {' and '.join(lacking)}")
    return wanted[_TRUTH], wanted[_META]


def _wordnet_numbers(path: Path, meta: bytes, limits: Limits) -> dict[int, str]:
    """By ILSVRC2012_ID: of `synsets` in meta.mat."""
    import scipy.io  # 0.2 s, for this file alone

    try:
        file = io.BytesIO(_inflated(meta, limits.file_bytes))
        synsets = scipy.io.loadmat(file, squeeze_me=True, variable_names=["synsets"])["synsets"]
        return {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in synsets}
    except MemoryError:
        raise
    except Exception as error:  # damaged data may raise anything there
        raise ValueError(f"{path}/{_META} cannot be read: {error}") from error


def _inflated(meta: bytes, most: int) -> bytes:
    """The file with its elements decompressed, of which scipy would take any size."""
    parts, at, left = [meta[:_HEADER]], _HEADER, most
    while at + 8 <= len(meta):
        kind, size = (int.from_bytes(meta[at + k : at + k + 4], "little") for k in (0, 4))
        element = meta[at : at + 8 + size]
        if kind == _COMPRESSED:
            element = zlib.decompressobj().decompress(element[8:], left + 1)
        at += 8 + size
        left -= len(element)
        if left < 0:
            raise ValueError(f"it decompresses to more bytes than dataset.limits.file_bytes={most}")
        parts.append(element)
    return b"".join(parts)
