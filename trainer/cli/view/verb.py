"""The verb `view`: TensorBoard on folders of runs, for this machine only."""

import errno
import os
import socket
import sys
from pathlib import Path
from typing import NoReturn

from ...base.errors import refuse

_PORT = 6006
"""TensorBoard's."""
_TRIED = 100


def view_folders(words: list[str], port: int | None) -> NoReturn:
    """Become TensorBoard, on the given port or the next one that is free.

    Args:
        words: folders of runs, of sweeps, or of many of them; none: outputs.
        port: None: 6006; 0: any.
    """
    folders = [Path(word) for word in words] or [Path("outputs")]
    for folder in folders:
        if not folder.is_dir():
            raise refuse("view", "there is no such folder", str(folder), "leyden view FOLDER of runs or of a sweep")
    free = free_port(_PORT if port is None else port)
    # -P: TensorBoard tries to import packages that may lie in the current folder, which may be somebody else's
    command = [sys.executable, "-P", "-m", "leyden.trainer.cli.view.server", str(free), *map(str, folders)]
    sys.stdout.flush()
    # exec: a signal to the command then ends TensorBoard.
    os.execv(sys.executable, command)


def free_port(first: int) -> int:
    """The first free port of this machine from `first` on; another one than `first` is said.

    Raises:
        ConfigError: the next ones are in use, too.
    """
    if first == 0:
        return 0
    for port in range(first, min(first + _TRIED, 65536)):
        if _is_free(port):
            if port != first:
                print(f"port {first} is in use here: TensorBoard takes {port}", flush=True)
            return port
    raise refuse("--port", f"and the {_TRIED} ports after it are in use", str(first), "--port 0, for any that is free")


def _is_free(port: int) -> bool:
    for family, *_, address in socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                # as servers do: a port whose last connections are closing is free
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:  # of another kind: a protocol that this machine does not have
            if error.errno == errno.EADDRINUSE:
                return False
    return True
