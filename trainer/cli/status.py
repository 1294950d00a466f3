"""`leyden status`: states of runs in one table. Imports neither torch nor Hydra."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta

from ..base.errors import refuse
from ..base.paths import absolute, shown
from ..runs.status import RunStatus, runs_in, statuses

_LONGEST = 160
_WIDE = 400
"""Width if the output is not a terminal: rows must stay on one line for programs."""


def print_statuses(folders: Sequence[str], as_json: bool) -> int:
    """Print the states of the runs in these folders, by default in outputs/.

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


def print_table(found: Sequence[RunStatus]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("run", "state", "step", "samples/s", "time left", "goodput", "what to know", "checkpoint")
    for run in found:
        table.add_row(
            _escaped(run.run), run.state, _steps(run), _rounded(run.samples_per_second), _duration(run.seconds_left),
            "" if run.goodput is None else f"{100 * run.goodput:.0f} %", _first_line(run.why),
            _escaped(run.checkpoint or ""),
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
    line = text.strip().splitlines()[0] if text.strip() else ""
    return _escaped(line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}...")


def _escaped(text: str) -> str:
    """A text of a run folder, which may be a stranger's: neither markup nor codes for the terminal."""
    from rich.markup import escape

    return escape("".join(char if char.isprintable() else "?" for char in text))
