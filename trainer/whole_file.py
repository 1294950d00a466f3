"""Files that are there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def whole_file(path: Path, mode: str = "w", **options: Any) -> Iterator[IO[Any]]:
    """Write beside, flush, rename; whatever fails meanwhile, the old file stays and nothing lies beside it.

    Args:
        mode: "w" or "wb", as `open` takes it; `options` are handed to it too.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, mode, **options) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
