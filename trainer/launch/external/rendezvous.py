"""Rendezvous of the processes that a starter has begun: where each of them is, and what run they are the workers of.

torchrun serves a store at MASTER_ADDR:MASTER_PORT, which is used; elsewhere rank 0 serves one there. Without these
variables the processes of one host meet on loopback, at a port that rank 0 writes into a file of its user.
"""

import hashlib
import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from ...base.errors import ConfigError, Problem, join_names, raise_all, refuse
from ...base.paths import shorten_path
from ...base.regular_file import open_regular
from ..store import LOOPBACK, AgentStore
from .announcement import ON_ALL_HOSTS, Announcement
from .placement import HostPlacement, own_host, placement_of
from .starters import World

if TYPE_CHECKING:
    from torch.distributed import Store, TCPStore

_ARRIVAL = timedelta(minutes=5)
"""Time for all processes to arrive."""
_CONNECTION = timedelta(seconds=10)
"""Time for a connection to the port that rank 0 has written, at which it listens already."""
_COMPOSITION = timedelta(minutes=15)
"""Time for rank 0 to compose and freeze the run, or to wait for the lease of another host."""
_LEAVE_S = 10.0
_POLL_S = 0.1


def _resolve_address(name: str | None) -> str:
    """The address of rank 0's host, loopback where nothing names it.

    Raises:
        ConfigError: the name has none.
    """
    try:
        return socket.gethostbyname(name) if name else LOOPBACK
    except OSError as error:
        text = f"rank 0's host has no address by this name: {error.strerror or error}"
        raise refuse("MASTER_ADDR", text, name, "MASTER_ADDR=ADDRESS of rank 0's host, in all ranks") from None


def _problems(reports: Sequence[Any]) -> Iterator[Problem]:
    """Problems that the processes have reported, by rank; each once, with its ranks."""
    found: dict[Problem, list[str]] = {}
    for rank, report in enumerate(reports):
        for problem in report["problems"]:
            found.setdefault(Problem(**problem), []).append(str(rank))
    for problem, ranks in found.items():
        yield replace(problem, text=f"rank {join_names(ranks, 8)}: {problem.text}")


class ExternalRendezvous:
    """A context: inside it the processes can exchange what each needs to know.

    Attributes:
        current: the one that this process takes part in.
        placement: of the processes on hosts, once `gather` has returned.
        announced: whether this process, rank 0, has announced a run or an exit code.
        in_run: whether a run has begun, which this process takes part in.
    """

    current: ClassVar["ExternalRendezvous | None"] = None
    _number: ClassVar = count()
    """Counts the rendezvous of this process, all of which a starter's store serves."""

    def __init__(self, world: World):
        self.world = world
        self.placement = HostPlacement(1, world.size)
        self.announced = self.in_run = False
        self._stores: list[AgentStore] = []
        self._port_file: Path | None = None
        # a store that rank 0 serves is one rendezvous's
        number = next(self._number) if world.store_served else 0
        self._prefix = f"leyden/start/{world.restarts}/{number}"
        self._bulletin = self._bulletin_store()

    def __enter__(self) -> "ExternalRendezvous":
        ExternalRendezvous.current = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ExternalRendezvous.current = None
        if kind is None or not self.in_run:
            self._leave()
        del self._bulletin, self._served  # rank 0's store listens until nothing here refers to it
        if self._port_file is not None:
            self._port_file.unlink(missing_ok=True)
        for store in self._stores:
            store.close()

    def gather(self) -> HostPlacement:
        """Wait for all processes. Returns their placement, on rank 0 alone.

        Raises:
            ConfigError: they are placed as no topology describes, or not all have come.
        """
        self._bulletin.set(f"host/{self.world.rank}", own_host())
        if self.world.rank == 0:
            self.placement = placement_of(self._of_all("host"))
        return self.placement

    def _of_all(self, topic: str) -> list[str]:
        """What each process has set, waited for.

        Raises:
            ConfigError: not all have set it.
        """
        keys = [f"{topic}/{rank}" for rank in range(self.world.size)]
        try:
            self._bulletin.wait(keys, _ARRIVAL)
        except RuntimeError as error:
            missing = [rank for rank, key in enumerate(keys) if not self._bulletin.check([key])]
            text = f"after {_ARRIVAL.seconds} s ranks {missing} had not started"
            raise refuse("topology.launcher", text, "external") from error
        return [self._bulletin.get(key).decode() for key in keys]

    def announce(self, announcement: Announcement) -> None:
        """Tell all other processes what they are to do."""
        self.announced = True
        self._bulletin.set("announcement", announcement.encode().decode())

    def begin(self, folder: Path, has_servers: bool) -> bool:
        """Wait until all processes are ready, and have them begin, as rank 0. Returns whether all see the run folder.

        Args:
            has_servers: whether there are parameter servers, each of which saves a file of its own.

        Raises:
            ConfigError: a process cannot take part; none begins.
        """
        self._report_ready(True, ())
        all_see: bool | None = None
        try:
            reports = [json.loads(each) for each in self._of_all("ready")]
            raise_all(_problems(reports))
            sees = all(each["sees_folder"] for each in reports)
            if has_servers and not sees:
                text = "not all hosts see this folder, and each parameter server saves a file of its own there"
                raise refuse("hydra.run.dir", text, shorten_path(folder), ON_ALL_HOSTS)
            all_see = sees
        finally:
            self._bulletin.set("begin", json.dumps(all_see))
        self.in_run = True
        self._lasting().set("folder", str(folder))
        return sees

    def await_begin(self, sees_folder: bool, refusal: ConfigError | None = None) -> bool | None:
        """Report that this rank is ready, or why it is not, and wait for rank 0.

        Returns:
            Whether all see the run folder; None: a process cannot take part, and none begins.
        """
        self._report_ready(sees_folder, () if refusal is None else refusal.problems)
        self._bulletin.wait(["begin"], _ARRIVAL)
        all_see: bool | None = json.loads(self._bulletin.get("begin"))
        self.in_run = all_see is not None
        return all_see

    def _report_ready(self, sees_folder: bool, problems: Sequence[Problem]) -> None:
        report = {"sees_folder": sees_folder, "problems": [problem.as_data() for problem in problems]}
        self._bulletin.set(f"ready/{self.world.rank}", json.dumps(report))

    def announce_end(self, code: int) -> None:
        """Announce an exit code for all, as rank 0 leaves, unless something was announced."""
        if not (self.world.rank or self.announced):
            self.announce(Announcement(code=code))

    def announcement(self) -> Announcement:
        """What rank 0 announces, waited for."""
        self._bulletin.wait(["announcement"], _COMPOSITION)
        return Announcement.decode(self._bulletin.get("announcement"))

    def earlier_folder(self) -> Path | None:
        """The folder of the run that the starter has begun before it restarted its processes."""
        known = self.world.store_served and self._lasting().check(["folder"])
        return Path(self._lasting().get("folder").decode()) if known else None

    def serve(self) -> AgentStore:
        """A store of the run's processes, served by this one.

        Raises:
            ConfigError: the address of the rendezvous is not this host's.
        """
        one_host = self.placement.nodes == 1
        host = LOOPBACK if one_host else _resolve_address(self.world.address)
        if host.startswith("127.") and not one_host:
            text = "the rendezvous of several hosts needs an address that all of them reach, and this is loopback"
            raise refuse("MASTER_ADDR", text, self.world.address, "torchrun --master-addr=ADDRESS, or --local-addr")
        store = AgentStore(host)
        store.open()
        self._stores.append(store)
        return store

    def post_stop(self, received: signal.Signals) -> None:
        """Tell all processes of a stop request that this one has received."""
        self._bulletin.set("stop", str(int(received)))

    def posted_stop(self) -> signal.Signals | None:
        """The stop request that a process has posted, if any."""
        return signal.Signals(int(self._bulletin.get("stop"))) if self._bulletin.check(["stop"]) else None

    def first_to_fail(self) -> int:
        """The rank that has reported a failure first, this one where there is no other; others end because of it."""
        with suppress(RuntimeError):  # rank 0's store is gone with it
            return int(self._bulletin.compare_set("failed", "", str(self.world.rank)))
        return self.world.rank

    def _leave(self) -> None:
        """Wait until the others need the store no longer."""
        with suppress(RuntimeError):
            self._bulletin.set(f"left/{self.world.rank}", "")
            if self.world.rank == 0:
                keys = [f"left/{rank}" for rank in range(self.world.size)]
                self._bulletin.wait(keys, timedelta(seconds=_LEAVE_S))

    def _bulletin_store(self) -> "Store":
        """The store of this rendezvous, under a prefix of its own."""
        from torch.distributed import PrefixStore

        self._served = self._served_store()
        return PrefixStore(self._prefix, self._served)

    def _lasting(self) -> "Store":
        """What survives a restart of the processes, where the starter serves the store."""
        from torch.distributed import PrefixStore

        return PrefixStore("leyden/run", self._served)

    def _served_store(self) -> "TCPStore":
        from torch.distributed import TCPStore

        world = self.world
        if world.store_served:
            assert world.address
            assert world.port
            return TCPStore(world.address, world.port, is_master=False, timeout=_ARRIVAL)
        if world.rank:
            return self._connect()
        address = _resolve_address(world.address)
        try:
            own = AgentStore(address, world.port or 0)
        except OSError as error:
            text = f"rank 0 cannot listen there: {error.strerror or error}"
            remedy = "MASTER_ADDR and MASTER_PORT of a free port of rank 0's host"
            raise refuse("MASTER_PORT", text, world.port, remedy) from None
        self._stores.append(own)
        store = own.open()
        if world.size > 1 and not (world.address and world.port):
            self._publish(own.port)
        return store

    def _connect(self) -> "TCPStore":
        """Rank 0's store, not that of an earlier rendezvous, which rank 0 may not have closed yet."""
        from torch.distributed import TCPStore

        world, end = self.world, time.monotonic() + _ARRIVAL.seconds
        address = (world.address, world.port) if world.address and world.port else None
        while True:
            host, port = address or (LOOPBACK, self._published_port())
            try:
                store = TCPStore(host, port, is_master=False, timeout=_ARRIVAL if address else _CONNECTION)
                store.set_timeout(_ARRIVAL)
                if not store.check([f"{self._prefix}/left/{world.rank}"]):
                    return store
            except RuntimeError:
                if time.monotonic() > end:
                    raise
            time.sleep(_POLL_S)

    def _publish(self, port: int) -> None:
        self._port_file = self._file_of_job()
        self._port_file.unlink(missing_ok=True)
        new = self._port_file.with_suffix(f".{os.getpid()}")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(str(port))
        new.rename(self._port_file)

    def _published_port(self) -> int:
        file, end = self._file_of_job(), time.monotonic() + _ARRIVAL.seconds
        while time.monotonic() < end:
            with suppress(OSError), open_regular(file, follow_links=False) as opened:
                if os.fstat(opened.fileno()).st_uid == os.getuid():
                    return int(opened.read(8))
            time.sleep(_POLL_S)
        text = f"rank 0 has not been found on this host within {_ARRIVAL.seconds} s"
        raise refuse("MASTER_ADDR", text, remedy="MASTER_ADDR=HOST MASTER_PORT=29500 in the environment of all ranks")

    def _file_of_job(self) -> Path:
        """
        Raises:
            ConfigError: nothing names the job.
        """
        if not self.world.job:
            text = f"{self.world.starter} has not set it, and the processes cannot find each other without"
            remedy = "MASTER_ADDR=HOST MASTER_PORT=29500 in the environment of all ranks"
            raise refuse("MASTER_ADDR", text, remedy=remedy)
        name = hashlib.sha256(f"{os.getuid()} {self.world.job}".encode()).hexdigest()[:32]
        return Path(tempfile.gettempdir()) / f"leyden-{name}.port"
