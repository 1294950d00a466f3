"""Writing of shards from a dataset: by all cores, in the order of its samples, each shard whole or not at all."""

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from .encode import Encoded, Encoder
from .index import INDEX, UNFINISHED, Settings, ShardSet, SplitIndex, new_file, write_index, write_rows
from .parts import ShardTask, Split, WrittenShard, parts_of, read_part, shard_tasks, split_index, write_part
from .plan import SETTINGS, check_folder, check_number, check_space, finished_set, missing
from .shard_writer import ShardWriter

_CHUNK = 4
"""Samples that a thread takes at a time."""
_AHEAD = 4
"""Chunks for each thread that may wait to be written."""
_BESIDE = re.compile(r"\.(train|val|test|index|settings)[-\w]*(\.tar|\.raw)?(\.npy|\.json)?\.\d+")
Progress = Callable[[int, int, int], None]
"""Takes the samples done, all samples, and the bytes written."""


class Preparation:
    """Shards of a dataset's splits. Constructing one writes nothing.

    Args:
        out: the folder.
        sources: the dataset's splits.
        source: what they were built from, of which a digest is kept.
        max_bad_samples: unreadable images that are left out.
        format: "jpeg" or "raw".
        size: most pixels of the shorter side; None: images keep their sizes.
        quality: of JPEG.
        shard_size: images in a shard.
        threads: "auto": one for each core that this process may use.

    Raises:
        ValueError: a value that cannot be; the message begins with KEY=VALUE.
    """

    def __init__(
        self,
        out: str | Path,
        sources: Mapping[Split, Any],
        source: str = "",
        max_bad_samples: int = 0,
        format: Literal["jpeg", "raw"] = "jpeg",
        size: int | None = 256,
        quality: int = 90,
        shard_size: int = 4096,
        threads: int | Literal["auto"] = "auto",
    ) -> None:
        if format not in ("jpeg", "raw"):
            raise ValueError(f"format={format} must be jpeg or raw")
        if size is not None:
            check_number("size", size, 1, 65535)
        check_number("quality", quality, 1, 100)
        check_number("shard_size", shard_size, 1, 1 << 24)
        if threads != "auto":
            check_number("threads", threads, 1, 1024)
        self.out = Path(out).expanduser()
        self._sources, self._max_bad = sources, max_bad_samples
        self._threads = len(os.sched_getaffinity(0)) if threads == "auto" else threads
        self._first = next(iter(sources.values()))
        counts: dict[Split, int] = {split: len(data) for split, data in sources.items()}
        self._label_sets: Sequence[Sequence[int]] | None = getattr(self._first, "label_sets", None)
        more = [] if self._label_sets is None else [self._label_sets]
        about = json.dumps([source, counts, self._first.classes, _names(self._first), *more])
        digest = hashlib.sha256(about.encode()).hexdigest()
        self._settings = Settings(format=format, size=size, quality=quality, shard_size=shard_size, source=digest)
        self._tasks = shard_tasks(counts, shard_size, "tar" if format == "jpeg" else "raw")
        self._encode = Encoder(
            format, size, quality, self._first.classes if self._label_sets is None else len(self._label_sets)
        )
        self.samples = sum(counts.values())

    def check(self) -> bool:
        """Whether there is anything to do. Nothing is written.

        Raises:
            ValueError: the folder holds something else, or its disk has no room; the message begins with out=.
        """
        found = check_folder(self.out, self._settings)
        left = missing(self._tasks, self.out, found)
        check_space(self.out, left, self._sources, self._encode)
        return bool(left) or found is None

    def run(self, progress: Progress) -> int:
        """Write what is missing. Returns the number of images left out.

        Raises:
            ValueError: too many unreadable samples, or another process writes into the folder.
            OSError: the disk is full, or fails. What is whole is kept, and the next call goes on.
        """
        folder = self.out / UNFINISHED
        folder.mkdir(parents=True, exist_ok=True)
        with _only_writer(folder):
            self._begin(folder)
            read = {task.name: read_part(folder, self.out, task) for task in self._tasks}
            parts = {name: part for name, part in read.items() if part is not None}
            self._write([task for task in self._tasks if task.name not in parts], parts, folder, progress)
            write_index(self.out, self._index(parts))
            shutil.rmtree(folder)
        return sum(len(part.left_out) for part in parts.values())

    def _begin(self, folder: Path) -> None:
        """Make the folder one that is being written: files of killed processes go, a finished set is taken apart."""
        for path in (*self.out.iterdir(), *folder.iterdir()):
            if _BESIDE.fullmatch(path.name):
                path.unlink()
        found = finished_set(self.out)
        if found is not None:
            for task, part in parts_of(self.out, found, self._tasks):
                write_part(folder, task, part)
        with new_file(folder / SETTINGS) as file:
            file.write(self._settings.model_dump_json().encode())
        (self.out / INDEX).unlink(missing_ok=True)

    def _write(
        self, left: Sequence[ShardTask], parts: dict[str, WrittenShard], folder: Path, progress: Progress
    ) -> None:
        """Write shards. A thread flushes each while the next is written; its record is kept when it is whole."""
        done = self.samples - sum(len(task.indices) for task in left)
        written = sum(part.bytes for part in parts.values())
        bad = sum(len(part.left_out) for part in parts.values())
        label_names = _label_names(self._label_sets, _names(self._first))
        hashes = {split: getattr(source, "name_hashes", None) for split, source in self._sources.items()}
        with closing(self._encoded(left)) as samples, ThreadPoolExecutor(1, "flush") as flush:
            flushed: Future[None] | None = None
            for task in left:
                writer = ShardWriter(self.out / task.name, label_names)
                try:
                    for index in task.indices:
                        sample = next(samples)
                        done += 1
                        if isinstance(sample, Encoded):
                            of_split = hashes[task.split]
                            writer.add(index, sample, 0 if of_split is None else int(of_split[index]))
                        else:
                            bad += 1
                            self._refuse_too_many(bad, sample)
                            writer.leave_out(sample)
                        progress(done, self.samples, written + writer.bytes)
                    part = parts[task.name] = writer.end()
                    written += part.bytes
                    if flushed is not None:
                        flushed.result()
                    flushed = flush.submit(_finish, writer, folder, task, part)
                except BaseException:
                    writer.discard()
                    raise
            if flushed is not None:
                flushed.result()

    def _refuse_too_many(self, bad: int, newest: str) -> None:
        if bad > self._max_bad:
            allowed = f"dataset.max_bad_samples={self._max_bad} are left out"
            raise ValueError(f"unreadable sample: {newest} ({bad} so far; {allowed})")

    def _encoded(self, tasks: Sequence[ShardTask]) -> Generator[Encoded | str, None, None]:
        """The samples of shards, in order."""
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # with more, torch's threads would wait for each other in loops
        pool = ThreadPoolExecutor(self._threads, "encode", torch.set_num_threads, (1,))
        waiting: deque[Future[list[Encoded | str]]] = deque()
        try:
            for source, indices in self._chunks(tasks):
                waiting.append(pool.submit(self._encoded_chunk, source, indices))
                if len(waiting) > _AHEAD * self._threads:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(before)

    def _chunks(self, tasks: Sequence[ShardTask]) -> Iterator[tuple[Any, range]]:
        for task in tasks:
            for start in range(0, len(task.indices), _CHUNK):
                yield self._sources[task.split], task.indices[start : start + _CHUNK]

    def _encoded_chunk(self, source: Any, indices: range) -> list[Encoded | str]:
        return [self._encode(source, index) for index in indices]

    def _index(self, parts: Mapping[str, WrittenShard]) -> ShardSet:
        """The index of all splits, whose samples are written."""
        splits: dict[Split, SplitIndex] = {}
        for split in self._sources:
            tasks = [task for task in self._tasks if task.split == split]
            file = f"index-{split}.npy"
            crc = write_rows(self.out / file, [parts[task.name].rows for task in tasks])
            splits[split] = split_index(file, crc, tasks, parts)
        return ShardSet(
            checksums=True,
            raw=self._settings.format == "raw",
            classes=self._first.classes,
            label_sets=None if self._label_sets is None else [list(each) for each in self._label_sets],
            class_names=_names(self._first),
            mean=_of_channels(self._first, "mean"),
            std=_of_channels(self._first, "std"),
            settings=self._settings,
            splits=splits,
        )


def _finish(writer: ShardWriter, folder: Path, task: ShardTask, part: WrittenShard) -> None:
    try:
        writer.sync()
        write_part(folder, task, part)  # before: a shard at its place with its record is whole
        writer.rename()
    finally:
        writer.discard()


def _names(dataset: Any) -> list[str] | None:
    names = getattr(dataset, "class_names", None)
    # names of folders may be no UTF-8
    return None if names is None else [str(name).encode("utf-8", "replace").decode() for name in names]


def _label_names(
    label_sets: Sequence[Sequence[int]] | None, class_names: Sequence[str] | None
) -> list[list[str | int]] | None:
    """The sets with names in place of classes, where these are known."""
    if label_sets is None:
        return None
    return [[number if class_names is None else class_names[number] for number in each] for each in label_sets]


def _of_channels(dataset: Any, name: str) -> list[float] | None:
    """Three values: a grey image is repeated in each channel."""
    values = [float(value) for value in getattr(dataset, name, None) or ()]
    return values * 3 if len(values) == 1 else values if len(values) == 3 else None


@contextmanager
def _only_writer(folder: Path) -> Generator[None, None, None]:
    """Raise ValueError if another process writes into the folder."""
    with (folder / "lock").open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"out={folder.parent} is being written by another leyden prepare") from None
        yield
