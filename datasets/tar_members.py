"""Files of an uncompressed tar by their offsets, from its headers alone: nothing is extracted."""

import tarfile
from collections.abc import Iterator
from pathlib import Path

from .limits import Limits, SmallReads

_HEADER = 1 << 20  # an extended header has a few hundred bytes


def tar_members(root: Path, limits: Limits, start: int = 0, end: int | None = None) -> Iterator[tuple[str, int, int]]:
    """Name, offset and bytes of each regular file, in order. Links, hidden names and names that lead out are left out.

    Args:
        start, end: bytes of the file between which the tar lies, if it is itself a member of a tar.

    Raises:
        ValueError: damaged, or more files than the limit.
        tarfile.TarError: not a tar, or damaged.
    """
    count, before = 0, -1
    with root.open("rb") as file:
        file.seek(start)
        archive = tarfile.open(fileobj=SmallReads(file, _HEADER, str(root)), mode="r:")  # noqa: SIM115  # closed by `file`
        while (info := archive.next()) is not None and (end is None or info.offset < end):
            count += 1
            limits.check_members(count, str(root))
            if info.offset <= before:  # of a negative size: it would be read without end
                raise ValueError(f"{root} is damaged: the file after byte {before:,} begins before it")
            before = info.offset
            # tarfile keeps every header: a gigabyte for a million files.
            archive.members = []  # pyright: ignore[reportAttributeAccessIssue]
            name = inside(info.name)
            if end is not None and info.offset_data + info.size > end:
                raise ValueError(
                    f"{root} is damaged: the file at byte {info.offset:,} ends after the tar that it is in"
                )
            if info.isreg() and not info.issparse() and name is not None:
                yield name, info.offset_data, info.size


def inside(name: str) -> str | None:
    """The name without `./`; None if it is hidden or outside the archive.

    Older tools of Windows wrote backslashes for slashes. Where there is a slash, too, a backslash is part of a name.
    """
    name = name if "/" in name else name.replace("\\", "/")
    parts = [part for part in name.split("/") if part != "."]
    if name.startswith("/") or any(part == ".." or is_hidden(part) for part in parts):
        return None
    return "/".join(parts)


def is_hidden(name: str) -> bool:
    """Whether a file or folder is hidden, or is made by a system for itself, with copies of pictures at times."""
    return name.startswith(".") or name in ("__MACOSX", "@eaDir")
