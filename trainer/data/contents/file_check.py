"""Files of samples that are looked at before the first step: their sizes and headers."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, thread_time
from typing import Any, NamedTuple

from lightning.fabric import Fabric

from ...base.errors import CannotStart, Problem
from ...base.log import log
from ...base.open_files import is_lack
from ...base.printable import printable
from ...config.schema import DatasetConfig
from ...core.communication.plain_values import all_gather_values
from ..abilities import looks_at_files
from ..splits import Splits, Subset

_THREADS = 16
"""Where a disk or the network is waited for. Else there is one: several would only wait for Python's lock, and take
five times its CPU time."""
_FIRST = 2
"""Chunks by which it is found out."""
_CHUNK = 64
_MOST = 10
"""Unreadable files that are named."""
_Chunk = tuple[Any, Sequence[int]]
"""A dataset, and some of its indices."""


class Looked(NamedTuple):
    """What was looked at."""

    files: int
    """Number of files that were to be looked at."""
    looked_at: int
    """Fewer: the time was up."""
    problems: Sequence[str]
    """Errors of those that cannot be read."""


def look_at_files(splits: Splits, share: tuple[int, int], seconds: float) -> Looked:
    """Look at a worker's share of the files of all splits.

    Args:
        share: index and count: every count-th file.
        seconds: that it may take; what is begun then is ended.

    Raises:
        OSError: a file that may be good cannot be opened.
    """
    chunks = [chunk for split in (splits.train, splits.val, splits.test) for chunk in _chunks(split, share)]
    end = monotonic() + seconds

    def look_through(chunk: _Chunk) -> list[str] | None:
        return list(_problems(chunk)) if monotonic() < end else None

    began, worked = monotonic(), thread_time()
    found = [look_through(chunk) for chunk in chunks[:_FIRST]]
    waits = monotonic() - began > 2 * (thread_time() - worked)
    with ThreadPoolExecutor(_THREADS if waits else 1) as threads:
        found += threads.map(look_through, chunks[_FIRST:])
    done = [len(indices) for (_, indices), each in zip(chunks, found, strict=False) if each is not None]
    problems = [problem for each in found for problem in each or ()]
    files = sum(len(indices) for _, indices in chunks)
    if seconds and sum(done) < files:
        text = "looked at %s of %s files in dataset.check_files_s=%g: bad ones of the others are found as they are read"
        log.info(text, f"{sum(done):,}", f"{files:,}", seconds)
    return Looked(files, sum(done), problems)


def unreadable_files(splits: Splits, settings: DatasetConfig, fabric: Fabric, workers: int) -> list[str]:
    """Errors of all files, looked at by all workers. Collective.

    Raises:
        CannotStart: there are more than `dataset.max_bad_samples`.
    """
    looked = look_at_files(splits, (fabric.global_rank, workers), settings.check_files_s)
    own = list(looked.problems)
    gathered: list[list[str]] = all_gather_values(own) if fabric.world_size > 1 else [own]
    problems = sorted({problem for problems in gathered for problem in problems})
    refuse_unreadable(looked, problems, settings)
    return problems


def _chunks(split: Any, share: tuple[int, int]) -> Iterator[_Chunk]:
    if split is None or not looks_at_files(split):
        return
    indices: Sequence[int] = range(len(split))
    while isinstance(split, Subset):
        split, indices = split.dataset, [split.indices[index] for index in indices]
    mine = indices[share[0] :: share[1]]
    for first in range(0, len(mine), _CHUNK):
        yield split, mine[first : first + _CHUNK]


def _problems(chunk: _Chunk) -> Iterator[str]:
    dataset, indices = chunk
    for index in indices:
        try:
            dataset.look_at(index)
        except (OSError, ValueError) as error:
            if is_lack(error):  # the file may be good
                raise
            yield printable(str(error))


def refuse_unreadable(looked: Looked, problems: Sequence[str], settings: DatasetConfig) -> None:
    """Refuse data with more unreadable files than the config allows.

    Args:
        looked: of this worker.
        problems: of all workers.

    Raises:
        CannotStart: with the first of them.
    """
    allowed, found = settings.max_bad_samples, len(problems)
    if found <= allowed:
        return
    lines = [f"{found:,} file{'s' * (found != 1)} cannot be read:", *problems[:_MOST]]
    if found > _MOST:
        lines.append(f"and {found - _MOST:,} more")
    if looked.looked_at < looked.files:
        lines.append("and there may be more: dataset.check_files_s was too short for all")
    raise CannotStart(Problem("dataset.max_bad_samples", "\n".join(lines), allowed, f"dataset.max_bad_samples={found}"))
