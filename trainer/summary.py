"""summary.json of a run, and what is said of one that failed. No torch: a launcher reads and writes it, too."""

import json
from pathlib import Path
from typing import Any

from .checkpoint_names import saved
from .config import trials_in
from .origin import shown
from .sessions import Record, recorded
from .versions import versions
from .whole_file import whole_file

PROGRESS = "progress.json"
"""A run's file that says how far it is, see `progress_file`."""


def write_summary(run_dir: Path, summary: dict[str, Any]) -> None:
    """summary.json, whole at any time."""
    with whole_file(run_dir / "summary.json") as file:
        json.dump(summary, file, indent=2)
        file.write("\n")


def read_summary(run_dir: Path) -> dict[str, Any]:
    path = run_dir / "summary.json"
    return json.loads(path.read_text()) if path.exists() else {}


def read_sessions(run_dir: Path) -> list[Record]:
    """The sessions of a run that its summary and its progress file know of."""
    return recorded(read_summary(run_dir), run_dir / PROGRESS)


def mark_failed(run_dir: Path, message: str, rank: int) -> None:
    """Say in summary.json that, why and where the run failed; keep what it says already, and what the session did."""
    sessions = read_sessions(run_dir)
    summary = {**read_summary(run_dir), **({"sessions": sessions} if sessions else {})}
    failure = {"status": "failed", "error": message, "failed_rank": rank, "versions": versions()}
    write_summary(run_dir, {**summary, **failure})


def last_good_checkpoint(run_dir: Path) -> str:
    """What there is to go on from, and how, for the end of a failed run."""
    trials = trials_in(run_dir)
    if trials:
        kept = sum(bool(saved(trial)) for trial in trials)
        return (
            f"{kept} of its {len(trials)} trials have a checkpoint\ngo on with: leyden resume {shown(run_dir.parent)}"
        )
    found = saved(run_dir)
    if not found:
        return "no checkpoint had been written"
    return f"last good checkpoint: {found[0]}\ngo on with: leyden resume {shown(run_dir)}"


def mark_refused(run_dir: Path, message: str) -> None:
    """Say in summary.json that the preflight refused to start or resume the run, and why; keep the rest."""
    refusal = {"status": "refused", "error": message, "versions": versions()}
    write_summary(run_dir, {**read_summary(run_dir), **refusal})
