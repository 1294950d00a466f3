"""Tars of other programs, and the samples of shards."""

import io
import tarfile
from pathlib import Path

from shard_examples import jpeg

Members = list[tuple[str, bytes]]


def tar(path: Path, members: Members, mode: str = "w") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:  # pyright: ignore[reportCallIssue, reportArgumentType]
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def samples(*numbers: int) -> Members:
    """Images of the classes number % 3."""
    return [pair for n in numbers for pair in ((f"{n:04}.jpg", jpeg(n, 12, 10)), (f"{n:04}.cls", b"%d" % (n % 3)))]
