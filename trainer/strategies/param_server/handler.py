"""Request handler of one worker at a parameter server, in a thread of its own."""

from time import perf_counter
from typing import get_args

import torch

from ...core.ticket_source import SyncReason
from . import checkpoint, protocol
from .connection import ServerConnection
from .protocol import ProtocolError
from .shard import segments_within, shard_bounds
from .shared_state import SharedState


class RequestHandler:
    """Answers one worker's requests, one after the other."""

    def __init__(self, server: SharedState, worker: int, connection: ServerConnection):
        self.server = server
        self.worker = worker
        self.connection = connection

    def run(self) -> None:
        """Until the worker leaves.

        Raises:
            RuntimeError: the worker has closed the connection.
            ProtocolError: an unknown or malformed request, or one that is not possible now.
        """
        requests = get_args(protocol.Request)
        try:
            while not isinstance(request := self.connection.receive(*requests), protocol.Leave):
                self._answer(request)
        except ProtocolError as error:
            raise ProtocolError(f"server {self.server.index}: worker {self.worker} sent {error}") from error

    def _answer(self, request: protocol.Request) -> None:  # one line a request
        match request:
            case protocol.Start():
                self._start(request)
            case protocol.Restore():
                self._restore(request)
            case protocol.PullRequest():
                self._pull()
            case protocol.Read():
                self._read()
            case protocol.PushRequest():
                self._push(request)
            case protocol.Begin():
                self._begin(request)
            case protocol.Draw():
                self._draw(request)
            case protocol.Barrier():
                self._barrier()
            case protocol.Join():
                self._join()
            case protocol.Save():
                self._save(request)
            case protocol.Measure():
                self._measure()
            case protocol.Leave():
                pass

    def _segments(self, request: protocol.Start | protocol.Restore) -> list[tuple[int, int]]:
        if request.segments > request.elements:
            raise ProtocolError(f"a malformed {type(request).__name__}: more segments than elements")
        table = self.connection.receive_tensor(torch.empty(request.segments, 2, dtype=torch.int64))
        segments = [(int(group), int(elements)) for group, elements in table.tolist()]
        whole = all(group >= 0 and elements > 0 for group, elements in segments)
        if not whole or sum(elements for _, elements in segments) != request.elements:
            raise ProtocolError(f"a malformed {type(request).__name__}: segments that are not those of its elements")
        return segments

    def _start(self, request: protocol.Start) -> None:
        start, end = shard_bounds(request.elements, self.server.servers, self.server.index)
        segments = self._segments(request)
        values = self.connection.receive_tensor(torch.empty(end - start, dtype=request.dtype))
        self.server.create_shard(values, segments_within(segments, start, end))
        self.connection.send(protocol.Done())

    def _restore(self, request: protocol.Restore) -> None:
        start, end = shard_bounds(request.elements, self.server.servers, self.server.index)
        segments = self._segments(request)
        state = checkpoint.load(self.server.run_dir, request.step, request.servers, start, end)
        values = torch.empty(end - start, dtype=request.dtype)
        self.server.create_shard(values, segments_within(segments, start, end)).restore(state)
        self.connection.send(protocol.Done())

    def _pull(self) -> None:
        server = self.server
        with server.changed:
            shard = server.wait_for_shard()
            began = perf_counter()
            # a copy, sent without the lock: a slow link to one worker does not hold up the others
            values, version = shard.pull(self.worker).clone(), shard.version
            shard.load.busy_seconds += perf_counter() - began
            server.record(self.worker, "pull")
        self.connection.send(protocol.Values(version), values)

    def _read(self) -> None:
        with self.server.changed:
            shard = self.server.wait_for_shard()
            values, version = shard.values.clone(), shard.version
        self.connection.send(protocol.Values(version), values)

    def _push(self, request: protocol.PushRequest) -> None:
        server = self.server
        with server.changed:
            buffer = torch.empty_like(server.wait_for_shard().values)
        value = self.connection.receive_tensor(buffer)
        with server.changed:
            shard = server.wait_for_shard()
            server.changed.wait_for(lambda: shard.may_push(self.worker))
            began = perf_counter()
            staleness = shard.push(self.worker, value, request.learning_rates)
            shard.load.busy_seconds += perf_counter() - began
            server.record(self.worker, "push")
            server.changed.notify_all()
        self.connection.send(protocol.Applied(staleness))

    def _begin(self, request: protocol.Begin) -> None:
        server = self.server
        with server.changed:
            current = server.queue.work
            if current is None or request.work.serial > current.serial:
                server.record(-1, "begin")
            server.queue.begin(request.work)
            server.changed.notify_all()
        self.connection.send(protocol.Done())

    def _draw(self, request: protocol.Draw) -> None:
        server = self.server
        with server.changed:
            if server.queue.work is None:
                raise ProtocolError("a Draw before the first Begin")
            if request.requested is not None:
                server.queue.request_sync(request.requested)
            drawn = self._wait_for_ticket(request.trained)
            if isinstance(drawn, int):
                server.record(self.worker, "ticket")
            server.changed.notify_all()
            rounds = server.queue.rounds
        reply = protocol.Ticket(drawn, rounds) if isinstance(drawn, int) else protocol.Synchronize(drawn, rounds)
        self.connection.send(reply)

    def _wait_for_ticket(self, trained: int) -> int | SyncReason:
        drawn = self.server.queue.draw(self.worker, trained)
        while drawn is None:
            self.server.changed.wait()
            drawn = self.server.queue.draw(self.worker, trained)
        return drawn

    def _barrier(self) -> None:
        server = self.server
        with server.changed:
            server.at_barrier.add(self.worker)
            server.release_barrier()
            server.changed.notify_all()
            server.changed.wait_for(lambda: self.worker not in server.at_barrier)
            more_tickets = server.more_tickets
        self.connection.send(protocol.Released(more_tickets))

    def _join(self) -> None:
        server = self.server
        with server.changed:
            server.changed.wait_for(lambda: not server.present or server.accepts_joins)
            work = server.queue.work if server.present else None
            if work is not None:
                server.present.add(self.worker)
        self.connection.send(protocol.Finished() if work is None else protocol.CurrentWork(work))

    def _save(self, request: protocol.Save) -> None:
        server = self.server
        with server.changed:  # held while writing: at a synchronization point no other worker sends requests
            checkpoint.save(server.wait_for_shard(), server.run_dir, request.step, server.index)
        self.connection.send(protocol.Done())

    def _measure(self) -> None:
        with self.server.changed:
            shard = self.server.wait_for_shard()
            histogram = torch.tensor(sorted(shard.staleness.items()), dtype=torch.int64).reshape(-1, 2)
            load = shard.load
            counters = protocol.Counters(load.pulls, load.pushes, load.busy_seconds, shard.version, len(histogram))
        self.connection.send(counters, histogram)
