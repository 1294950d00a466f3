"""metrics.csv: one row a step, a column a metric."""

import csv
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.fabric.loggers import Logger

from ..whole_file import whole_file


class MetricsCSV(Logger):
    """Rows are appended and flushed as they come; a new metric adds a column. Values of one step share a row.

    (Lightning's CSVLogger deletes the earlier rows when it is opened on the same folder again.)
    """

    def __init__(self, root_dir: str):
        super().__init__()
        self.path = Path(root_dir) / "metrics.csv"
        self._columns = ["step"]
        self._last: dict[str, str] | None = None
        self._last_at = 0

    @property
    def name(self) -> str:
        return "csv"

    @property
    def version(self) -> int:
        return 0

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """They stand in config.yaml."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        row = {name: repr(float(value)) for name, value in metrics.items()}
        new = [name for name in row if name not in self._columns]
        if new:
            self._columns += new
            self._rewrite(self._read())
        if self._last is not None and self._last["step"] == str(step):
            self._last.update(row)
            with open(self.path, "r+", newline="") as file:
                file.seek(self._last_at)
                file.truncate()
        else:
            self._last = {"step": str(step), **row}
        with open(self.path, "a", newline="") as file:
            self._last_at = file.tell()
            csv.DictWriter(file, self._columns, restval="").writerow(self._last)

    def cut_after(self, step: int) -> None:
        """Forget what was logged after a step: training is about to do it again."""
        if self.path.exists():
            rows = self._read()
            self._columns = list(dict.fromkeys(["step", *(name for row in rows for name in row)]))
            self._rewrite([row for row in rows if int(row["step"]) <= step])

    def _read(self) -> list[dict[str, str]]:
        if not self.path.exists():
            return []
        with open(self.path, newline="") as file:
            # A killed process may have left half a row at the end.
            return [row for row in csv.DictReader(file) if None not in row.values() and row["step"].isdigit()]

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        with whole_file(self.path, newline="") as file:
            writer = csv.DictWriter(file, self._columns, restval="")
            writer.writeheader()
            self._last_at = file.tell()
            for row in rows:
                self._last_at = file.tell()
                writer.writerow(row)
        self._last = dict(rows[-1]) if rows else None
