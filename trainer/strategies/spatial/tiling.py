"""A part of a model divided over a grid of workers: its layers replaced by their tiles, halos moved between them."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ...core.keyed.dropout import KeyedDropout
from ...core.protocols import Tileable, Transposed
from ...core.sync_batchnorm import GlobalBatchNorm
from ...core.torch_compat import NormBase
from .grid import Grid, Rectangle, field, interior
from .halo_exchange import Entered, Fetching, Gathered, Halo, HaloChannel, Returning, SummedOverWorkers

_BY_POSITION = (
    nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish,
    nn.Hardsigmoid, nn.Hardtanh, nn.Hardshrink, nn.Sigmoid, nn.LogSigmoid, nn.Softplus, nn.Softshrink, nn.Softsign,
    nn.Tanh, nn.Tanhshrink, nn.Threshold,
)  # fmt: skip


def is_tileable(module: Any) -> bool:
    return hasattr(module, "receptive_field") and hasattr(module, "tile") and hasattr(module, "at")


class Region:
    """A part of a model whose maps are spread over the workers: whole maps go in, whole maps or sums come out.

    Args:
        module: the part. Its layers are replaced by tiles, or get hooks; names and parameters' names stay.
        name: for messages.
        first_tag: of this region's messages.

    Raises:
        ValueError: a layer that cannot be divided, or a map with fewer rows or columns than the grid.
    """

    def __init__(self, module: nn.Module, name: str, grid: Grid, rank: int, link: HaloChannel, first_tag: int):
        self.module, self.name, self.grid, self.rank, self.link = module, name, grid, rank, link
        self.next_tag = first_tag
        self.tiles: list[Any] = []
        self.map = (0, 0)
        """Height and width of the newest map that was computed."""
        self._whole: Tensor | None = None
        self._entry: Tensor | None = None
        self._gathering: dict[tuple[int, int], Halo] = {}
        self._refuse()
        self._divide()
        module.register_forward_pre_hook(self._enter)
        module.register_forward_hook(self._leave)

    def _refuse(self) -> None:
        for name, child in self.module.named_modules(prefix=self.name):
            kind = type(child).__name__
            if is_tileable(child):
                self._refuse_small(f"{name} ({kind})", child)
            elif isinstance(child, NormBase) and not isinstance(child, (GlobalBatchNorm, nn.SyncBatchNorm)):
                raise ValueError(
                    f"{name} ({kind}) would normalize by the positions of one worker alone: "
                    "trainer.sync_batchnorm=true normalizes by those of all workers"
                )
            elif not self._divisible(child):
                raise ValueError(
                    f"{name} ({kind}) cannot be divided by position: it declares neither receptive_field and tile, nor "
                    "transposes, sums_positions or position_wise"
                )

    @staticmethod
    def _divisible(child: nn.Module) -> bool:
        known = (KeyedDropout, GlobalBatchNorm, nn.SyncBatchNorm, *_BY_POSITION)
        declared = any(hasattr(child, name) for name in ("transposes", "sums_positions", "position_wise"))
        return isinstance(child, known) or declared or any(True for _ in child.children())

    def _refuse_small(self, name: str, layer: Any) -> None:
        for what, shape in (("input", layer.input_shape), ("output", layer.output_shape)):
            if shape[1] < self.grid.gy or shape[2] < self.grid.gx:
                raise ValueError(
                    f"strategy.grid=[{self.grid.gy}, {self.grid.gx}] is finer than the {what} map of {name}, "
                    f"{shape[1]} x {shape[2]}: some workers would own nothing of it"
                )

    def _divide(self) -> None:
        made: dict[int, tuple[Any, TileForward]] = {}
        for name, child in list(self.module.named_modules()):
            if is_tileable(child):
                own = self.grid.own(child.output_shape[1:], self.rank)  # pyright: ignore[reportArgumentType, reportIndexIssue]
                layer: Any = child.tile(*own)  # pyright: ignore[reportCallIssue]
                forward = TileForward(layer, self, f"{self.name}.{name}" if name else self.name)
                layer.forward = forward
                made[id(child)] = layer, forward
                self.tiles.append(layer)
                self._replace(name, layer)
        for module in self.module.modules():
            of = getattr(module, "transposes", None)
            if of is not None:
                layer, forward = made[id(of[0])]
                module.transposes = (layer,)  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
                module.forward = TransposedForward(module, forward)
            elif getattr(module, "sums_positions", False):
                module.register_forward_hook(self._total)
            elif isinstance(module, KeyedDropout):
                module.register_forward_pre_hook(self._place)

    def _replace(self, name: str, layer: nn.Module) -> None:
        if not name:
            self.module = layer
            return
        parent, _, own = name.rpartition(".")
        setattr(self.module.get_submodule(parent), own, layer)

    def halo(self, what: str, own: Rectangle, region: Rectangle, layer: Tileable) -> Halo:
        """What this worker fetches for a layer, and who else fetches what of it."""
        grid, me = self.grid, self.rank
        pairs = grid.halos(layer)
        size = layer.input_shape[1:]
        gives = {taker: own.common(grid.needed_inputs(layer, taker)) for giver, taker in pairs if giver == me}
        takes = {giver: region.common(grid.own(size, giver)) for giver, taker in pairs if taker == me}
        self.next_tag += 2
        return Halo(self.link, what, own, region, gives, takes, pairs, self.next_tag - 2)

    def _gather_halo(self, size: tuple[int, int]) -> Halo:
        if size not in self._gathering:
            grid, me = self.grid, self.rank
            own = grid.own(size, me)
            others = [worker for worker in range(grid.workers) if worker != me]
            gives = dict.fromkeys(others, own)
            takes = {worker: grid.own(size, worker) for worker in others}
            whole = Rectangle(range(size[0]), range(size[1]))
            halo = Halo(
                self.link, f"{self.name}: maps gathered", own, whole, gives, takes, grid.gathering(size), self.next_tag
            )
            self.next_tag += 2
            self._gathering[size] = halo
        return self._gathering[size]

    def _enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Cuts the own part out of the whole map that every worker has."""
        whole = inputs[0]
        if not isinstance(whole, Tensor) or whole.ndim != 4:
            raise ValueError(f"{self.name} must be given a map (batch, channels, height, width) first")
        if whole.requires_grad:
            whole = Entered.apply(whole, self.link)
            assert isinstance(whole, Tensor)
        self.map = (whole.shape[2], whole.shape[3])
        everything = Rectangle(range(self.map[0]), range(self.map[1]))
        self._whole = whole
        self._entry = whole[self.grid.own(self.map, self.rank).within(everything)]
        return (self._entry, *inputs[1:])

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        """Puts maps together again; sums are the same everywhere already."""
        self._whole = self._entry = None
        result = self._gather(output)
        self.link.drain()
        return result

    def _gather(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.ndim == 4:
            self.check(value, self.map, f"the output of {self.name}")
            return Gathered.apply(value, self._gather_halo(self.map))
        if isinstance(value, dict):
            return {key: self._gather(item) for key, item in value.items()}
        if isinstance(value, (tuple, list)):
            return type(value)(self._gather(item) for item in value)
        return value

    def _total(self, module: nn.Module, inputs: Any, output: Tensor) -> Any:
        return SummedOverWorkers.apply(output, self.link)

    def _place(self, dropout: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Tells a dropout layer which part of the map it works on."""
        assert isinstance(dropout, KeyedDropout)
        own = self.check(inputs[0], self.map, f"a dropout layer in {self.name}")
        places = [(axis.start, side) for axis, side in zip(own, self.map, strict=True)]
        dropout.region = [(0, inputs[0].shape[1]), *places]

    def check(self, x: Tensor, size: tuple[int, int], what: str) -> Rectangle:
        """
        Returns:
            The own part of a map of this size.

        Raises:
            ValueError: the tensor is not it.
        """
        own = self.grid.own(size, self.rank)
        if x.ndim != 4 or x.shape[2:] != own.shape:
            raise ValueError(
                f"{what} is {list(x.shape)}; worker {self.rank} owns {own.shape[0]} x {own.shape[1]} positions "
                f"of a map of {size[0]} x {size[1]}"
            )
        return own

    def whole_of(self, x: Tensor) -> Tensor | None:
        """The whole map, where x is the own part that the region was entered with: its halo costs nothing."""
        return self._whole if x is self._entry else None


class TileForward:
    """The forward of a tile: own part of the input map in, own part of the output map out."""

    def __init__(self, layer: Any, region: Region, name: str):
        self.layer, self.region, self.name = layer, region, name
        self.input_size = (layer.input_shape[1], layer.input_shape[2])
        self.output_size = (layer.output_shape[1], layer.output_shape[2])
        self.out = region.grid.own(self.output_size, region.rank)
        self.own = region.grid.own(self.input_size, region.rank)
        self.halo = region.halo(f"{name}: halo", self.own, self._field(self.out), layer)
        self.inner = interior(layer.receptive_field, self.out, self.own, self.input_size)

    def _field(self, outputs: Rectangle) -> Rectangle:
        return field(self.layer.receptive_field, outputs, self.input_size)

    def parameters(self) -> dict[str, Tensor]:
        return {name: getattr(self.layer, name) for name in self.layer.positional}

    def parts(self) -> Iterator[tuple[Rectangle, dict[str, Tensor]]]:
        """The inner part, then the border's, with their weights.

        Weights are split, not sliced: in backward a split's parts are put together once, where each slice would give a
        gradient of the whole tile's size.
        """
        (rows, cols), (inner_rows, inner_cols) = self.out, self.inner
        if not self.inner.area:
            yield self.out, self.parameters()
            return
        down = [inner_rows.start - rows.start, len(inner_rows), rows.stop - inner_rows.stop]
        across = [inner_cols.start - cols.start, len(inner_cols), cols.stop - inner_cols.stop]
        split = {name: weight.split(down, 0) for name, weight in self.parameters().items()}
        middle = {name: parts[1].split(across, 1) for name, parts in split.items()}
        yield self.inner, {name: parts[1] for name, parts in middle.items()}
        yield Rectangle(range(rows.start, inner_rows.start), cols), {name: parts[0] for name, parts in split.items()}
        yield Rectangle(inner_rows, range(cols.start, inner_cols.start)), {n: p[0] for n, p in middle.items()}
        yield Rectangle(inner_rows, range(inner_cols.stop, cols.stop)), {n: p[2] for n, p in middle.items()}
        yield Rectangle(range(inner_rows.stop, rows.stop), cols), {name: parts[2] for name, parts in split.items()}

    def __call__(self, x: Tensor) -> Tensor:
        self.region.check(x, self.input_size, f"the input of {self.name}")
        whole = self.region.whole_of(x)
        if whole is not None:
            everything = Rectangle(*(range(side) for side in self.input_size))
            region = whole[self.halo.region.within(everything)]
            y = self.layer.at(region, *self.out, **self.parameters())
        elif not self.halo.pairs:
            y = self.layer.at(x[self.halo.region.within(self.own)], *self.out, **self.parameters())
        else:
            y = self._fetching(x)
        self.region.map = self.output_size
        return y

    def _fetching(self, x: Tensor) -> Tensor:
        use = Fetching(self.halo)
        own, region = use.start(x), None
        done: dict[Rectangle, Tensor] = {}
        for part, weights in self.parts():
            if part is self.inner:
                done[part] = self.layer.at(own[self._field(part).within(self.own)], *part, **weights)
            elif part.area:
                region = use.finish(own) if region is None else region
                done[part] = self.layer.at(region[self._field(part).within(self.halo.region)], *part, **weights)
        return self._assemble(done)

    def _assemble(self, parts: dict[Rectangle, Tensor]) -> Tensor:
        """Top, middle and bottom strip, the middle one of left, inner and right part."""
        strips: dict[range, list[Rectangle]] = {}
        for part in parts:
            strips.setdefault(part.rows, []).append(part)
        rows: list[Tensor] = []
        for strip in sorted(strips, key=lambda rows: rows.start):
            pieces = [parts[part] for part in sorted(strips[strip], key=lambda part: part.cols.start)]
            rows.append(torch.cat(pieces, 3) if len(pieces) > 1 else pieces[0])
        return torch.cat(rows, 2) if len(rows) > 1 else rows[0]


class TransposedForward:
    """The forward of a layer that goes back from a tile's output map to its input map: halos travel the other way."""

    def __init__(self, layer: Any, of: TileForward):
        self.layer: Transposed = layer
        self.of = of
        region = of.region
        self.halo = region.halo(f"{of.name}: contributions of the transposed", of.own, of.halo.region, of.layer)

    def __call__(self, y: Tensor) -> Tensor:
        of = self.of
        of.region.check(y, of.output_size, f"the input of the transposed {of.name}")
        parts = [(part, weights) for part, weights in of.parts() if part.area]
        border = [(part, weights) for part, weights in parts if part is not of.inner]
        use = Returning(self.halo)
        region = self._spread(y, border, self.halo.region)
        own = use.start(region)
        inner = [(part, weights) for part, weights in parts if part is of.inner]
        if inner:
            own = own + self._spread(y, inner, of.own)
        of.region.map = of.input_size
        return use.finish(own)

    def _spread(self, y: Tensor, parts: list[tuple[Rectangle, dict[str, Tensor]]], onto: Rectangle) -> Tensor:
        """What some positions contribute, on a rectangle of the input map."""
        of = self.of
        result: Tensor | None = None
        for part, weights in parts:
            piece = self.layer.at(y[part.within(of.out)], *part, **weights)
            if result is None:
                result = piece.new_zeros(*piece.shape[:2], *onto.shape)
            result[field(of.layer.receptive_field, part, of.input_size).within(onto)] += piece
        if result is None:
            return y.new_zeros(len(y), of.layer.input_shape[0], *onto.shape)
        return result


def materialize(model: nn.Module, device: torch.device) -> None:
    """Real parameters and buffers for what is on the meta device: the same on every worker, and as on one device.

    A module with `initialize()` sets its own and those of its children there; norm layers draw nothing, and need none.

    Raises:
        ValueError: something on the meta device that nothing would set.
    """
    setters: list[nn.Module] = []
    covered: set[int] = set()
    for name, module in model.named_modules():
        if not _meta(module, recurse=True) or id(module) in covered:
            continue
        setter = hasattr(module, "initialize") or isinstance(module, (NormBase, nn.GroupNorm, nn.LayerNorm))
        if setter:
            setters.append(module)
            covered.update(id(child) for child in module.modules())
        elif _meta(module, recurse=False):
            raise ValueError(
                f"{name} ({type(module).__name__}) was built without memory, and nothing says how it starts: "
                "the model needs a method initialize() that sets what is not divided, from its seed"
            )
    _fill(model, setters, device)


def _fill(model: nn.Module, setters: list[nn.Module], device: torch.device) -> None:
    """Gives memory to what is on the meta device, and has it set in the default precision, as on one device."""
    wanted: list[tuple[Tensor, torch.dtype]] = []
    for module in model.modules():
        if not _meta(module, recurse=False):
            continue
        module.to_empty(device=device, recurse=False)
        for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
            if tensor.is_floating_point():
                wanted.append((tensor, tensor.dtype))
                tensor.data = tensor.data.to(torch.get_default_dtype())
    for module in setters:
        for norm in module.modules():
            if isinstance(norm, (NormBase, nn.GroupNorm, nn.LayerNorm)):
                norm.reset_parameters()
        if hasattr(module, "initialize"):
            module.initialize()  # pyright: ignore[reportCallIssue]
    for tensor, dtype in wanted:
        tensor.data = tensor.data.to(dtype)


def _meta(module: nn.Module, recurse: bool) -> bool:
    tensors = [*module.parameters(recurse), *module.buffers(recurse)]
    return any(tensor.is_meta for tensor in tensors)
