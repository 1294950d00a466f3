"""Connection between one worker and one server, over gloo."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...base.handshake import inherited_secret
from ...core.communication.authenticated_group import UNLIMITED, connect_group
from ...core.communication.tcp_store import open_store
from .protocol import HEADER_LENGTH, Expected, Message, decode, encode


class ServerConnection:
    """One end of the connection between a worker and a server. Blocks until the other end is there.

    Args:
        incarnation: restarts of the worker so far.

    Raises:
        NotAuthenticated: the other end does not know the run's secret.
        RuntimeError: it is lost.
    """

    def __init__(self, server: int, worker: int, incarnation: int, *, at_server: bool):
        # A group of two, not one of all: a group's members are fixed and a receive from any source waits forever for a
        # dead sender. A pair raises at once on both ends, and a restarted worker joins in a pair of a new name.
        store = dist.PrefixStore(f"leyden/pair/{server}/{worker}/{incarnation}", open_store())
        rank = 0 if at_server else 1
        self._peer = 1 - rank
        protocol = f"server {server}, worker {worker}, {incarnation}"
        self._group: Any = connect_group(store, rank, 2, inherited_secret(), protocol)

    def start_send(self, tensor: Tensor) -> Any:
        """Returns a work handle; the tensor must not change before its `wait(UNLIMITED)` has returned."""
        return self._group.send([tensor], self._peer, 0)

    def start_receive(self, into: Tensor) -> Any:
        return self._group.recv([into], self._peer, 0)

    def send(self, message: Message, *tensors: Tensor) -> None:
        """A message and the tensors that follow it.

        Raises:
            RuntimeError: the peer has closed the connection.
        """
        for tensor in (encode(message), *tensors):
            self.start_send(tensor).wait(UNLIMITED)

    def receive(self, *expected: type[Expected]) -> Expected:
        """
        Raises:
            RuntimeError: the peer has closed the connection.
            ProtocolError: the peer has sent something else.
        """
        return decode(self.receive_tensor(torch.empty(HEADER_LENGTH, dtype=torch.float64)), expected)

    def receive_tensor(self, into: Tensor) -> Tensor:
        """
        Raises:
            RuntimeError: the peer has closed the connection.
        """
        self.start_receive(into).wait(UNLIMITED)
        return into

    def close(self) -> None:
        """The peer's pending and later calls raise."""
        self._group = None
