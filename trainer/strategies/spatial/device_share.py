"""What a worker computes and holds of a network whose maps are tiled."""

from collections.abc import Iterator, Sequence

from torch import nn

from ...core.protocols import Tileable
from ...core.transfers import DeviceShare, DividedModule, ExtraMemory
from .grid import Grid
from .tiling import is_tileable


def path_of(module: nn.Module, name: str) -> str:
    """The path of a module that the model calls `name`.

    Raises:
        ValueError: there is none.
    """
    paths = [path for path, _ in module.named_modules() if path == name or path.endswith(f".{name}")]
    if not paths:
        raise ValueError(f"parallel.tiled names {name!r}, and the model has no such module")
    return min(paths, key=len)


def tiled_share(network: nn.Module, paths: Sequence[str], grid: Grid, samples: int, item_bytes: int) -> DeviceShare:
    """The whole batch, with the largest tile of each map; halos on top.

    Args:
        paths: of the tiled parts of the network.
        item_bytes: of one activation.
    """
    divided: list[DividedModule] = []
    halos = 0.0
    for path in paths:
        tiles = list(_tileable(network.get_submodule(path), path))
        parts = [_part(grid, layer.output_shape[1:]) for _, layer in tiles]
        divided.append(DividedModule(path, max(parts, default=1 / grid.workers), 1.0))
        for (name, layer), part in zip(tiles, parts, strict=True):
            # filters of their own at each position are computed in as many pieces as fit into memory
            divided.append(DividedModule(name, part, part, part))
            halos += samples * item_bytes * layer.input_shape[0] * _halo(grid, layer)
    return DeviceShare(samples, tuple(dict.fromkeys(divided)), extra=(ExtraMemory("halos", halos),))


def _tileable(part: nn.Module, path: str) -> Iterator[tuple[str, Tileable]]:
    for name, module in part.named_modules(prefix=path):
        if is_tileable(module):
            yield name, module  # pyright: ignore[reportReturnType]


def _part(grid: Grid, size: Sequence[int]) -> float:
    """Part of a map that the worker with the largest tile has."""
    return max(grid.own(size, worker).area for worker in range(grid.workers)) / (size[0] * size[1])


def _halo(grid: Grid, layer: Tileable) -> int:
    """Most positions of a layer's input that a worker needs and does not own."""
    size = layer.input_shape[1:]
    needed = [grid.needed_inputs(layer, worker) for worker in range(grid.workers)]
    own = [grid.own(size, worker) for worker in range(grid.workers)]
    return max(wanted.area - wanted.common(owned).area for wanted, owned in zip(needed, own, strict=True))
