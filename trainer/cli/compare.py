"""`leyden compare`: runs side by side, ranked. Imports neither torch nor Hydra."""

import argparse
import sys
from pathlib import Path

from ..base.errors import refuse, shorten_value
from ..base.paths import absolute, shorten_path
from ..runs.comparison import ComparedRun, Comparison, compare_runs
from ..runs.status import runs_in
from .comparison_files import WRITERS

_ROWS, _COLUMNS = 40, 6
"""Most runs, and most keys of the config, that a terminal's table has; files have all."""
_WIDE = 400


def compare(parsed: argparse.Namespace) -> int:
    wanted = [absolute(word) for word in parsed.words or ["outputs"]]
    for folder in wanted:
        if not folder.is_dir():
            text = "there is no such folder"
            raise refuse("compare", text, shorten_path(folder), "leyden compare RUN RUN, or the folder of a sweep")
    files = _files(parsed.out)
    runs = list(dict.fromkeys(run for folder in wanted for run in runs_in(folder)))
    if not runs:
        raise refuse(
            "compare", "there are no runs", " ".join(map(shorten_path, wanted)), "leyden compare FOLDER of runs"
        )
    found = compare_runs(runs, parsed.by, parsed.mode)
    if parsed.by is not None and all(found.value(run) is None for run in found.runs):
        names = sorted({name for run in found.runs for name in run.metrics})
        raise refuse("--by", f"no run has logged it; logged: {', '.join(names) or 'nothing'}", parsed.by)
    _print(found)
    for file in files:
        try:
            WRITERS[file.suffix](found, file)
        except OSError as error:
            raise refuse("--out", f"cannot be written: {error}", shorten_path(file), "--out compare.html") from error
        print(shorten_path(file))
    return 0


def _files(out: str | None) -> list[Path]:
    """Files to write: the named one, or one of each kind where the name has no suffix."""
    if out is None:
        return []
    file = absolute(out)
    files = [file] if file.suffix else [file.with_suffix(suffix) for suffix in WRITERS]
    if not file.parent.is_dir() or any(each.suffix not in WRITERS for each in files):
        text = "must be a .csv, .png or .html file in a folder that exists, or a name without a suffix for all three"
        raise refuse("--out", text, out, "--out compare.html")
    return files


def _print(found: Comparison) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("", "run", "state", found.metric, "samples/s", *map(escape, found.keys[:_COLUMNS]))
    for place, run in enumerate(found.runs[:_ROWS], 1):
        settings = [_setting(run, key) for key in found.keys[:_COLUMNS]]
        state = f"{run.state}: {run.why}" if run.why else run.state
        table.add_row(
            str(place), _clean(run.run), _clean(shorten_value(state.partition("\n")[0])), _number(found.value(run)),
            _number(run.samples_per_second), *(_clean(shorten_value(text, 30)) for text in settings),
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else _WIDE).print(table)
    more = len(found.runs) - _ROWS, len(found.keys) - _COLUMNS
    if more[0] > 0 or more[1] > 0:
        named = zip(more, ("runs", "keys that differ"), strict=True)
        left = [f"{count} more {what}" for count, what in named if count > 0]
        print(f"{' and '.join(left)}: leyden compare ... --out compare.html")
    if not found.keys and sum(1 for run in found.runs if run.values) > 1:
        print("their configs are the same")


def _setting(run: ComparedRun, key: str) -> str:
    """A run's value of a key as it is typed; "" where it has none."""
    return "" if key not in run.values else shorten_value(run.values[key], 200)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _clean(text: str) -> str:
    from rich.markup import escape

    return escape("".join(char if char.isprintable() else "?" for char in text))
