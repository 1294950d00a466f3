"""What `leyden prepare` has to do, checked before anything is written."""

import os
import shutil
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from .encode import Encoded, Encoder
from .index import UNFINISHED, Settings, ShardSet, read_index
from .parts import ShardTask, parts_of, read_part

SETTINGS = "settings.json"
_TRIED = 24
"""Samples from which the bytes of all are estimated."""
_TAR_BYTES = 2048
"""Headers and padding of an image and its class."""


def check_number(key: str, value: Any, least: int, most: int) -> None:
    """Raise ValueError if an option is no whole number of a range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{key}={value} must be a whole number from {least} to {most}")


def finished_set(out: Path) -> ShardSet | None:
    """The index of a folder that is complete.

    Raises:
        ValueError: it holds tars of another tool, or is damaged.
    """
    found = read_index(out)
    if found is not None and found.settings is None:
        raise ValueError(f"out={out} holds tars of another tool; name another folder")
    return found


def check_folder(out: Path, wanted: Settings) -> ShardSet | None:
    """The index of the folder if it is complete.

    Raises:
        ValueError: the folder holds anything but shards of these settings, or cannot be written.
    """
    if not out.exists():
        above = next(path for path in out.absolute().parents if path.exists())
    elif not out.is_dir():
        raise ValueError(f"out={out} is not a folder")
    else:
        above = out
    if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        raise ValueError(f"out={out} cannot be written: {above} is no folder that this user may write into")
    found, begun = finished_set(out), _begun(out)
    for settings in (found.settings if found else None, begun):
        if settings is not None:
            _compare(out, settings, wanted)
    if found is None and begun is None and out.is_dir() and any(path.name != UNFINISHED for path in out.iterdir()):
        raise ValueError(f"out={out} is not empty, and holds no shards of leyden prepare; name another folder")
    return found


def _begun(out: Path) -> Settings | None:
    """The settings of a folder that is not complete."""
    path = out / UNFINISHED / SETTINGS
    try:
        return Settings.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        raise ValueError(f"out={out} is damaged in {path}; remove the folder") from None


def _compare(out: Path, found: Settings, wanted: Settings) -> None:
    for key, value in wanted:
        there = getattr(found, key)
        if value != there:
            what = "another dataset" if key == "source" else f"{key}={'null' if there is None else there}"
            raise ValueError(f"out={out} holds shards of {what}; remove it, or name another folder")


def missing(tasks: Sequence[ShardTask], out: Path, found: ShardSet | None) -> list[ShardTask]:
    """The shards that are not whole."""
    if found is None:
        return [task for task in tasks if read_part(out / UNFINISHED, out, task) is None]
    whole = {task.name for task, _ in parts_of(out, found, tasks)}
    return [task for task in tasks if task.name not in whole]


def check_space(out: Path, tasks: Sequence[ShardTask], sources: Mapping[Any, Any], encode: Encoder) -> None:
    """Raise ValueError if the disk has no room for shards, by a few samples, or if none of these can be read."""
    ends = list(accumulate(len(task.indices) for task in tasks))
    total = ends[-1] if ends else 0
    sizes: list[int] = []
    problem = ""
    for number in sorted({total * k // _TRIED for k in range(_TRIED)} if total else ()):
        at = bisect_right(ends, number)
        task = tasks[at]
        found = encode(sources[task.split], task.indices[number - ends[at]])
        if isinstance(found, Encoded):
            sizes.append(found.size + (0 if found.height else _TAR_BYTES))
        else:
            problem = problem or found
    if not sizes:
        if problem:
            raise ValueError(f"none of the images tried can be read: {problem}")
        return
    needed = int(1.1 * total * sum(sizes) / len(sizes))
    place = next(path for path in (out, *out.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(place).free
    if needed > free:
        text = f"about {needed / 1e9:.3g} GB are needed for {total:,} images, {free / 1e9:.3g} GB are free"
        raise ValueError(f"out={out} has no room: {text}")
