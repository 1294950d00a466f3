"""Relay of stop requests between processes that a starter has begun: it may signal one of them alone."""

from contextlib import suppress
from threading import Event, Thread
from types import TracebackType

from ...base.signals import StopRequest
from .rendezvous import ExternalRendezvous

_POLL_S = 0.5
_LEAVE_S = 1.0


class StopRelay:
    """A context: inside it a request that any process has received reaches all of them, from a thread of each.

    Workers stop once all have the request, at a step on which they agree. A drained pod, `leyden stop` and a program
    that calls a worker reach a single process.

    Args:
        request: of this process.
    """

    def __init__(self, rendezvous: ExternalRendezvous, request: StopRequest):
        self._rendezvous = rendezvous
        self._request = request
        self._ended = Event()
        self._thread = Thread(target=self._run, name="stop-relay", daemon=True)

    def __enter__(self) -> "StopRelay":
        if self._rendezvous.world.size > 1:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_LEAVE_S)  # a store that does not answer would keep it

    def _run(self) -> None:
        with suppress(RuntimeError):  # rank 0's store is gone with it
            while not self._ended.wait(_POLL_S):
                if self._request.signal is not None:
                    self._rendezvous.post_stop(self._request.signal)
                    return
                if (posted := self._rendezvous.posted_stop()) is not None:
                    self._request.request(posted)
                    return
