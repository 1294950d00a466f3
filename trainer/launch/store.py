"""The store in which the processes of one attempt meet, served by the agent on one address only."""

import socket
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import TCPStore

LOOPBACK = "127.0.0.1"
_WAITING_CONNECTIONS = 4096


class AgentStore:
    """Listens from the first moment on, so that processes can be told the port, and answers once it is open.

    torch's own TCPStore would listen on every interface of the machine.
    """

    def __init__(self, host: str = LOOPBACK):
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        self.host = host
        self._socket = socket.create_server(address[:2], family=family, backlog=_WAITING_CONNECTIONS)
        self.port = int(self._socket.getsockname()[1])
        self._store: TCPStore | None = None

    def open(self) -> None:
        """Serve. Imports torch, which takes seconds."""
        from torch.distributed import TCPStore

        self._store = TCPStore(
            self.host, self.port, is_master=True, timeout=timedelta(seconds=60), wait_for_workers=False,
            master_listen_fd=self._socket.detach(), use_libuv=True,
        )  # fmt: skip

    def set(self, key: str, value: str) -> None:
        assert self._store is not None, "the store is not open"
        self._store.set(key, value)

    def close(self) -> None:
        self._socket.close()
        self._store = None
