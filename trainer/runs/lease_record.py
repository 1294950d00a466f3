"""What the lease file of a run or sweep, agent.json, says of the process that leads it.

A pid alone cannot be trusted: after a reboot, or when pids wrap, it may be another process. So the lease also holds the
boot id and the process's start in clock ticks; on another host, where neither can be read, the file's age decides.
Others may have written the file: what is read is checked, and never more than a page of it.
"""

import errno
import hashlib
import json
import os
import socket
import stat
import time
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..base.regular_file import NotRegularFile, open_regular

FILE = "agent.json"
EXPIRY_S = 120.0
"""Age of the file from which the lease of a process on another host has expired."""
_MAX_BYTES = 4096


@dataclass(frozen=True)
class Lease:
    """Identity of a process, unique across reboots and reused pids, and the start of its Slurm job."""

    host: str
    boot: str
    """Boot id of the host."""
    pid: int
    started: int
    """Start of the process in clock ticks since boot."""
    namespace: int
    """Inode of the pid namespace; 0 where it is not known."""
    job: str = ""
    """SLURM_JOB_ID; empty outside Slurm."""
    restart_count: int = 0
    """SLURM_RESTART_COUNT: how often Slurm has requeued the job."""
    listens: bool = True
    """Whether a signal requests the process to save and end; else a file in the folder does (`stop_file`)."""
    nonce: str = field(default="", compare=False)
    """Distinguishes the leases of one process."""

    @classmethod
    def own(cls, listens: bool = True) -> "Lease":
        job, restarts = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_RESTART_COUNT", "")
        return cls(
            socket.gethostname(), boot_id(), os.getpid(), _start_ticks(os.getpid()), _pid_namespace(), job,
            int(restarts) if restarts.isdecimal() else 0, listens, os.urandom(8).hex(),
        )  # fmt: skip

    @property
    def is_local(self) -> bool:
        """Whether the process is on this host, and its pid means the same process here."""
        return self.host == socket.gethostname() and self.namespace in (0, _pid_namespace())

    @property
    def process_exists(self) -> bool:
        """Whether a local process is alive."""
        return self.boot == boot_id() and self.started == _start_ticks(self.pid) != -1

    def supersedes(self, other: "Lease") -> bool:
        """Whether Slurm has started this process's job anew since the other's: then the other's start has ended."""
        return self.job != "" and self.job == other.job and self.restart_count > other.restart_count


@dataclass(frozen=True)
class FoundLease:
    """State of a lease file: two equal ones are the same lease, not renewed in between."""

    lease: Lease | None
    """The lease; None if the content is none."""
    digest: str
    """Digest of the content."""
    mtime_ns: int
    nonce: str
    """Nonce of the lease."""


def read_lease(file: Path) -> FoundLease | None:
    """The state of a lease file; None without one.

    Raises:
        OSError: it is no regular file, or cannot be read.
    """
    try:
        # open, not stat: a network file system then asks the server
        with open_regular(file, follow_links=False) as stream:
            status, content = os.fstat(stream.fileno()), stream.read(_MAX_BYTES)
    except FileNotFoundError:
        return None
    except NotRegularFile:
        raise OSError(0, f"{file.name} is no regular file") from None
    except OSError as error:
        if error.errno == errno.ESTALE:  # removed on another host since it was opened
            return None
        raise
    lease = _parse_lease(content)
    digest = hashlib.sha256(content).hexdigest()[:16]
    return FoundLease(lease, digest, status.st_mtime_ns, lease.nonce if lease is not None else "")


def _parse_lease(content: bytes) -> Lease | None:
    """The lease, None where the content is not one."""
    try:
        values: Any = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    given = {one.name: values[one.name] for one in fields(Lease) if one.name in values}
    texts, numbers = ("host", "boot", "job", "nonce"), ("pid", "started", "namespace", "restart_count")
    # printable: status and stop show them
    if any(not isinstance(given[name], str) or not given[name].isprintable() for name in texts if name in given):
        return None
    if any(type(given[name]) is not int or given[name] < 0 for name in numbers if name in given):
        return None
    if type(given.get("listens", True)) is not bool:
        return None
    with suppress(TypeError):
        return Lease(**given) if given.get("pid") else None
    return None


def lease_of(folder: Path) -> Lease | None:
    """The lease of the process that leads the run or sweep, or led it and was killed; None without one."""
    try:
        found = read_lease(folder / FILE)
    except OSError:
        return None
    return found.lease if found is not None else None


def is_alive(folder: Path, lease: Lease) -> bool:
    """Whether the process is alive: exact on this host, by the age of its lease on another."""
    if lease.is_local:
        return lease.process_exists
    with suppress(OSError):
        return time.time() - (folder / FILE).lstat().st_mtime < EXPIRY_S
    return False


def holds_open(lease: Lease, folder: Path) -> bool:
    """Whether the local process has the lease file of the folder open for writing, as its leader does.

    Raises:
        PermissionError: the process belongs to another user.
    """
    with suppress(FileNotFoundError, ProcessLookupError):
        file = (folder / FILE).lstat()
        for descriptor in Path(f"/proc/{lease.pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                opened, writable = descriptor.stat(), descriptor.lstat().st_mode & stat.S_IWUSR
                if writable and (opened.st_dev, opened.st_ino) == (file.st_dev, file.st_ino):
                    return True
    return False


def boot_id() -> str:
    """Id of this start of the host's kernel; "" if it is not known."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _pid_namespace() -> int:
    with suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return 0


def _start_ticks(pid: int) -> int:
    """Start of a process in clock ticks since boot; -1 if there is none, or a zombie."""
    with suppress(OSError, IndexError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return -1 if fields[0] == "Z" else int(fields[19])
    return -1
