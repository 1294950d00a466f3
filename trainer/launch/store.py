"""The store in which the processes of one attempt meet, served by an agent on one address only."""

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
        OSError: the host has no such address, or somebody listens there already.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address[:2], family=family, backlog=_WAITING_CONNECTIONS)


class Store:
    """A store at another node.

    Args:
        host, port: where it is served.
    """

    def __init__(self, host: str, port: int):
        self.host = host
        self.port = port
        self._store: TCPStore | None = None

    def open(self) -> None:
        """Have it answer, if it is not served by somebody else."""

    def set(self, key: str, value: str) -> None:
        from torch.distributed import TCPStore

        if self._store is None:
            self._store = TCPStore(self.host, self.port, is_master=False, timeout=_TIMEOUT)
        self._store.set(key, value)

    def close(self) -> None:
        self._store = None


class AgentStore(Store):
    """Listens from the first moment on, so that processes can be told the port, and answers once it is open.

    torch's own TCPStore would listen on every interface of the machine.
    """

    def __init__(self, host: str = LOOPBACK):
        self._socket = listening_socket(host)
        super().__init__(host, int(self._socket.getsockname()[1]))

    def open(self) -> None:
        """Serve. Imports torch, which takes seconds."""
        from torch.distributed import TCPStore

        self._store = TCPStore(
            self.host, self.port, is_master=True, timeout=_TIMEOUT, wait_for_workers=False,
            master_listen_fd=self._socket.detach(), use_libuv=True,
        )  # fmt: skip

    def close(self) -> None:
        self._socket.close()
        super().close()
