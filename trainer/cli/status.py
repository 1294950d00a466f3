"""`leyden status`: states of runs in one table. Imports neither torch nor Hydra."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.errors import refuse
from ..base.paths import absolute, shorten_path
from ..base.untrusted_file import DamagedFile
from ..runs.frozen import read_values
from ..runs.status import DAMAGED, RunStatus, progress_of, runs_in, statuses
from ..runs.summary import read_summary

if TYPE_CHECKING:
    from rich.table import Table

_LONGEST = 160
_ALL_COLUMNS = 150
"""Width from which all columns are shown."""
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
            raise refuse(
                "status", "there is no such folder", shorten_path(folder), "leyden status FOLDER of a run or of many"
            )
    found = statuses([run for folder in wanted for run in runs_in(folder)])
    if as_json:
        print(json.dumps([asdict(run) for run in found], indent=2))
    elif not found:
        print(f"no runs in {', '.join(shorten_path(folder) for folder in wanted)}")
    else:
        print_table(found)
    return 0


def print_table(found: Sequence[RunStatus]) -> None:
    """Print a row for each run: on a terminal that is too narrow for all columns the most important ones."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    if console.width >= _ALL_COLUMNS:
        console.print(_all_columns(found))
        return
    folders = [absolute(run.run) for run in found]
    around = Path(os.path.commonpath([folder.parent for folder in folders]))
    names = [str(folder.relative_to(around)) for folder in folders]
    console.print(f"{_escape_text(shorten_path(around))}:", soft_wrap=True, highlight=False)
    console.print(_few_columns(found, names))
    for name, run in zip(names, found, strict=True):
        if run.why:
            console.print(f"{_escape_text(name)}: {_first_line(run.why)}", soft_wrap=True, highlight=False)


def _all_columns(found: Sequence[RunStatus]) -> "Table":
    from rich.table import Table

    table = Table("run", "state", "step", "samples/s", "time left", "goodput", "what to know", "checkpoint")
    for run in found:
        table.add_row(
            _escape_text(run.run), run.state, _steps(run), _whole_number(run.samples_per_second),
            _duration(run.seconds_left), "" if run.goodput is None else f"{100 * run.goodput:.0f} %",
            _first_line(run.why), _escape_text(run.checkpoint or ""),
        )  # fmt: skip
    return table


def _few_columns(found: Sequence[RunStatus], names: Sequence[str]) -> "Table":
    from rich.table import Table

    table = Table(padding=0, pad_edge=False)
    table.add_column("run", overflow="fold", ratio=1)
    for column in ("state", "epoch", "metric", "time left"):
        table.add_column(column, overflow="fold")
    for name, run in zip(names, found, strict=True):
        overrides, epoch, metric = ([], "", "") if run.state == DAMAGED else _of_files(absolute(run.run))
        state = run.state.partition(" (")[0]
        table.add_row(
            _escape_text(" ".join([name, *overrides])), state, epoch, _escape_text(metric), _duration(run.seconds_left)
        )
    return table


def _of_files(folder: Path) -> tuple[list[str], str, str]:
    """What distinguishes a run, its epoch, and the metric by which checkpoints are kept, once it has ended."""
    try:
        values, summary = read_values(folder), read_summary(folder)
    except (DamagedFile, OSError):
        return [], "", ""
    composition, checkpoint = values.get("composition") or {}, (values.get("callbacks") or {}).get("checkpoint") or {}
    overrides = [each for each in composition.get("overrides") or [] if not each.startswith("hydra")]
    varied = [each for each in overrides if each.partition("=")[0].lstrip("+~") in (composition.get("swept") or [])]
    epoch = summary.get("epochs", progress_of(folder).get("epoch"))
    monitor = checkpoint.get("monitor") or "val/acc"
    metric = (summary.get("metrics") or {}).get(monitor)
    return (
        varied or overrides,
        str(epoch) if isinstance(epoch, int) else "",
        f"{monitor} {metric:.4g}" if isinstance(metric, float) else "",
    )


def _steps(run: RunStatus) -> str:
    if run.step is None:
        return ""
    return str(run.step) if run.total_steps is None else f"{run.step} of {run.total_steps}"


def _whole_number(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else str(timedelta(seconds=round(seconds)))


def _first_line(text: str) -> str:
    line = text.strip().splitlines()[0] if text.strip() else ""
    return _escape_text(line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}...")


def _escape_text(text: str) -> str:
    """A text of a run folder, which may be a stranger's: neither markup nor codes for the terminal."""
    from rich.markup import escape

    return escape("".join(char if char.isprintable() else "?" for char in text))
