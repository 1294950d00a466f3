"""Picture of a grid of workers: who owns what of each map, and what one of them needs of the others."""

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from ...core.protocols import Tileable
from ...diagnostics.pictures.palette import colour_of
from ...diagnostics.pictures.tiles import sheet, tile
from .grid import Grid

_PALE = 0.75
"""Share of white in positions that the shown worker does not need."""
_DARK = 0.6
"""Brightness of its own."""
_SIDE = 240
_MOST = 6
"""Layers drawn."""


def tiling_picture(grid: Grid, layers: Sequence[tuple[str, Tileable]]) -> Image.Image:
    """The input maps of layers, a colour for each owner: full where the worker in the middle of the grid needs it.

    Args:
        layers: with their names.
    """
    shown = grid.gy // 2 * grid.gx + grid.gx // 2
    tiles: list[Image.Image] = []
    captions: list[list[str]] = []
    for name, layer in layers[:_MOST]:
        channels, *size = layer.input_shape
        others = {giver: area for (giver, taker), area in grid.halos(layer).items() if taker == shown}
        tiles.append(tile(_map(grid, layer, shown), _SIDE))
        owned = " x ".join(str(side) for side in grid.own(size, shown).shape)
        captions.append([
            name, f"{channels} x {size[0]} x {size[1]}, of which it owns {owned}",
            f"needs {sum(others.values())} positions of {len(others)} others",
        ])  # fmt: skip
    title = f"{grid.gy} x {grid.gx} workers, a colour for each; dark: worker {shown}'s own, full: its halo"
    return sheet(tiles, captions, title, columns=min(3, len(tiles)))


def _map(grid: Grid, layer: Tileable, shown: int) -> Tensor:
    """A layer's input map, uint8 (3, height, width)."""
    size = layer.input_shape[1:]
    colours = torch.zeros(*size, 3)
    for worker in range(grid.workers):
        rows, cols = grid.own(size, worker)
        colour = torch.tensor(colour_of(worker)).float()
        colours[rows.start : rows.stop, cols.start : cols.stop] = colour
    needed, own = grid.needed_inputs(layer, shown), grid.own(size, shown)
    made = colours + _PALE * (255 - colours)
    for area, share in ((needed, 1.0), (own, _DARK)):
        part = (slice(area.rows.start, area.rows.stop), slice(area.cols.start, area.cols.stop))
        made[part] = share * colours[part]
    return made.round().to(torch.uint8).permute(2, 0, 1)
