"""`leyden status`: how runs stand, in one table. Neither torch nor Hydra is imported."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

from .errors import refuse
from .origin import shown
from .run_folder import FROZEN, absolute
from .run_status import RunStatus, status_of
from .slurm_jobs import known, submission_of

_LONGEST = 160
_WIDE = 400
"""Columns where the output is no terminal: nothing is broken into lines that a program would have to join."""


def status(folders: Sequence[str], as_json: bool) -> int:
    """Print how the runs in these folders stand; in outputs/ where none is named.

    Raises:
        ConfigError: there is no such folder.
    """
    wanted = [absolute(folder) for folder in folders or ["outputs"]]
    for folder in wanted:
        if folders and not folder.is_dir():
            raise refuse("status", "there is no such folder", shown(folder), "leyden status FOLDER of a run or of many")
    found = statuses([run for folder in wanted for run in runs_in(folder)])
    if as_json:
        print(json.dumps([asdict(run) for run in found], indent=2))
    elif not found:
        print(f"no runs in {', '.join(shown(folder) for folder in wanted)}")
    else:
        print_table(found)
    return 0


def runs_in(folder: Path) -> Iterator[Path]:
    """The run folders at and below a folder, by name; a sweep's trials by number."""
    for path, folders, files in os.walk(folder):
        if FROZEN in files:
            yield Path(path)
            folders.clear()
        folders[:] = sorted((name for name in folders if not name.startswith(".")), key=_by_number)


def _by_number(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdigit() else (-1, name)


def statuses(runs: Sequence[Path]) -> list[RunStatus]:
    """How these runs stand; Slurm is asked once for all of them."""
    jobs = known(one.job_id for one in map(submission_of, runs) if one is not None)
    return [status_of(run, jobs) for run in runs]


def print_table(found: Sequence[RunStatus]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("run", "state", "step", "samples/s", "time left", "what to know", "checkpoint")
    for run in found:
        table.add_row(
            run.run, run.state, _steps(run), _rounded(run.samples_per_second), _duration(run.seconds_left),
            _first_line(run.why), run.checkpoint or "",
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else _WIDE).print(table)


def _steps(run: RunStatus) -> str:
    if run.step is None:
        return ""
    return str(run.step) if run.total_steps is None else f"{run.step} of {run.total_steps}"


def _rounded(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else str(timedelta(seconds=round(seconds)))


def _first_line(text: str) -> str:
    from rich.markup import escape

    line = text.strip().splitlines()[0] if text.strip() else ""
    return escape(line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}...")
