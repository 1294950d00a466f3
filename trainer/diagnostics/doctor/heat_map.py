"""Heat map of links: a row for each sender, a column for each receiver, slow ones dark."""

import math

from PIL import Image, ImageDraw, ImageFont

from .results import Result

_COLOURS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""Colours from slow to fast; distinguishable in grey and by the colour-blind."""
_NARROWEST = 4.0
"""Minimum ratio of the colour scale, so that nearly equal links look alike."""
_NOT_MEASURED = (225, 225, 225)
_MARGIN, _FOOT = 44, 46
_LARGEST = 960


def heat_map(result: Result) -> Image.Image:
    """One cell for each direction between two workers, coloured by the logarithm of its GB/s."""
    count = len(result.workers)
    cell = max(6, min(64, _LARGEST // count))
    width = max(_MARGIN + count * cell + 10, 300)
    image = Image.new("RGB", (width, _MARGIN + count * cell + _FOOT), "white")
    draw = ImageDraw.Draw(image)
    rates = {(link.source, link.target): link.best_gb_s for link in result.links}
    slowest, most = min(rates.values(), default=1.0), max(rates.values(), default=1.0)
    least = min(slowest, most / _NARROWEST)
    for row in range(count):
        for column in range(count):
            rate = rates.get((row, column))
            left, top = _MARGIN + column * cell, _MARGIN + row * cell
            colour = _NOT_MEASURED if rate is None else _colour(rate, least, most)
            draw.rectangle((left, top, left + cell - 2, top + cell - 2), fill=colour)
            if rate is not None and cell >= 40:
                dark = sum(colour) < 380
                _text(draw, left + cell // 2, top + cell // 2, f"{rate:.3g}", "white" if dark else "black")
    _axes(draw, result, cell)
    _text(draw, width // 2, image.height - 30, f"GB/s from the row's rank to the column's: {slowest:.3g} to {most:.3g}")
    _text(draw, width // 2, image.height - 14, "dark is slow, grey was not measured, lines separate nodes")
    return image


def _axes(draw: ImageDraw.ImageDraw, result: Result, cell: int) -> None:
    end = _MARGIN + len(result.workers) * cell
    every = max(1, math.ceil(18 / cell))
    for worker in result.workers:
        middle = _MARGIN + worker.rank * cell + cell // 2
        if worker.rank % every == 0:
            _text(draw, middle, _MARGIN - 12, str(worker.rank))
            _text(draw, _MARGIN - 14, middle, str(worker.rank))
        if worker.local == 0 and worker.rank:
            at = _MARGIN + worker.rank * cell - 1
            draw.line((at, _MARGIN, at, end), fill="black")
            draw.line((_MARGIN, at, end, at), fill="black")


def _colour(rate: float, least: float, most: float) -> tuple[int, int, int]:
    share = math.log(rate / least) / math.log(most / least)
    at = share * (len(_COLOURS) - 1)
    low = min(int(at), len(_COLOURS) - 2)
    red, green, blue = (round(a + (b - a) * (at - low)) for a, b in zip(_COLOURS[low], _COLOURS[low + 1], strict=True))
    return red, green, blue


def _text(draw: ImageDraw.ImageDraw, x: int, y: int, text: str, fill: str = "black") -> None:
    draw.text((x, y), text, fill=fill, font=ImageFont.load_default(), anchor="mm")
