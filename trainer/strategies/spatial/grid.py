"""Who owns what of a map spread over a 2-D grid of workers, and what must travel for a layer: pure arithmetic."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ...core.protocols import ReceptiveField, Tileable
from ...core.transfers import Phase, Placement, Send, Transfer

Pairs = dict[tuple[int, int], int]
"""Positions that travel from one worker to another, for those that have any to send."""


class Rectangle(NamedTuple):
    """Positions of a map."""

    rows: range
    cols: range

    @property
    def area(self) -> int:
        return len(self.rows) * len(self.cols)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.cols)

    def common(self, other: "Rectangle") -> "Rectangle":
        """What two rectangles share; its area is 0 where they share nothing."""
        return Rectangle(_common(self.rows, other.rows), _common(self.cols, other.cols))

    def within(self, outer: "Rectangle") -> tuple[slice, slice, slice, slice]:
        """Index of these positions in a tensor (batch, channels, height, width) that holds `outer`."""
        down, across = self.rows.start - outer.rows.start, self.cols.start - outer.cols.start
        everything = slice(None)
        return everything, everything, slice(down, down + len(self.rows)), slice(across, across + len(self.cols))

    def __contains__(self, other: object) -> bool:
        return isinstance(other, Rectangle) and self.common(other) == other


def _common(one: range, other: range) -> range:
    first = max(one.start, other.start)
    return range(first, max(first, min(one.stop, other.stop)))


def share(size: int, parts: int, number: int) -> range:
    """Part `number` of `size` positions in a row, cut as evenly as can be, the larger parts first."""
    each, more = divmod(size, parts)
    first = number * each + min(number, more)
    return range(first, first + each + (number < more))


class Grid(NamedTuple):
    """gy x gx workers, numbered row by row: neighbours in a row are likely to share a node."""

    gy: int
    gx: int

    @classmethod
    def of(cls, workers: int) -> "Grid":
        """Grid as square as the number allows, never higher than wide."""
        gy = max(d for d in range(1, math.isqrt(workers) + 1) if workers % d == 0)
        return cls(gy, workers // gy)

    @property
    def workers(self) -> int:
        return self.gy * self.gx

    def own(self, size: Sequence[int], worker: int) -> Rectangle:
        """The rectangle of a map (height, width) that a worker owns."""
        row, col = divmod(worker, self.gx)
        return Rectangle(share(size[0], self.gy, row), share(size[1], self.gx, col))

    def needed_inputs(self, layer: Tileable, worker: int) -> Rectangle:
        """The inputs under the windows of the outputs that a worker owns, cut at the borders of the map."""
        own = self.own(layer.output_shape[1:], worker)
        return field(layer.receptive_field, own, layer.input_shape[1:])

    def halos(self, layer: Tileable) -> Pairs:
        """(from, to): inputs of a layer that `to` needs and `from` owns."""
        size = layer.input_shape[1:]
        owned = [self.own(size, worker) for worker in range(self.workers)]
        needed = [self.needed_inputs(layer, worker) for worker in range(self.workers)]
        return _pairs((giver, taker, owned[giver].common(needed[taker]).area) for giver, taker in self._others())

    def gathering(self, size: Sequence[int]) -> Pairs:
        """(from, to): what `from` owns of a map that every worker wants whole."""
        return _pairs((giver, taker, self.own(size, giver).area) for giver, taker in self._others())

    def _others(self) -> Iterator[tuple[int, int]]:
        everyone = range(self.workers)
        return ((giver, taker) for giver in everyone for taker in everyone if giver != taker)


def _pairs(areas: Iterable[tuple[int, int, int]]) -> Pairs:
    return {(giver, taker): area for giver, taker, area in areas if area}


def field(receptive_field: ReceptiveField, outputs: Rectangle, size: Sequence[int]) -> Rectangle:
    """The inputs under the windows of output positions, cut at the borders of a map (height, width)."""
    rows, cols = (_inputs(receptive_field, axis, side) for axis, side in zip(outputs, size, strict=True))
    return Rectangle(rows, cols)


def _inputs(window: ReceptiveField, outputs: range, available: int) -> range:
    first = outputs.start * window.stride - window.before
    last = (outputs.stop - 1) * window.stride - window.before + window.size
    return range(max(0, first), min(available, last))


def interior(receptive_field: ReceptiveField, outputs: Rectangle, own: Rectangle, size: Sequence[int]) -> Rectangle:
    """Those of `outputs` whose windows lie in the own part of a map (height, width)."""
    rows, cols = (
        _inside(receptive_field, axis, mine, side) for axis, mine, side in zip(outputs, own, size, strict=True)
    )
    return Rectangle(rows, cols) if rows and cols else Rectangle(range(0), range(0))


def _inside(window: ReceptiveField, outputs: range, own: range, available: int) -> range:
    inner = [o for o in outputs if _common(_inputs(window, range(o, o + 1), available), own)
             == _inputs(window, range(o, o + 1), available)]  # fmt: skip
    return range(inner[0], inner[-1] + 1) if inner else range(outputs.start, outputs.start)


def transfer(what: str, phase: Phase, pairs: Pairs, position_bytes: float, placement: Placement) -> Transfer:
    """Messages between pairs of workers.

    Args:
        position_bytes: of one position: channels * batch * bytes of a value.
    """
    taken: dict[int, list[Send]] = {}
    for (giver, taker), area in pairs.items():
        taken.setdefault(giver, []).append(Send(taker, area * position_bytes))
    return placement.transfer(
        what, phase, lambda rank: taken.get(rank, []), pattern="pairs", overlaps=(phase,), needed_by=phase
    )
