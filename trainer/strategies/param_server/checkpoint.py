"""A server's file next to a checkpoint: written by each server, read by any number of servers."""

from pathlib import Path
from typing import Any

from ...core.checkpoints import checkpoint_io
from ...runs import checkpoints
from .shard import ParamShard, merge_states


def save(shard: ParamShard, run_dir: Path, step: int, server: int) -> None:
    """Write a server's shard, next to the checkpoint of a step that is about to be written."""
    content = {"format": checkpoint_io.FORMAT, **shard.state()}
    checkpoint_io.write(content, checkpoints.server_path(checkpoints.path_of(run_dir, step), server))


def load(run_dir: Path, step: int, servers: int, start: int, end: int) -> dict[str, Any]:
    """The state of a server that holds [start, end) of the parameters.

    Raises:
        ValueError: a file is damaged.
        FileNotFoundError: there is none.
    """
    main = checkpoints.path_of(run_dir, step)
    saved = [checkpoint_io.read_part(checkpoints.server_path(main, server)) for server in range(servers)]
    return merge_states(saved, start, end)
