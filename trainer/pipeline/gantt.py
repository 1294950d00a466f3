"""The schedule as a picture: a row for each worker, a bar for each visit, a colour for each trial."""

from collections.abc import Sequence
from typing import Protocol

from PIL import Image, ImageDraw, ImageFont

_COLOURS = (
    (31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189), (140, 86, 75), (227, 119, 194),
    (127, 127, 127), (188, 189, 34), (23, 190, 207),
)  # fmt: skip
_MARGIN, _ROW, _FOOT, _WIDTH = 70, 34, 44, 1200
_LABELLED = 16
"""Pixels; a narrower bar has no number."""


class Bar(Protocol):
    """A visit: `trial` on `worker`, from `began` for `seconds`."""

    @property
    def trial(self) -> int: ...
    @property
    def worker(self) -> int: ...
    @property
    def began(self) -> float: ...
    @property
    def seconds(self) -> float: ...


def gantt(visits: Sequence[Bar], workers: int, names: Sequence[str], caption: str) -> Image.Image:
    """White is idle.

    Args:
        names: of the trials, by their number.
        caption: the line below.
    """
    first = min((visit.began for visit in visits), default=0.0)
    last = max((visit.began + visit.seconds for visit in visits), default=1.0)
    scale = (_WIDTH - _MARGIN - 10) / max(1e-9, last - first)
    image = Image.new("RGB", (_WIDTH, workers * _ROW + _FOOT + 10), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default()
    for visit in visits:
        left, top = _MARGIN + (visit.began - first) * scale, 10 + visit.worker * _ROW
        right = max(left + 1, left + visit.seconds * scale - 1)
        draw.rectangle((left, top, right, top + _ROW - 6), fill=_COLOURS[visit.trial % len(_COLOURS)])
        if right - left >= _LABELLED:
            middle = ((left + right) / 2, top + _ROW / 2 - 3)
            draw.text(middle, names[visit.trial], fill="white", font=font, anchor="mm")
    for worker in range(workers):
        draw.text((8, 10 + worker * _ROW + _ROW / 2 - 3), f"worker {worker}", fill="black", font=font, anchor="lm")
    draw.text((_MARGIN, workers * _ROW + 22), "0 s", fill="black", font=font, anchor="lm")
    draw.text((_WIDTH - 10, workers * _ROW + 22), f"{last - first:.1f} s", fill="black", font=font, anchor="rm")
    draw.text((_WIDTH / 2, workers * _ROW + _FOOT - 6), caption, fill="black", font=font, anchor="mm")
    return image
