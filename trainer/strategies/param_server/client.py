"""A worker's client of all parameter servers: the shards as one vector."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from ...base.device_time import Moment
from ...core.communication.authenticated_group import UNLIMITED
from ...core.ticket_source import SyncReason, WorkRange
from ...core.traffic import Ledger
from . import protocol
from .connection import ServerConnection
from .shard import shard_bounds


class ParamServerClient:
    """Connects to every server; blocks until they are there.

    Args:
        values: the worker's flat parameters: length, dtype and device of what is sent.
        segments: (parameter group, elements) of consecutive parts of the vector.
        ledger: counts bytes that this worker sends and receives.
    """

    def __init__(
        self, servers: int, worker: int, incarnation: int, values: Tensor, segments: list[tuple[int, int]],
        ledger: Ledger,
    ):  # fmt: skip
        self.connections = [ServerConnection(server, worker, incarnation, at_server=False) for server in range(servers)]
        self.bounds = [shard_bounds(values.numel(), servers, server) for server in range(servers)]
        self.segments = torch.tensor(segments, dtype=torch.int64)
        self.dtype = values.dtype
        self.device = values.device
        self.elements = values.numel()
        self.ledger = ledger
        self._sends: list[Any] = []
        """Work handles of the push in flight, with the tensors that must not change until then."""
        self._push_in_flight = False
        self.rounds = 0
        """Rounds of the epoch that had been handed out when this worker last drew a ticket."""

    def start(self, values: Tensor) -> None:
        """Initialize the servers with these parameters; one worker does it for all."""
        message = protocol.Start(self.elements, self.dtype, len(self.segments))
        for connection, (start, end) in zip(self.connections, self.bounds, strict=True):
            connection.send(message, self.segments, values[start:end].cpu())
        self._receive_all(protocol.Done)

    def restore(self, step: int, servers: int) -> None:
        """Initialize the servers from the files that `servers` servers wrote at a step; one worker does it for all.

        Raises:
            RuntimeError: a server could not read its file, and has ended with the reason.
        """
        message = protocol.Restore(self.elements, self.dtype, len(self.segments), step, servers)
        for connection in self.connections:
            connection.send(message, self.segments)
        self._receive_all(protocol.Done)

    def pull(self) -> Tensor:
        """The parameters of all servers; those of one server are consistent, of one version."""
        began = self.ledger.now()
        values = self._fetch(protocol.PullRequest())
        self._count(began)
        return values.to(self.device)

    def read(self) -> Tensor:
        """Pull for evaluation and checkpoints: neither staleness nor bytes are counted."""
        return self._fetch(protocol.Read()).to(self.device)

    def _fetch(self, request: protocol.PullRequest | protocol.Read) -> Tensor:
        self.flush()
        for connection in self.connections:
            connection.send(request)
        self._receive_all(protocol.Values)
        values = torch.empty(self.elements, dtype=self.dtype)
        # all receives are posted before the first is waited for: the servers send at the same time
        works = [c.start_receive(values[a:b]) for c, (a, b) in zip(self.connections, self.bounds, strict=True)]
        for work in works:
            work.wait(UNLIMITED)
        return values

    def push(self, value: Tensor, rates: tuple[float, ...]) -> None:
        """Send an update without waiting; the next request waits until every server has applied it."""
        began = self.ledger.now()
        self.flush()
        value = value.cpu()
        for connection, (start, end) in zip(self.connections, self.bounds, strict=True):
            for tensor in (protocol.encode(protocol.PushRequest(rates)), value[start:end]):
                self._sends.append((connection.start_send(tensor), tensor))
        self._push_in_flight = True
        self._count(began)

    def _count(self, began: Moment) -> None:
        self.ledger.waited(began)
        for server, (start, end) in enumerate(self.bounds):
            self.ledger.with_server(server, (end - start) * self.dtype.itemsize)

    def flush(self) -> None:
        """Wait until every server has applied the last push."""
        if self._push_in_flight:
            for work, _ in self._sends:
                work.wait(UNLIMITED)
            self._sends = []
            self._push_in_flight = False
            self._receive_all(protocol.Applied)

    def _receive_all(self, expected: type[protocol.Expected]) -> list[protocol.Expected]:
        return [connection.receive(expected) for connection in self.connections]

    @property
    def _queue(self) -> ServerConnection:
        """The first server keeps the work queue, alone: a second counter could hand out the same slice."""
        return self.connections[0]

    def begin(self, work: WorkRange) -> None:
        """Announce the next work range; every worker does, with the same one."""
        self.flush()
        self._queue.send(protocol.Begin(work))
        self._queue.receive(protocol.Done)

    def draw(self, requested: SyncReason | None, trained: int) -> int | SyncReason:
        """The next ticket, or why all workers synchronize now.

        Args:
            requested: a synchronization that this worker requests.
            trained: tickets of the work range that it has trained.
        """
        self.flush()
        began = self.ledger.now()
        self._queue.send(protocol.Draw(requested, trained))
        reply = self._queue.receive(protocol.Ticket, protocol.Synchronize)
        self.rounds = reply.rounds
        self.ledger.waited(began)
        return reply.number if isinstance(reply, protocol.Ticket) else reply.reason

    def barrier(self) -> bool:
        """Wait for every worker that is present. Returns whether a lost one's tickets are handed out again."""
        self.flush()
        self._queue.send(protocol.Barrier())
        return self._queue.receive(protocol.Released).more_tickets

    def join(self) -> WorkRange | None:
        """The work range that the other workers train on; None: they have finished."""
        self._queue.send(protocol.Join())
        reply = self._queue.receive(protocol.CurrentWork, protocol.Finished)
        return reply.work if isinstance(reply, protocol.CurrentWork) else None

    def save(self, step: int) -> None:
        """Have every server write its file next to the checkpoint of this step."""
        self.flush()
        for connection in self.connections:
            connection.send(protocol.Save(step))
        self._receive_all(protocol.Done)

    def measure(self) -> tuple[dict[str, float], Counter[int]]:
        """Counters since the servers' start, summed over servers, and the first server's staleness histogram."""
        self.flush()
        for connection in self.connections:
            connection.send(protocol.Measure())
        replies = self._receive_all(protocol.Counters)
        histograms = [
            connection.receive_tensor(torch.empty(reply.staleness_rows, 2, dtype=torch.int64))
            for connection, reply in zip(self.connections, replies, strict=True)
        ]
        totals: dict[str, float] = {
            "pulls": sum(reply.pulls for reply in replies),
            "pushes": sum(reply.pushes for reply in replies),
            "busy_seconds": sum(reply.busy_seconds for reply in replies),
            "version": sum(reply.version for reply in replies),
        }
        return totals, Counter(dict(histograms[0].tolist()))

    def leave(self) -> None:
        """Sign off: a server ends when all its workers have."""
        self.flush()
        for connection in self.connections:
            connection.send(protocol.Leave())
