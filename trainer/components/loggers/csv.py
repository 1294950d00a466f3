"""metrics.csv: one row for each step, one column for each metric."""

import csv
import os
import re
from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, ClassVar

from lightning.fabric.loggers import Logger
from typing_extensions import override

from ...base.atomic_file import atomic_file
from ...base.regular_file import open_regular
from ...core.loggers.contract import LoggerContract
from .lossy import LossyLog


class MetricsCSV(LoggerContract, Logger):
    """Logger that appends and flushes rows; a new metric adds a column. Values of one step share a row.

    Why not Lightning's CSVLogger: it deletes earlier rows when it is opened on the same folder again.
    """

    essential: ClassVar[bool] = True

    def __init__(self, root_dir: str):
        super().__init__()
        self.path = Path(root_dir) / "metrics.csv"
        self._columns = ["step"]
        self._last: dict[str, str] | None = None
        self._last_at = 0
        self._lossy = LossyLog(self.path)

    @property
    def name(self) -> str:
        return "csv"

    @property
    def version(self) -> int:
        return 0

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing: they are in config.yaml."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        if self._lossy.has_space():
            with self._lossy.losing():
                self._log({name: repr(float(value)) for name, value in metrics.items()}, str(step))

    def _log(self, row: dict[str, str], step: str) -> None:
        new = [name for name in row if name not in self._columns]
        if new:
            self._rewrite(self._read(), [*self._columns, *new])
        if self._last is not None and self._last["step"] == step:
            self._last.update(row)
            os.truncate(self.path, self._last_at)
        else:
            self._last = {"step": step, **row}
        try:
            with open(self.path, "a", newline="") as file:
                self._last_at = file.tell()
                csv.DictWriter(file, self._columns, restval="").writerow(self._last)
        except OSError:
            self._last = None
            with suppress(OSError):  # half a row would spoil the next one
                os.truncate(self.path, self._last_at)
            raise

    @override
    def cut_after(self, step: int, /) -> None:
        """Remove the rows after a step, which training is about to repeat."""
        if self.path.exists():
            rows = self._read()
            columns = list(dict.fromkeys(["step", *(name for row in rows for name in row)]))
            self._rewrite([row for row in rows if int(row["step"]) <= step], columns)

    def _read(self) -> list[dict[str, str]]:
        if not self.path.exists():
            return []
        rows: list[dict[str, str]] = []
        # a killed process may have left a truncated row at the end, and the file of a stranger's run may hold anything
        with TextIOWrapper(open_regular(self.path), newline="", errors="replace") as file, suppress(csv.Error):
            rows.extend(row for row in csv.DictReader(file) if _is_row(row))
        return rows

    def _rewrite(self, rows: list[dict[str, str]], columns: list[str]) -> None:
        last_at = 0
        with atomic_file(self.path, newline="") as file:
            writer = csv.DictWriter(file, columns, restval="")
            writer.writeheader()
            last_at = file.tell()
            for row in rows:
                last_at = file.tell()
                writer.writerow(row)
        self._columns, self._last_at = columns, last_at
        self._last = dict(rows[-1]) if rows else None


def _is_row(row: Mapping[Any, Any]) -> bool:
    """Whether a row is whole: a text for each column, and the number of a step."""
    return None not in row and None not in row.values() and re.fullmatch("[0-9]{1,15}", row.get("step", "")) is not None
