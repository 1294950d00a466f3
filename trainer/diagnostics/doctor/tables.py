"""Tables printed by the doctor."""

import sys
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from .findings import link_name
from .results import CollectiveFigures, LinkFigures, Result

_WIDTH = 150
"""Columns of output that is not a terminal."""
_MOST_LINKS = 64
"""Maximum number of printed links, the slowest; all are in result.json and in the heat map."""


def print_tables(result: Result, console: Console | None = None) -> None:
    console = console or Console(width=None if sys.stdout.isatty() else _WIDTH)
    for table in _tables(result):
        console.print(table)


def _tables(result: Result) -> Iterator[Table]:
    yield _devices(result)
    if result.links:
        yield _links(result)
    if result.collectives:
        yield _collectives(result.collectives)


def _devices(result: Result) -> Table:
    precisions = list(result.devices[0].gflop_s)
    table = Table("worker", "device", *(f"{name}, GFLOP/s" for name in precisions), "memory, GB/s", title="devices")
    for worker, figures in zip(result.workers, result.devices, strict=True):
        rates = [f"{figures.gflop_s[name]:.4g}" for name in precisions]
        table.add_row(worker.title, worker.device, *rates, f"{figures.memory_gb_s:.3g}")
    return table


def _links(result: Result) -> Table:
    ordered = sorted(result.links, key=lambda link: link.best_gb_s)[:_MOST_LINKS]
    sizes = sorted({size for link in ordered for size in link.gb_s})
    few = f", the slowest {len(ordered)} of {len(result.links)}" if len(ordered) < len(result.links) else ""
    table = Table("link", "latency, us", *(f"{in_words(size)}, GB/s" for size in sizes), title=f"links, one way{few}")
    for link in ordered:
        rates = [f"{link.gb_s[size]:.3g}" if size in link.gb_s else "" for size in sizes]
        table.add_row(_name_link(result, link), f"{link.latency_us:.3g}", *rates)
    return table


def _name_link(result: Result, link: LinkFigures) -> str:
    return link_name(result, link) + (", across sockets" if link.kind == "across_sockets" else "")


def _collectives(collectives: Sequence[CollectiveFigures]) -> Table:
    sizes = sorted({size for collective in collectives for size in collective.seconds})
    titles = [f"{in_words(size)}, us" if size < 1 << 20 else f"{in_words(size)}, GB/s" for size in sizes]
    table = Table("collective", "workers", *titles, title="collectives: time, and bus bandwidth")
    for found in collectives:
        cells = [_cell(found, size) for size in sizes]
        table.add_row(f"{found.name.replace('_', '-')}, {found.where}", str(found.workers), *cells)
    return table


def _cell(found: CollectiveFigures, size: int) -> str:
    if size not in found.seconds:
        return ""
    return f"{found.seconds[size] * 1e6:.4g}" if size < 1 << 20 else f"{found.bus_gb_s(size):.3g}"


def in_words(size: int) -> str:
    """A power of two of bytes, with its unit."""
    for unit, bits in (("MiB", 20), ("KiB", 10)):
        if size >= 1 << bits:
            return f"{size >> bits} {unit}"
    return f"{size} B"
