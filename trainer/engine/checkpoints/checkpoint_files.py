"""Files of a checkpoint, written while the training waits or while it goes on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from torch.distributed import HashStore

from ...base.heartbeat import SYNCHRONIZATION, heartbeat
from ...base.log import log
from ...core.checkpoints import sharded_checkpoint
from ...core.checkpoints.background_writer import write_part
from ...core.checkpoints.checkpoint_io import NotFinite, point_last_at, refuse_not_finite, size_of, write
from ...core.checkpoints.sharded_checkpoint import Shard
from ...core.communication.plain_values import all_gather_values
from ...core.communication.tcp_store import open_store
from ...core.state import RunState
from ...hardware.discovery.memory import free_bytes
from ...runs.checkpoints import shard_path
from .callback_state import callback_pieces

_MEMORY_TO_SPARE = 1.5
"""Free memory that a copy needs, in units of its size: the training takes more itself, later."""
_NOT_FINITE = "weights of worker {} have NaN or infinite values: not saved"


def write_files(state: RunState, path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint's files. Every worker must call it; those of all workers are there when the first returns.

    Args:
        content: the first worker's is written.

    Raises:
        NotFinite: the weights are not finite; nothing was written.
        OSError: the disk is full, say.
    """
    content["shards"] = _write_shards(state, path)
    if state.fabric.is_global_zero:
        _write_main(content, path)


def write_in_background(state: RunState, path: Path, content: dict[str, Any]) -> None:
    """Copy what is saved into host memory, and have a thread write it. Every worker must call it.

    Where the host has no memory for the copy, the files are written before this returns.
    """
    shard = shard_of(state)
    if shard is None:
        if state.fabric.is_global_zero:
            _start(state, {**content, "shards": 0}, lambda taken: _write_main(taken, path))
        return
    rank, workers = state.fabric.global_rank, state.fabric.world_size
    with heartbeat.phase(SYNCHRONIZATION):
        own = (uuid4().hex, shard.index_entry())
        gathered = all_gather_values(own) if workers > 1 else [own]
    # a key that no earlier start of these workers has set
    keys = [f"checkpoint/{gathered[0][0]}/{worker}" for worker in range(workers)]
    listed = [pieces for _, pieces in gathered]
    main = {**content, "shards": workers} if rank == 0 else None

    def write_all(taken: dict[str, Any]) -> None:
        store = open_store() if workers > 1 else HashStore()

        def write_own() -> None:
            if not sharded_checkpoint.are_finite(taken["shard"]["pieces"].values()):
                raise NotFinite(_NOT_FINITE.format(rank))
            write(taken["shard"], shard_path(path, rank))

        write_part(store, keys[rank], write_own)
        if rank == 0:
            state.checkpoint_writer.wait_for_parts(store, keys)
            sharded_checkpoint.write_index(path, listed)
            _write_main(taken["main"], path)

    pieces = {name: piece.tensor for name, piece in shard.pieces.items()}
    _start(state, {"shard": {"pieces": pieces, "own": shard.own}, "main": main}, write_all)


def _start(state: RunState, content: dict[str, Any], write_taken: Callable[[dict[str, Any]], None]) -> None:
    """Have the thread call `write_taken` with a copy of `content`, or call it here where there is no memory for one."""
    size, snapshot, writer = size_of(content), state.host_snapshot, state.checkpoint_writer
    first = snapshot.bytes == 0
    free = free_bytes() if first else None
    if free is not None and free < size * _MEMORY_TO_SPARE:
        why = "a copy in host memory takes %.3g MB, %.3g MB are free"
        log.warning(f"checkpoints are written while the training waits: {why}", size / 1e6, free / 1e6)
        writer.run_here(lambda: write_taken(content))
        return
    taken = snapshot.take(content)
    if first:
        log.info(
            "checkpoints are written while the training goes on, from a copy in host memory of %.3g MB", size / 1e6
        )

    def write_when_copied() -> None:
        snapshot.wait()
        write_taken(taken)

    writer.start(write_when_copied)


def _write_shards(state: RunState, path: Path) -> int:
    """Write the files of single workers: what the strategy divides over them. Returns how many there are.

    Raises:
        NotFinite: a worker's part of the weights is not finite; nothing was written.
    """
    shard = shard_of(state)
    if shard is None:
        return 0
    workers, rank = state.fabric.world_size, state.fabric.global_rank
    listed: list[Any] = [(shard.finite, shard.index_entry())]
    if workers > 1:
        listed = all_gather_values(listed[0])
    broken = [worker for worker, (finite, _) in enumerate(listed) if not finite]
    if broken:
        raise NotFinite(_NOT_FINITE.format(broken[0]))
    write(shard.content(), shard_path(path, rank))
    if rank == 0:
        sharded_checkpoint.write_index(path, [pieces for _, pieces in listed])
    with heartbeat.phase(SYNCHRONIZATION):
        state.fabric.barrier()
    return workers


def shard_of(state: RunState) -> Shard | None:
    """What this worker saves in a file of its own; None on all workers or on none."""
    shard: Shard | None = state.contract.shard(state.task, state.raw_optimizer)
    if shard is None:
        return None
    shard.pieces.update(callback_pieces(state))
    return shard


def _write_main(content: dict[str, Any], path: Path) -> None:
    refuse_not_finite(content["model"])
    write(content, path)
    point_last_at(path)
