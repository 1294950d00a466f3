"""A lease file is taken, replaced and removed atomically, also on NFS and Lustre.

A lease is written whole under a name of its own and then linked to the common name, which succeeds for one contender
only. An abandoned lease is never removed first, since the name would be free for a moment in which two contenders could
believe to have it. It is replaced by rename, and only by the contender that has the marker of that very lease: a file
named by the lease's digest, taken by link in the same way. A marker is removed once the name has another content, so
that whoever takes it later finds the lease changed.
"""

import errno
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from ..base.atomic_file import naming
from .lease_record import EXPIRY_S, FoundLease, Lease, read_lease

_WITHOUT_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class Contender:
    """Attempts of one process to take a lease file.

    Args:
        file: the lease file.
        lease: to be written into it.
    """

    def __init__(self, file: Path, lease: Lease):
        self.file = file
        self.lease = lease
        self._expiries: dict[tuple[Path, FoundLease], float] = {}
        """Expiry of each state of a lease file that was seen, by the local monotonic clock."""

    def take_free(self) -> bool:
        """Take the lease if there is none. Returns whether it is taken."""
        return self._link(self.file)

    def take_over(self, found: FoundLease) -> bool:
        """Take the lease from a process that is dead. Returns whether it is taken; else it has changed meanwhile."""
        return self._replace(self.file, found)

    def release(self) -> None:
        """Remove the lease, unless it is another process's by now."""
        found = read_lease(self.file)
        if found is None or found.nonce != self.lease.nonce:
            return
        with self._sole_right(self.file, found) as granted:
            if granted and self._owns(self.file):
                self.file.unlink(missing_ok=True)

    def remaining_s(self, file: Path, found: FoundLease) -> float:
        """Time until a lease expires unless it is renewed.

        The age is the difference of two times of the file server: of the lease's last renewal and of a file written
        now. Where that is in the future, the lease expires when it was seen for long enough without a renewal.
        """
        if (file, found) not in self._expiries:
            age_s = (self._server_time_ns() - found.mtime_ns) / 1e9
            self._expiries[file, found] = time.monotonic() + min(EXPIRY_S - age_s, EXPIRY_S)
        return self._expiries[file, found] - time.monotonic()

    def is_abandoned(self, file: Path, found: FoundLease) -> bool:
        """Whether the process that wrote a lease or marker is dead, or counts as dead."""
        other = found.lease
        if other is not None and self.lease.supersedes(other):
            return True
        if other is not None and other.is_local:
            # another lease of this very process: the caller knows those that it holds
            return not other.process_exists or (other == self.lease and found.nonce != self.lease.nonce)
        return self.remaining_s(file, found) <= 0

    def _link(self, file: Path) -> bool:
        with self._draft(file) as draft:
            try:
                os.link(draft, file)
            except OSError as error:
                if error.errno in _WITHOUT_LINKS:
                    return _create(file, draft.read_bytes())
                # not the error: NFS repeats a request whose reply was lost, and then reports that the name exists
                if draft.stat().st_nlink != 2 and error.errno != errno.EEXIST:
                    raise
            return draft.stat().st_nlink == 2

    def _replace(self, file: Path, found: FoundLease) -> bool:
        with self._sole_right(file, found) as granted:
            if not granted or read_lease(file) != found:
                return False
            with self._draft(file) as draft:
                draft.replace(file)
            return self._owns(file)

    @contextmanager
    def _sole_right(self, file: Path, found: FoundLease) -> Iterator[bool]:
        """Context in which no other process replaces or removes this lease; False where another has that right."""
        marker = file.with_name(f".{file.name}.{found.digest}")
        other = read_lease(marker)
        if other is None:
            granted = self._link(marker)
        else:
            granted = self.is_abandoned(marker, other) and self._replace(marker, other)
        try:
            yield granted
        finally:
            if granted and self._owns(marker):
                marker.unlink(missing_ok=True)

    def _owns(self, file: Path) -> bool:
        found = read_lease(file)
        return found is not None and found.nonce == self.lease.nonce

    @contextmanager
    def _draft(self, file: Path) -> Iterator[Path]:
        """The lease under a name that no other process uses; removed at the end."""
        draft = file.with_name(f".{file.name}.draft-{self.lease.nonce}")
        draft.unlink(missing_ok=True)
        if not _create(draft, json.dumps(asdict(self.lease)).encode() + b"\n"):
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
        try:
            yield draft
        finally:
            draft.unlink(missing_ok=True)

    def _server_time_ns(self) -> int:
        with self._draft(self.file) as draft:
            return draft.stat().st_mtime_ns


def _create(file: Path, content: bytes) -> bool:
    """Create a file with this content. Returns False if it exists."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return False
    with naming(file):
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)  # on NFS it is written by then, or an error is raised
    return True
