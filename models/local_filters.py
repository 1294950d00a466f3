"""Layers whose neurons look at a window of a map, each place with weights of its own, and that can be cut into tiles.

A layer computes its map by position, so any rectangle of output positions can be computed from the rectangle of the
input that its windows cover. `tile(rows, cols)` is the same layer for such a rectangle only, and holds the weights of
these positions alone; `strategy=spatial` gives each worker one. Maps are (batch, channels, height, width).
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Shape = tuple[int, int, int]
"""Channels, height, width of a map."""


class Window(NamedTuple):
    """What an output position sees: on each axis the inputs [i * stride - before, i * stride - before + size)."""

    size: int
    stride: int = 1
    before: int = 0

    def inputs(self, outputs: range, available: int) -> range:
        """The inputs under the windows of a range of outputs, cut at the borders of the map."""
        first = outputs.start * self.stride - self.before
        last = (outputs.stop - 1) * self.stride - self.before + self.size
        return range(max(0, first), min(available, last))


class Tiled(nn.Module):
    """A layer that computes the output positions rows x cols of a map, all of them unless it is a tile.

    Attributes:
        input_shape, output_shape: channels, height, width of the whole maps.
        receptive_field: window of an output position.
        rows, cols: the output positions that this object computes.
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
        """The same layer for the output positions rows x cols only, with parameters of its own."""
        raise NotImplementedError

    def at(self, x: Tensor, rows: range, cols: range, **positional: Tensor) -> Tensor:
        """Some of this object's positions.

        Args:
            x: the part of the input that their windows cover, cut at the borders of the map.
            positional: the positional parameters of these positions.
        """
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """All positions of this object, from the part of the input that they cover (the whole, unless a tile)."""
        return self.at(x, self.rows, self.cols, **{name: getattr(self, name) for name in self.positional})


class LocalFilters(Tiled):
    """Filters that no two places share: y[m, r, c] = sum over window (r, c) of W[r, c, m] * x.

    Unlike in a convolution every output position (r, c) has filters of its own (Le et al. 2012, Coates et al. 2013).
    Weight: (rows, cols, maps, channels * size * size). The weights of position (r, c) are drawn from (seed, layer, r,
    c) alone, normal with variance 1 / (channels * size * size), so a tile has bitwise the whole layer's weights. On the
    meta device nothing is drawn; `tile` of such a layer draws.

    Args:
        input_shape: channels, height, width.
        maps: filters at each position.
        size: pixels a side of the window.
        stride: pixels between two windows; windows lie inside the map ("valid").
        seed, layer: what the weights are drawn from.
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
        """Weights of this object's positions, each from a stream of its own."""
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
        return _applied(_Filter, x, positional["weight"], window.size, window.stride, self.unit_norm)

    def transposed_at(self, y: Tensor, weight: Tensor) -> Tensor:
        """What the positions of y contribute to the inputs under their windows: W^T y."""
        window = self.receptive_field
        return _applied(_Spread, y, weight, window.size, window.stride, self.unit_norm)

    def extra_repr(self) -> str:
        rows, cols, maps, _ = self.weight.shape
        return f"{rows} x {cols} positions, {maps} maps, {self.receptive_field}"


class TransposedFilters(nn.Module):
    """a W^T y with the weights of a LocalFilters layer: from its output map back to its input map.

    The scalar `a` starts at channels / (channels + maps), the least-squares value for random filters of unit norm: each
    input lies in maps / channels as many windows as it has dimensions. As the sum over positions of a cost has a
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
        """What output positions rows x cols contribute to the part of the input map that their windows cover."""
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
    """Subtractive, then divisive normalization by what lies around a position, over all maps (Le et al. 2012).

    v = x - sum_iuv G_uv x_i(r+u, c+v);  y = v / max(floor, sqrt(sum_iuv G_uv v_i(r+u, c+v)^2)), with G a Gaussian of
    standard deviation size / 4 whose weights add up to 1 over window and maps. At the border of the map the window is
    cut and its weights scaled to add up to 1 again. The output has the size of the input.

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
        # below the floor the root is not used, and its gradient would be infinite at zero
        deviation = torch.sqrt(spread.clamp_min(self.floor**2))
        return _crop(centered, inner, (rows, cols)) / deviation

    def _around(self, x: Tensor, given: tuple[range, range], wanted: tuple[range, range]) -> Tensor:
        """Weighted mean over window and maps: (batch, 1, rows, cols) at the wanted positions."""
        radius = self.radius
        reach = torch.arange(-radius, radius + 1, dtype=torch.float64)
        weights = torch.exp(-0.5 * (reach / (0.25 * (2 * radius + 1))) ** 2)
        mean = x.mean(1, keepdim=True)
        # what the window reaches beyond the map counts nothing
        before = [radius - (w.start - g.start) for w, g in zip(wanted, given, strict=True)]
        after = [radius - (g.stop - w.stop) for w, g in zip(wanted, given, strict=True)]
        mean = F.pad(mean, (before[1], after[1], before[0], after[0]))
        down, across = (
            _coverage(weights, positions, side) for positions, side in zip(wanted, self.input_shape[1:], strict=True)
        )
        weights = weights.to(device=x.device, dtype=mean.dtype)
        mean = F.conv2d(mean, weights.view(1, 1, -1, 1))
        mean = F.conv2d(mean, weights.view(1, 1, 1, -1))
        inside = (down[:, None] * across[None, :]).to(device=x.device, dtype=mean.dtype)
        return mean / inside


Layer = TypeVar("Layer", bound=Tiled)


class SumOverPositions(nn.Module):
    """Sums of each sample over all its maps and positions: k maps to (batch, k), in float32 at least."""

    sums_positions = True

    def forward(self, *maps: Tensor) -> Tensor:
        return torch.stack([m.flatten(1).sum(1, dtype=torch.promote_types(m.dtype, torch.float32)) for m in maps], 1)


def stream_of(*words: int) -> int:
    """63 well-mixed bits of integers, to seed a stream with (SplitMix64's finalizer, Steele et al. 2014, chained)."""
    mask, state = (1 << 64) - 1, 0x9E3779B97F4A7C15
    for word in words:
        state = (state + 0x9E3779B97F4A7C15 + (word & mask)) & mask
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    return state >> 1


def _valid(side: int, size: int, stride: int, what: str) -> int:
    """Positions of a window that stays inside."""
    if size < 1 or stride < 1 or size > side:
        raise ValueError(f"{what}: a window of {size} with stride {stride} does not fit into a map of {side} a side")
    return (side - size) // stride + 1


def _restricted(layer: Layer, rows: range, cols: range) -> Layer:
    layer.rows, layer.cols = rows, cols
    return layer


def _crop(x: Tensor, given: tuple[range, range], wanted: tuple[range, range]) -> Tensor:
    (top, left) = (w.start - g.start for w, g in zip(wanted, given, strict=True))
    return x[:, :, top : top + len(wanted[0]), left : left + len(wanted[1])]


def _coverage(weights: Tensor, positions: range, side: int) -> Tensor:
    """Sum of the weights that fall inside a map of this side, for windows around each position."""
    radius = len(weights) // 2
    reach = torch.arange(-radius, radius + 1) + torch.arange(positions.start, positions.stop)[:, None]
    return (weights * ((reach >= 0) & (reach < side))).sum(1)


_BLOCK_VALUES = 2**24
"""Patches that are laid out at a time: 64 MB in float32, or one row of positions where that is more."""


def _applied(kernel: Any, x: Tensor, weight: Tensor, size: int, stride: int, unit_norm: bool) -> Tensor:
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    with torch.autocast(kind, enabled=False):
        return kernel.apply(x.to(dtype), weight, size, stride, unit_norm)


class _Filter(torch.autograd.Function):
    """y = W x. Patches are laid out again in backward, so that no more than a block of them exists at a time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, size: int, stride: int, unit_norm: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.setting = size, stride, unit_norm
        return _filtered(x, weight, *ctx.setting)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        dx = _spread(gradients[0], weight, *ctx.setting, sides=x.shape[2:]) if ctx.needs_input_grad[0] else None
        dw = _weight_gradient(gradients[0], x, weight, *ctx.setting) if ctx.needs_input_grad[1] else None
        return dx, dw, None, None, None


class _Spread(torch.autograd.Function):
    """x = W^T y, onto the inputs that the positions of y cover."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor, size: int, stride: int, unit_norm: bool) -> Tensor:
        ctx.save_for_backward(y, weight)
        ctx.setting = size, stride, unit_norm
        sides = [(positions - 1) * stride + size for positions in y.shape[2:]]
        return _spread(y, weight, *ctx.setting, sides=sides)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        y, weight = ctx.saved_tensors
        dy = _filtered(gradients[0], weight, *ctx.setting) if ctx.needs_input_grad[0] else None
        dw = _weight_gradient(y, gradients[0], weight, *ctx.setting) if ctx.needs_input_grad[1] else None
        return dy, dw, None, None, None


def _filtered(x: Tensor, weight: Tensor, size: int, stride: int, unit_norm: bool) -> Tensor:
    rows, cols, maps, _ = weight.shape
    y = x.new_empty(len(x), maps, rows, cols)
    for block in _blocks(weight, len(x)):
        filters, _ = _filters(weight[block], unit_norm)
        out = torch.bmm(_patches(x, block, size, stride), filters.to(x.dtype).transpose(1, 2))
        y[:, :, block] = out.view(-1, cols, len(x), maps).permute(2, 3, 0, 1)
    return y


def _spread(
    y: Tensor, weight: Tensor, size: int, stride: int, unit_norm: bool, sides: Sequence[int]
) -> Tensor:  # fmt: skip
    cols, channels = weight.shape[1], weight.shape[3] // size**2
    x = y.new_zeros(len(y), channels, *sides, dtype=torch.promote_types(y.dtype, torch.float32))
    width = (cols - 1) * stride + size
    for block in _blocks(weight, len(y)):
        filters, _ = _filters(weight[block], unit_norm)
        patches = torch.bmm(_by_position(y, block), filters.to(y.dtype))
        height = (block.stop - block.start - 1) * stride + size
        folded = F.fold(patches.permute(1, 2, 0).contiguous(), (height, width), size, stride=stride)
        top = block.start * stride
        x[:, :, top : top + height, :width] += folded
    return x.to(y.dtype)


def _weight_gradient(y: Tensor, x: Tensor, weight: Tensor, size: int, stride: int, unit_norm: bool) -> Tensor:
    """Gradient of y . W x in W (through W / |W|)."""
    gradient = torch.empty_like(weight, memory_format=torch.contiguous_format)
    for block in _blocks(weight, len(x)):
        part = torch.bmm(_by_position(y, block).transpose(1, 2), _patches(x, block, size, stride)).to(weight.dtype)
        if unit_norm:
            filters, length = _filters(weight[block], True)
            part = (part - filters * (filters * part).sum(-1, keepdim=True)) / length
        gradient[block] = part.view(gradient[block].shape)
    return gradient


def _blocks(weight: Tensor, batch: int) -> list[slice]:
    """Rows of positions whose patches are laid out at a time."""
    rows, cols, _, inputs = weight.shape
    step = max(1, _BLOCK_VALUES // max(1, cols * batch * inputs))
    return [slice(first, min(rows, first + step)) for first in range(0, rows, step)]


def _filters(weight: Tensor, unit_norm: bool) -> tuple[Tensor, Tensor]:
    """(positions, maps, inputs), of length one if asked for; and the lengths they had."""
    flat = weight.flatten(0, 1)
    if not unit_norm:
        return flat, flat
    length = torch.linalg.vector_norm(flat, dim=-1, keepdim=True).clamp_min(1e-12)
    return flat / length, length


def _patches(x: Tensor, block: slice, size: int, stride: int) -> Tensor:
    """(positions, batch, channels * size * size) under the windows of some rows."""
    top, height = block.start * stride, (block.stop - block.start - 1) * stride + size
    windows = x[:, :, top : top + height].unfold(2, size, stride).unfold(3, size, stride)
    batch, channels, rows, cols = windows.shape[:4]
    return windows.permute(2, 3, 0, 1, 4, 5).reshape(rows * cols, batch, channels * size * size)


def _by_position(y: Tensor, block: slice) -> Tensor:
    """(positions, batch, maps) of some rows."""
    return y[:, :, block].permute(2, 3, 0, 1).flatten(0, 1)
