"""Rows of published measurements: training at several scales, and of which the step on one device is also known."""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PUBLISHED = Path(__file__).parent / "published"


@dataclass(frozen=True)
class Row:
    """One measured training point, as scaling.csv has it."""

    id: str
    system: str
    source: str
    provenance: str
    model: str
    parameters: float
    gflop: float | None
    """Of training, a sample."""
    precision: str
    batch: float | None
    """Of a device."""
    device: str
    peak_tflops: float | None
    memory_gb_s: float | None
    devices_per_node: int
    nodes: int
    devices: int
    inside: str
    """Link between devices of a node, in words."""
    inside_gb_s: float | None
    between: str
    between_gb_s: float | None
    strategy: str
    metric: str
    value: float
    note: str

    @property
    def series(self) -> str:
        return re.sub(r"-g\d+$", "", self.id)

    @property
    def stem(self) -> str:
        """What several strategies and networks share: one device, one model, one batch."""
        return self.series.split("+")[0]

    @property
    def machine(self) -> str:
        """By which reports of several machines tell them apart: the first two words of a series."""
        return self.stem if "+" in self.series else "-".join(self.series.split("-")[:2])

    @property
    def report(self) -> str:
        """The publication that it is from: rows of one are not independent."""
        return re.split(r"[,:(@;]| README| docs| issue| pull request", self.source)[0].strip()


@dataclass(frozen=True)
class Example:
    """A row on several devices, with the one on one device."""

    row: Row
    alone: Row

    @property
    def stretch(self) -> float:
        """Measured time of a step relative to one on one device, of the same batch a device."""
        workers, row, alone = self.row.devices, self.row.value, self.alone.value
        return row * workers / alone if self.row.metric == "hours" else workers * alone / row

    @property
    def alone_seconds(self) -> float | None:
        """The step on one device; None: only ratios are known."""
        if self.row.metric != "samples_per_second" or self.row.batch is None:
            return None
        return self.row.batch / self.alone.value


def read(file: Path) -> list[Row]:
    """All rows of a file but those that its notes exclude."""
    with file.open(newline="", encoding="utf-8") as text:
        return [_row(cells) for cells in csv.DictReader(text) if not cells["note"].startswith("EXCLUDE")]


def _row(cells: dict[str, str]) -> Row:
    def number(name: str) -> float | None:
        return float(cells[name]) if cells[name] else None

    return Row(
        cells["id"], cells["system"], cells["source"], cells["provenance"], cells["model"],
        float(cells["params_million"]) * 1e6,
        number("train_gflop_per_sample"), cells["precision"], number("batch_per_gpu"), cells["gpu"],
        number("gpu_peak_tflops_for_precision"), number("gpu_mem_gbps"), int(cells["gpus_per_node"]),
        int(cells["nodes"]), int(cells["gpus_total"]), cells["intra_node_link"], number("intra_GBps"),
        cells["inter_node_link"], number("inter_GBps_per_node"), cells["strategy"], cells["metric"],
        float(cells["value"]), cells["note"],
    )  # fmt: skip


def examples(rows: Sequence[Row]) -> Iterator[Example]:
    """Rows on several devices of which the step on one device is known."""
    alone = {row.series: row for row in rows if row.devices == 1}
    for row in rows:
        found = alone.get(row.series) or alone.get(row.stem)
        if row.devices > 1 and found is not None:
            yield Example(row, found)
