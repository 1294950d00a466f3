"""Main memory: total and free."""

import re
from collections.abc import Iterator
from pathlib import Path

from .sysfs import number_of, text_of

_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")


def memory_gb(root: Path = Path("/")) -> float | None:
    """Memory of the host in units of 2^30 bytes."""
    kilobytes = _read_count("MemTotal:", root / "proc/meminfo")
    return None if kilobytes is None else round(kilobytes / 2**20, 1)


def free_bytes(root: Path = Path("/")) -> int | None:
    """Free memory for this process: of the host, and within the limits of its control groups (Slurm's job, container);
    None if the kernel does not report it."""
    kilobytes = _read_count("MemAvailable:", root / "proc/meminfo")
    left = [*([] if kilobytes is None else [kilobytes * 1024]), *_left_of_groups(root)]
    return min(left, default=None)


def oom_kills(root: Path = Path("/")) -> int:
    """Processes of this one's control groups that the kernel has killed for want of memory; 0 if it does not say."""
    counted = (_read_count("oom_kill", top / group / file) for top, group, _, file in _groups(root))
    return sum(count or 0 for count in counted)


def _left_of_groups(root: Path) -> Iterator[int]:
    for top, group, files, _ in _groups(root):
        for folder in (group, *group.parents):
            yield from _left_of(top / folder, *files)


def _groups(root: Path) -> Iterator[tuple[Path, Path, tuple[str, str, str], str]]:
    """Control groups of this process that count memory: where its hierarchy is mounted, its path there, the names of
    the files with its limits, and of the file with its kills."""
    mounted = root / "sys/fs/cgroup"
    for line in (text_of(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            yield mounted / "memory", Path(path.lstrip("/")), _VERSION_1, "memory.oom_control"
        elif not controllers:
            yield mounted, Path(path.lstrip("/")), _VERSION_2, "memory.events"


def _left_of(group: Path, limit: str, used: str, cached: str) -> Iterator[int]:
    most, taken = number_of(group / limit), number_of(group / used)
    if most is not None and taken is not None:
        # the page cache is dropped before an allocation fails
        yield most - taken + (_read_count(cached, group / "memory.stat") or 0)


def _read_count(name: str, file: Path) -> int | None:
    """The number after a name in a file of `NAME NUMBER` lines."""
    found = re.search(rf"^{name}\s+(\d+)", text_of(file) or "", re.MULTILINE)
    return int(found[1]) if found else None
