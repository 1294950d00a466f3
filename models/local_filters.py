"""Locally connected layers, with separate weights at each position, that can be divided into tiles.

A layer computes its map by position, so any rectangle of output positions can be computed from the rectangle of the
input that its windows cover. `tile(rows, cols)` is the same layer for such a rectangle only, and holds the weights of
these positions alone; `strategy=spatial` assigns one to each worker. Maps are (batch, channels, height, width).
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .local_kernels import filter_positions, spread_positions

Shape = tuple[int, int, int]
"""Channels, height, width of a map."""


class Window(NamedTuple):
    """Window of an output position: on each axis the inputs [i * stride - before, i * stride - before + size)."""

    size: int
    stride: int = 1
    before: int = 0

    def inputs(self, outputs: range, available: int) -> range:
        """The inputs under the windows of a range of outputs, clipped to the map."""
        first = outputs.start * self.stride - self.before
        last = (outputs.stop - 1) * self.stride - self.before + self.size
        return range(max(0, first), min(available, last))


class Tiled(nn.Module):
    """A layer that computes the output positions rows x cols of a map: all, or those of a tile.

    Attributes:
        input_shape, output_shape: channels, height, width of the whole maps.
        receptive_field: window of an output position.
        rows, cols: computed output positions.
        positional: names of the parameters whose first two dimensions are rows and cols.
    """

    positional: tuple[str, ...] = ()

    def __init__(self, input_shape: Sequence[int], output_shape: Sequence[int], receptive_field: Window):
        super().__init__()
        self.input_shape: Shape = (input_shape[0], input_shape[1], input_shape[2])
        self.output_shape: Shape = (output_shape[0], output_shape[1], output_shape[2])
        self.receptive_field = receptive_field
        self.rows, self.cols = range(self.output_shape[1]), range(self.output_shape[2])

    def tile(self, rows: range, cols: range) -> Self:
        """The same layer for the output positions rows x cols only, with separate parameters."""
        raise NotImplementedError

    def at(self, x: Tensor, rows: range, cols: range, **positional: Tensor) -> Tensor:
        """Outputs at some of this object's positions.

        Args:
            x: the part of the input under their windows, clipped to the map.
            positional: the positional parameters of these positions.
        """
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Outputs at all positions of this object, from the part of the input under their windows."""
        return self.at(x, self.rows, self.cols, **{name: getattr(self, name) for name in self.positional})


class LocalFilters(Tiled):
    """Filters that positions do not share: y[m, r, c] = sum over window (r, c) of W[r, c, m] * x.

    Unlike in a convolution every output position (r, c) has separate filters (Le et al. 2012, Coates et al. 2013).
    Weight: (rows, cols, maps, channels * size * size). The weights of position (r, c) are drawn from (seed, layer, r,
    c) alone, normal with variance 1 / (channels * size * size), so a tile has bitwise the whole layer's weights. On the
    meta device nothing is drawn; `tile` of such a layer draws.

    Args:
        input_shape: channels, height, width.
        maps: filters at each position.
        size: pixels a side of the window.
        stride: pixels between two windows; windows lie inside the map ("valid").
        seed, layer: seed of the weights.
        unit_norm: filters are used as W / |W|, whatever the length of W.

    Raises:
        ValueError: the window is larger than the map.
    """

    positional = ("weight",)

    def __init__(
        self,
        input_shape: Sequence[int],
        maps: int,
        size: int,
        stride: int = 1,
        seed: int = 0,
        layer: int = 0,
        unit_norm: bool = False,
    ):
        height, width = (_valid(side, size, stride, "filters") for side in input_shape[1:])
        super().__init__(input_shape, (maps, height, width), Window(size, stride))
        self.unit_norm = unit_norm
        self.seed, self.layer = seed, layer
        self.weight = nn.Parameter(torch.empty(height, width, maps, input_shape[0] * size * size))
        self._draw()

    def _draw(self) -> None:
        """Weights of this object's positions, each from its own seed."""
        if self.weight.is_meta:
            return
        maps, inputs = self.weight.shape[2:]
        stream = torch.Generator()
        drawn = torch.empty(maps, inputs, dtype=torch.float32, device="cpu")
        with torch.no_grad():
            for i, row in enumerate(self.rows):
                for j, col in enumerate(self.cols):
                    stream.manual_seed(stream_of(self.seed, self.layer, row, col))
                    self.weight[i, j] = drawn.normal_(0.0, inputs**-0.5, generator=stream)

    def tile(self, rows: range, cols: range) -> Self:
        with torch.device("meta"):
            part = type(self)(
                self.input_shape, self.output_shape[0], self.receptive_field.size, self.receptive_field.stride,
                self.seed, self.layer, self.unit_norm,
            )  # fmt: skip
        part.rows, part.cols = rows, cols
        shape = (len(rows), len(cols), *self.weight.shape[2:])
        device = "cpu" if self.weight.is_meta else self.weight.device
        part.weight = nn.Parameter(torch.empty(shape, dtype=self.weight.dtype, device=device))
        part.weight.requires_grad_(self.weight.requires_grad)
        part.train(self.training)
        if self.weight.is_meta:
            part._draw()
        else:
            first = (rows.start - self.rows.start, cols.start - self.cols.start)
            held = self.weight.detach()[first[0] : first[0] + len(rows), first[1] : first[1] + len(cols)]
            part.weight.detach().copy_(held)
        return part

    def at(self, x: Tensor, rows: range, cols: range, **positional: Tensor) -> Tensor:
        window = self.receptive_field
        return filter_positions(x, positional["weight"], window.size, window.stride, self.unit_norm)

    def transposed_at(self, y: Tensor, weight: Tensor) -> Tensor:
        """Contributions of y to the inputs under its windows: W^T y."""
        window = self.receptive_field
        return spread_positions(y, weight, window.size, window.stride, self.unit_norm)

    def extra_repr(self) -> str:
        rows, cols, maps, _ = self.weight.shape
        return f"{rows} x {cols} positions, {maps} maps, {self.receptive_field}"


class TransposedFilters(nn.Module):
    """a W^T y with the weights of a LocalFilters layer: from its output map back to its input map.

    The scalar `a` starts at channels / (channels + maps), the least-squares value for random filters of unit norm: each
    input is covered by maps / channels as many windows as it has dimensions. As the sum over positions of a cost has a
    gradient in `a` that grows with the map, and in each filter one that does not, the step of `a` is taken on the mean
    over input values: one learning rate serves both, at any size of the map.

    Attributes:
        transposes: the layer whose weights are used, in a tuple: it is not this module's child.
    """

    def __init__(self, filters: LocalFilters):
        super().__init__()
        self.transposes = (filters,)
        self.scale = nn.Parameter(torch.empty(()))
        self.initialize()

    def initialize(self) -> None:
        channels, maps = self.transposes[0].input_shape[0], self.transposes[0].output_shape[0]
        nn.init.constant_(self.scale, channels / (channels + maps))

    def at(self, y: Tensor, rows: range, cols: range, **positional: Tensor) -> Tensor:
        """Contributions of the outputs at rows x cols to the part of the input map under their windows."""
        (filters,) = self.transposes
        share = 1.0 / prod(filters.input_shape)
        scale = self.scale * share + self.scale.detach() * (1.0 - share)
        return filters.transposed_at(y, positional["weight"]) * scale.to(y.dtype)

    def forward(self, y: Tensor) -> Tensor:
        (of,) = self.transposes
        spread = self.at(y, of.rows, of.cols, **{name: getattr(of, name) for name in of.positional})
        missing = [whole - part for whole, part in zip(of.input_shape[1:], spread.shape[2:], strict=True)]
        return F.pad(spread, (0, missing[1], 0, missing[0])) if any(missing) else spread


class L2Pool(Tiled):
    """p = sqrt(eps + sum of squares over a window), within each map (Le et al. 2012).

    Args:
        input_shape: channels, height, width.
        size: positions a side of the window.
        stride: positions between two windows.
        eps: keeps the gradient finite at zero.

    Raises:
        ValueError: the window is larger than the map.
    """

    def __init__(self, input_shape: Sequence[int], size: int = 5, stride: int = 1, eps: float = 1e-6):
        height, width = (_valid(side, size, stride, "pooling") for side in input_shape[1:])
        super().__init__(input_shape, (input_shape[0], height, width), Window(size, stride))
        self.eps = eps

    def tile(self, rows: range, cols: range) -> Self:
        return _restricted(
            type(self)(self.input_shape, self.receptive_field.size, self.receptive_field.stride, self.eps), rows, cols
        )

    def at(self, x: Tensor, rows: range, cols: range, **positional: Tensor) -> Tensor:
        size, stride = self.receptive_field.size, self.receptive_field.stride
        return torch.sqrt(F.avg_pool2d(x.square(), size, stride) * size**2 + self.eps)


class LocalContrastNorm(Tiled):
    """Subtractive, then divisive normalization by the neighbourhood of a position, over all maps (Le et al. 2012).

    v = x - sum_iuv G_uv x_i(r+u, c+v);  y = v / max(floor, sqrt(sum_iuv G_uv v_i(r+u, c+v)^2)), with G a Gaussian of
    standard deviation size / 4 whose weights add up to 1 over window and maps. At the border of the map the window is
    clipped and its weights scaled to add up to 1 again. The output has the size of the input.

    Args:
        input_shape: channels, height, width.
        size: positions a side of each of the two windows; odd.
        floor: smallest divisor.

    Raises:
        ValueError: an even size.
    """

    def __init__(self, input_shape: Sequence[int], size: int = 5, floor: float = 0.01):
        if size < 1 or size % 2 == 0:
            raise ValueError(f"lcn={size}: the window of local contrast normalization must have an odd size")
        super().__init__(input_shape, input_shape, Window(2 * size - 1, 1, size - 1))
        self.radius, self.floor = size // 2, floor

    def tile(self, rows: range, cols: range) -> Self:
        return _restricted(type(self)(self.input_shape, 2 * self.radius + 1, self.floor), rows, cols)

    def at(self, x: Tensor, rows: range, cols: range, **positional: Tensor) -> Tensor:
        height, width = self.input_shape[1:]
        once, twice = Window(2 * self.radius + 1, 1, self.radius), self.receptive_field
        outer = twice.inputs(rows, height), twice.inputs(cols, width)
        inner = once.inputs(rows, height), once.inputs(cols, width)
        centered = _crop(x, outer, inner) - self._around(x, outer, inner)
        spread = self._around(centered.square(), inner, (rows, cols))
        # clamped before the root, whose gradient at zero is infinite
        deviation = torch.sqrt(spread.clamp_min(self.floor**2))
        return _crop(centered, inner, (rows, cols)) / deviation

    def _around(self, x: Tensor, covered: tuple[range, range], wanted: tuple[range, range]) -> Tensor:
        """Weighted mean over window and maps: (batch, 1, rows, cols) at the wanted positions."""
        radius = self.radius
        # on the device: a copy from the host would wait for it in every step
        reach = torch.arange(-radius, radius + 1, dtype=torch.float64, device=x.device)
        weights = torch.exp(-0.5 * (reach / (0.25 * (2 * radius + 1))) ** 2)
        mean = x.mean(1, keepdim=True)
        # positions outside the map have weight zero
        before = [radius - (w.start - g.start) for w, g in zip(wanted, covered, strict=True)]
        after = [radius - (g.stop - w.stop) for w, g in zip(wanted, covered, strict=True)]
        mean = F.pad(mean, (before[1], after[1], before[0], after[0]))
        down, across = (
            _coverage(weights, positions, side) for positions, side in zip(wanted, self.input_shape[1:], strict=True)
        )
        weights = weights.to(mean.dtype)
        mean = F.conv2d(mean, weights.view(1, 1, -1, 1))
        mean = F.conv2d(mean, weights.view(1, 1, 1, -1))
        inside = (down[:, None] * across[None, :]).to(mean.dtype)
        return mean / inside


Layer = TypeVar("Layer", bound=Tiled)


class SumOverPositions(nn.Module):
    """Sums of each sample over all its maps and positions: k maps to (batch, k), in float32 at least."""

    sums_positions = True

    def forward(self, *maps: Tensor) -> Tensor:
        return torch.stack([m.flatten(1).sum(1, dtype=torch.promote_types(m.dtype, torch.float32)) for m in maps], 1)


def stream_of(*words: int) -> int:
    """63 well-mixed bits of integers, as a seed (SplitMix64's finalizer, Steele et al. 2014, chained)."""
    mask, state = (1 << 64) - 1, 0x9E3779B97F4A7C15
    for word in words:
        state = (state + 0x9E3779B97F4A7C15 + (word & mask)) & mask
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    return state >> 1


def _valid(side: int, size: int, stride: int, what: str) -> int:
    """Number of positions of a window inside a side."""
    if size < 1 or stride < 1 or size > side:
        raise ValueError(f"{what}: a window of {size} with stride {stride} does not fit into a map of {side} a side")
    return (side - size) // stride + 1


def _restricted(layer: Layer, rows: range, cols: range) -> Layer:
    layer.rows, layer.cols = rows, cols
    return layer


def _crop(x: Tensor, covered: tuple[range, range], wanted: tuple[range, range]) -> Tensor:
    (top, left) = (w.start - g.start for w, g in zip(wanted, covered, strict=True))
    return x[:, :, top : top + len(wanted[0]), left : left + len(wanted[1])]


def _coverage(weights: Tensor, positions: range, side: int) -> Tensor:
    """Sum of the weights that fall inside a map of this side, for windows around each position."""
    radius = len(weights) // 2
    device = weights.device
    centers = torch.arange(positions.start, positions.stop, device=device)
    reach = torch.arange(-radius, radius + 1, device=device) + centers[:, None]
    return (weights * ((reach >= 0) & (reach < side))).sum(1)
