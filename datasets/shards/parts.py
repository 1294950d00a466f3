"""Shards that are to be written, and the record of each that is whole, by which an interrupted writing goes on."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .index import SAMPLE, ShardFile, ShardSet, SplitIndex, new_file, read_rows

Split = Literal["train", "val", "test"]


class ShardTask(NamedTuple):
    """A shard by the samples of its source, which alone decide what is in it."""

    name: str
    split: Split
    indices: range


class WrittenShard(NamedTuple):
    """A shard that is whole."""

    rows: NDArray[np.void]
    bytes: int
    left_out: list[str]

    def file(self, name: str) -> ShardFile:
        left_out = [problem.encode("utf-8", "replace").decode() for problem in self.left_out]
        return ShardFile(name=name, bytes=self.bytes, samples=len(self.rows), left_out=left_out)


def shard_tasks(counts: Mapping[Split, int], shard_size: int, suffix: str) -> list[ShardTask]:
    """All shards, by the number of samples in each split."""
    return [
        ShardTask(f"{split}-{start // shard_size:06}.{suffix}", split, range(start, min(start + shard_size, count)))
        for split, count in counts.items()
        for start in range(0, count, shard_size)
    ]


def read_part(folder: Path, out: Path, task: ShardTask) -> WrittenShard | None:
    """The record of a shard; None if it is not whole."""
    # whatever is wrong with a record, its shard is written again
    with suppress(OSError, ValueError, TypeError, KeyError, OverflowError):
        values = json.loads((folder / f"{task.name}.json").read_bytes())
        rows = np.array([tuple(row) for row in values["rows"]], SAMPLE)
        complete = len(rows) + len(values["left_out"]) == len(task.indices)
        if complete and (out / task.name).stat().st_size == values["bytes"]:
            return WrittenShard(rows, values["bytes"], list(map(str, values["left_out"])))
    return None


def write_part(folder: Path, task: ShardTask, part: WrittenShard) -> None:
    values = {"rows": part.rows.tolist(), "bytes": part.bytes, "left_out": part.left_out}
    with new_file(folder / f"{task.name}.json") as file:
        file.write(json.dumps(values).encode())


def parts_of(folder: Path, found: ShardSet, tasks: Sequence[ShardTask]) -> Iterator[tuple[ShardTask, WrittenShard]]:
    """The records of a finished set's shards that are whole: of the size in its index, which is whole itself."""
    by_name = {task.name: task for task in tasks}
    for split in found.splits.values():
        whole = [shard for shard in split.shards if _has_size(folder / shard.name, shard.bytes)]
        try:
            rows = read_rows(folder, folder, found, split, only=whole)
        except (OSError, ValueError):
            continue
        first = 0
        for shard in split.shards:
            if shard in whole and shard.name in by_name:
                part = rows[first : first + shard.samples]
                yield by_name[shard.name], WrittenShard(part, shard.bytes, shard.left_out)
            first += shard.samples


def _has_size(path: Path, size: int) -> bool:
    with suppress(OSError):
        return path.stat().st_size == size
    return False


def split_index(file: str, crc: int, tasks: Sequence[ShardTask], parts: Mapping[str, WrittenShard]) -> SplitIndex:
    shards = [parts[task.name].file(task.name) for task in tasks]
    return SplitIndex(file=file, crc32=crc, samples=sum(shard.samples for shard in shards), shards=shards)
