"""Paths of a run's checkpoints. No torch: launchers use them."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..base.atomic_file import write_atomically
from ..base.untrusted_file import DamagedFile, read_mapping

LAST = "last.ckpt"
_DAMAGED = "damaged.json"
_NAME = re.compile(r"step=(\d+)\.ckpt")


def folder(run_dir: Path) -> Path:
    return run_dir / "checkpoints"


def path_of(run_dir: Path, step: int) -> Path:
    """The checkpoint of an optimizer step."""
    return path_in(folder(run_dir), step)


def path_in(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"step={step:08d}.ckpt"


def server_path(path: Path, server: int) -> Path:
    """The file of one parameter server for a checkpoint, in the same folder."""
    return path.with_name(f"{path.stem}.server{server:04d}.ckpt")


def step_of(path: Path) -> int:
    """The optimizer step in a checkpoint's name; -1 for another name."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else -1


def saved_checkpoints(run_dir: Path) -> list[Path]:
    """The run's checkpoints, newest first."""
    found = [p for p in folder(run_dir).glob("step=*.ckpt") if step_of(p) >= 0]
    return sorted(found, key=step_of, reverse=True)


def intact(run_dir: Path) -> list[Path]:
    """The run's checkpoints, newest first, without those that were found damaged."""
    return [path for path in saved_checkpoints(run_dir) if not _is_noted(path)]


def note_damaged(path: Path, reason: str) -> None:
    """Record that a checkpoint was found damaged: until it is written again it is not called a good one."""
    with suppress(OSError):
        noted = {**_notes(path.parent), path.name: {"mtime_ns": path.stat().st_mtime_ns, "reason": reason}}
        write_atomically(path.parent / _DAMAGED, json.dumps(noted, indent=2) + "\n")


def _is_noted(path: Path) -> bool:
    note = _notes(path.parent).get(path.name)
    with suppress(OSError):
        return isinstance(note, dict) and note.get("mtime_ns") == path.stat().st_mtime_ns
    return False


def _notes(checkpoints: Path) -> dict[str, Any]:
    try:
        return read_mapping(checkpoints / _DAMAGED, {})
    except (OSError, DamagedFile):
        return {}


def shard_path(main: Path, worker: int) -> Path:
    """The file of one worker for a checkpoint, in the same folder."""
    return main.with_name(f"{main.stem}.shard{worker:04d}.ckpt")


def bytes_of_shards(main: Path) -> int:
    """Bytes of the workers' files of a checkpoint."""
    return sum(file.stat().st_size for file in main.parent.glob(f"{main.stem}.shard*.ckpt"))


def index_path(main: Path) -> Path:
    return main.with_name(f"{main.stem}.index.json")


def remove(path: Path) -> None:
    """Delete a checkpoint with the files of its servers and workers."""
    path.unlink(missing_ok=True)
    index_path(path).unlink(missing_ok=True)
    for part in (file for kind in ("shard", "server") for file in path.parent.glob(f"{path.stem}.{kind}*.ckpt")):
        part.unlink(missing_ok=True)
