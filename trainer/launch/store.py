"""The key-value store of one worker group, served by the leading agent on one address only."""

import socket
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import TCPStore


LOOPBACK = "127.0.0.1"
_TIMEOUT = timedelta(seconds=60)
_WAITING_CONNECTIONS = 4096


def listening_socket(host: str, port: int = 0) -> socket.socket:
    """A socket that listens on one address; port 0: a free one.

    Raises:
        OSError: the host has no such address, or the port is taken.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address[:2], family=family, backlog=_WAITING_CONNECTIONS)


class Store:
    """The store as a client sees it.

    Args:
        host, port: of the agent that serves it.
    """

    def __init__(self, host: str, port: int):
        self.host = host
        self.port = port
        self._store: TCPStore | None = None

    def open(self) -> object:
        """Start to serve it, where this agent does."""

    def set(self, key: str, value: str) -> None:
        from torch.distributed import TCPStore

        if self._store is None:
            self._store = TCPStore(self.host, self.port, is_master=False, timeout=_TIMEOUT)
        self._store.set(key, value)

    def close(self) -> None:
        self._store = None


class AgentStore(Store):
    """The store that this agent serves: it listens from the start, so that its port is known, and answers once open."""

    def __init__(self, host: str = LOOPBACK, port: int = 0):
        # a socket of our own: torch's TCPStore would listen on every interface of the machine
        self._socket = listening_socket(host, port)
        super().__init__(host, int(self._socket.getsockname()[1]))

    def open(self) -> "TCPStore":
        """Start to serve. Imports torch, which takes seconds."""
        from torch.distributed import TCPStore

        self._store = TCPStore(
            self.host, self.port, is_master=True, timeout=_TIMEOUT, wait_for_workers=False,
            master_listen_fd=self._socket.detach(), use_libuv=True,
        )  # fmt: skip
        return self._store

    def close(self) -> None:
        self._socket.close()
        super().close()
