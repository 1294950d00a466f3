"""CPU sockets and their cores."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from .sysfs import folders_in, number_of, numbers_in, text_of


@dataclass(frozen=True)
class Processors:
    """The processors of a host. Sockets are counted from 0 in the order of the kernel's package numbers."""

    threads_of_socket: tuple[tuple[int, ...], ...]
    """Numbers of the hardware threads, as sched_setaffinity takes them, of each socket."""
    cores_of_socket: tuple[int, ...]
    """Physical cores of each socket."""

    @property
    def sockets(self) -> int:
        return len(self.threads_of_socket)

    def socket_of_thread(self, thread: int) -> int | None:
        return next((s for s, threads in enumerate(self.threads_of_socket) if thread in threads), None)


def processors(root: Path = Path("/")) -> Processors:
    """The online processors; without sockets if /sys does not list them."""
    threads: dict[int, list[int]] = {}
    cores: dict[int, set[int]] = {}
    for folder in folders_in(root / "sys/devices/system/cpu"):
        number = re.fullmatch(r"cpu(\d+)", folder.name)
        package = number_of(folder / "topology/physical_package_id")
        if number is None or package is None or package < 0:
            continue
        threads.setdefault(package, []).append(int(number[1]))
        cores.setdefault(package, set()).add(number_of(folder / "topology/core_id") or 0)
    order = sorted(threads)
    return Processors(tuple(tuple(sorted(threads[p])) for p in order), tuple(len(cores[p]) for p in order))


def socket_of_numa_node(node: int, found: Processors, root: Path = Path("/")) -> int | None:
    """The socket of a NUMA node (a socket may have several); None if it is not in /sys."""
    if node < 0:
        return None
    listed = text_of(root / f"sys/devices/system/node/node{node}/cpulist")
    sockets = {found.socket_of_thread(thread) for thread in numbers_in(listed or "")} - {None}
    return sockets.pop() if len(sockets) == 1 else None


def physical_cores(threads: Collection[int], root: Path = Path("/")) -> int:
    """Number of physical cores of hardware threads; a thread of unknown core counts as one."""
    cores: set[tuple[int | None, int | None]] = set()
    for thread in threads:
        topology = root / f"sys/devices/system/cpu/cpu{thread}/topology"
        core = number_of(topology / "core_id")
        cores.add((None, thread) if core is None else (number_of(topology / "physical_package_id"), core))
    return len(cores)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPU quota, in processors, of this process's control groups (container, job); None: no limit."""
    return min(_quotas(root), default=None)


def _quotas(root: Path) -> Iterator[float]:
    mounted = root / "sys/fs/cgroup"
    for line in (text_of(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = Path(path.lstrip("/"))
        for folder in (group, *group.parents):
            if controllers:
                top = mounted / controllers / folder
                limit = [text_of(top / "cpu.cfs_quota_us") or "", text_of(top / "cpu.cfs_period_us") or ""]
            else:
                limit = (text_of(mounted / folder / "cpu.max") or "").split()
            if len(limit) == 2 and all(number.isdigit() for number in limit) and int(limit[1]):
                yield int(limit[0]) / int(limit[1])
