"""summary.json of a run, also of a failed one. No torch: launchers read and write it."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..base.atomic_file import atomic_file, naming
from ..base.open_files import is_lack
from ..base.paths import shorten_path
from ..base.storage import current_place
from ..base.untrusted_file import DamagedFile, read_mapping
from ..base.versions import versions
from .checkpoints import intact
from .frozen import trials_in
from .sessions import Record, check_session, read_recorded

SUMMARY = "summary.json"
_RESERVED = 4096
"""Least bytes of summary.json, a block of most file systems: a failure is recorded in them where the disk is full."""
_TYPES = {
    "status": str, "error": str, "stop_reason": str, "failed_rank": int, "steps": int, "epochs": int,
    "samples_per_second": float, "sessions": list, "metrics": dict,
}  # fmt: skip
_LONGEST_ERROR = 1000
"""Characters of an error that is recorded there."""
PRUNED = "pruned by "
"""How the `stop_reason` of a trial begins that the pruner of its sweep has ended."""
PROGRESS = "progress.json"
"""File of a run's progress, see `engine.progress`."""


def write_summary(run_dir: Path, summary: dict[str, Any]) -> None:
    """Write summary.json atomically.

    Raises:
        OSError: no space, or no such folder; the file is as it was.
    """
    with atomic_file(run_dir / SUMMARY) as file:
        file.write(_text(summary).ljust(_RESERVED - 1) + "\n")


def _text(summary: dict[str, Any]) -> str:
    return json.dumps(summary, indent=2)


def _overwrite(file: Path, *summaries: dict[str, Any]) -> None:
    """Write the first of these summaries that fits over the file's own bytes: on a full disk it cannot grow."""
    with naming(file), open(file, "r+b") as stream:
        size = os.fstat(stream.fileno()).st_size
        text = next((t for t in (_text(one).encode() for one in summaries) if len(t) < size), None)
        if text is not None:
            stream.write(text.ljust(size - 1) + b"\n")
            stream.flush()
            os.fsync(stream.fileno())


def read_summary(run_dir: Path) -> dict[str, Any]:
    """summary.json; {} without one.

    Raises:
        DamagedFile: it is damaged.
    """
    path = run_dir / SUMMARY
    summary = read_mapping(path, _TYPES)
    for number, session in enumerate(summary.get("sessions") or []):
        check_session(path, session, f"sessions.{number}")
    return summary


def was_pruned(summary: dict[str, Any]) -> bool:
    """Whether the pruner of its sweep has ended the run."""
    return str(summary.get("stop_reason")).startswith(PRUNED)


def read_sessions(run_dir: Path) -> list[Record]:
    """The sessions of a run, from its summary and its progress file."""
    return read_recorded(read_summary(run_dir), run_dir / PROGRESS)


def mark_failed(run_dir: Path, message: str, rank: int) -> None:
    """Record error and rank of a failure in summary.json, next to what it holds and the session so far.

    Never raises for a full disk, a lost or a read-only folder, which may be the failure itself.
    """
    place = current_place(run_dir)
    if place is None:
        return
    failure = {"status": "failed", "error": message, "failed_rank": rank}
    with suppress(OSError):
        before = _so_far(place)
        whole = {**before, **failure, "versions": versions()}
        try:
            write_summary(place, whole)
        except OSError:
            _overwrite(place / SUMMARY, whole, {**failure, "error": message[:_LONGEST_ERROR]})


def _so_far(run_dir: Path) -> dict[str, Any]:
    """The summary with the session so far; {} where it is damaged, and is to be replaced."""
    try:
        sessions = read_sessions(run_dir)
        return {**read_summary(run_dir), **({"sessions": sessions} if sessions else {})}
    except DamagedFile:
        return {}


def last_good_checkpoint(run_dir: Path) -> str:
    """The last good checkpoint and the command that continues from it, for the message of a failed run."""
    run_dir = current_place(run_dir) or run_dir
    try:
        trials = trials_in(run_dir)
    except (OSError, ValueError, KeyError, TypeError) as error:  # removed, or damaged
        if not is_lack(error):
            return "there is nothing to continue from"
        trials = []
    if trials:
        kept = sum(bool(intact(trial)) for trial in trials)
        checkpoints = f"{kept} of its {len(trials)} trials have a checkpoint"
        return f"{checkpoints}\ncontinue with: leyden resume {shorten_path(run_dir.parent)}"
    found = intact(run_dir)
    if not found:
        return "no checkpoint had been written"
    return f"last good checkpoint: {found[0]}\ncontinue with: leyden resume {shorten_path(run_dir)}"


def mark_refused(run_dir: Path, message: str) -> None:
    """Record in summary.json that the preflight refused to start or resume the run; the rest is kept."""
    refusal = {"status": "refused", "error": message, "versions": versions()}
    write_summary(run_dir, {**read_summary(run_dir), **refusal})
