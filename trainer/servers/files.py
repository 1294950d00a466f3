"""A server's file beside a checkpoint, and reading those of any number of servers."""

from pathlib import Path
from typing import Any

from .. import checkpoint
from .pieces import Piece, put_together


def save(piece: Piece, run_dir: Path, step: int, server: int) -> None:
    """Write what a server holds, beside the checkpoint of a step that is about to be written."""
    content = {"format": checkpoint.FORMAT, **piece.state()}
    checkpoint.write(content, checkpoint.server_path(checkpoint.path_of(run_dir, step), server))


def load(run_dir: Path, step: int, servers: int, start: int, end: int) -> dict[str, Any]:
    """The state of a server that holds [start, end) of the parameters.

    Raises:
        ValueError: a file is damaged.
        FileNotFoundError: there is none.
    """
    main = checkpoint.path_of(run_dir, step)
    saved = [checkpoint.read(checkpoint.server_path(main, server)) for server in range(servers)]
    return put_together(saved, start, end)
