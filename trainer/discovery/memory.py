"""Main memory: how much there is, and how much of it is left."""

import re
from collections.abc import Iterator
from pathlib import Path

from .reading import number_of, text_of

_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")


def memory_gb(root: Path = Path("/")) -> float | None:
    """Of the host, of 2^30 bytes."""
    kilobytes = _counted("MemTotal:", root / "proc/meminfo")
    return None if kilobytes is None else round(kilobytes / 2**20, 1)


def free_bytes(root: Path = Path("/")) -> int | None:
    """What this process may still take of the host's memory and of what its control groups (Slurm's job, a container)
    are allowed. None where the kernel does not say."""
    kilobytes = _counted("MemAvailable:", root / "proc/meminfo")
    left = [*([] if kilobytes is None else [kilobytes * 1024]), *_left_of_groups(root)]
    return min(left, default=None)


def _left_of_groups(root: Path) -> Iterator[int]:
    mounted = root / "sys/fs/cgroup"
    for line in (text_of(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top, files = (mounted / "memory", _VERSION_1) if controllers else (mounted, _VERSION_2)
        group = Path(path.lstrip("/"))
        for folder in (group, *group.parents):
            yield from _left_of(top / folder, *files)


def _left_of(group: Path, limit: str, used: str, cached: str) -> Iterator[int]:
    most, taken = number_of(group / limit), number_of(group / used)
    if most is not None and taken is not None:
        # files that were read once are given up before anybody is refused memory
        yield most - taken + (_counted(cached, group / "memory.stat") or 0)


def _counted(name: str, file: Path) -> int | None:
    """The number behind a name in a file of such lines."""
    found = re.search(rf"^{name}\s+(\d+)", text_of(file) or "", re.MULTILINE)
    return int(found[1]) if found else None
