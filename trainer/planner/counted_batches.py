"""Work and memory of a step for any batch, from those of a few that were counted. No torch."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import fields

from .quantities import Cost, LayerWork, PeakMemory, StepWork

Counted = tuple[StepWork, PeakMemory]


class CountedBatches:
    """A step's work and memory by its batch, straight lines between the batches that were counted and beyond.

    FLOP and bytes are affine in the batch. The peak of memory is the largest of the moments of a step, each affine, so
    that between two counted batches a line is exact or a little too high, and beyond the largest it is exact where
    activations are what the peak holds.

    Args:
        counted: by batch; at least two batches.
    """

    def __init__(self, counted: Mapping[int, Counted]):
        assert len(counted) > 1, "a line needs two batches"
        self.counted = dict(sorted(counted.items()))

    def work(self, batch: int) -> StepWork:
        """Work of a step of `batch` samples of one device."""
        if batch in self.counted:
            return self.counted[batch][0]
        low, high = (self.counted[each][0] for each in self._around(batch))
        part = (batch - low.batch) / (high.batch - low.batch)
        if [layer.name for layer in low.layers] != [layer.name for layer in high.layers]:
            raise ValueError(f"the network computes other layers with {high.batch} samples than with {low.batch}")
        layers = [
            LayerWork(a.name, _between(a.forward, b.forward, part), _between(a.backward, b.backward, part),
                      a.gradient_elements)
            for a, b in zip(low.layers, high.layers, strict=True)
        ]  # fmt: skip
        return StepWork(batch, tuple(layers), _between(low.update, high.update, part))

    def memory(self, batch: int) -> PeakMemory:
        """Memory of a step of `batch` samples of one device."""
        if batch in self.counted:
            return self.counted[batch][1]
        first, second = self._around(batch)
        low, high = self.counted[first][1], self.counted[second][1]
        part = (batch - first) / (second - first)
        kinds = {f.name: getattr(low, f.name) + part * (getattr(high, f.name) - getattr(low, f.name))
                 for f in fields(PeakMemory)}  # fmt: skip
        # below the smallest counted batch another moment may hold the most
        return PeakMemory(**{kind: max(0.0, size) for kind, size in kinds.items()})

    def largest_batch(self, room: float, reserve: float = 0.0) -> int:
        """The most samples whose step fits; 0 if not even one does.

        Args:
            room: bytes of the device.
            reserve: factor - 1 on the counted bytes, for what is not counted.
        """

        def fits(batch: int) -> bool:
            return self.memory(batch).total * (1.0 + reserve) <= room

        if not fits(1):
            return 0
        low, high = 1, 2
        while fits(high) and high < 1 << 30:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def _around(self, batch: int) -> tuple[int, int]:
        """Counted batches on both sides, or the nearest two."""
        known = list(self.counted)
        second = min(max(bisect_left(known, batch), 1), len(known) - 1)
        return known[second - 1], known[second]


def _between(low: Cost, high: Cost, part: float) -> Cost:
    return Cost(
        low.flop + part * (high.flop - low.flop), low.bytes + part * (high.bytes - low.bytes),
        high.kernels if part >= 0.5 else low.kernels,
    )  # fmt: skip
