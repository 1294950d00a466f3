"""The checks as a table, as JSON, and in TensorBoard."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ....base.atomic_file import write_atomically
from .checks import Check, exit_code

RESULT = "train.json"
_WIDTH = 150
_WORDS = {True: "ok", False: "FAILED", None: "-"}


def report(run_dir: Path, checks: Sequence[Check], console: Console | None = None) -> None:
    """Print the table, write train.json and TensorBoard's scalars."""
    content = {"exit_code": exit_code(checks), "checks": [check.as_data() for check in checks]}
    write_atomically(run_dir / RESULT, json.dumps(content, indent=2) + "\n")
    console = console or Console(width=None if sys.stdout.isatty() else _WIDTH)
    console.print(_table(checks))
    _write_scalars(run_dir, checks)


def _table(checks: Sequence[Check]) -> Table:
    table = Table("check", "value", "limit", "", "s", "", title="training on this hardware")
    for check in checks:
        numbers = ["" if number is None else f"{number:.4g}" for number in (check.value, check.limit)]
        table.add_row(check.check, *numbers, _WORDS[check.ok], f"{check.seconds:.0f}", check.text)
    return table


def _write_scalars(run_dir: Path, checks: Sequence[Check]) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(run_dir)) as writer:
        for check in checks:
            name = check.check.replace(" ", "_")
            if check.value is not None:
                writer.add_scalar(f"doctor/{name}", check.value, 0)
            if check.ok is not None:
                writer.add_scalar(f"doctor_ok/{name}", float(check.ok), 0)
