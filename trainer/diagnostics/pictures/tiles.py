"""Tiles in a grid, with captions and a title."""

from collections.abc import Sequence
from math import ceil

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

GAP = 8
_LINE = 15
_FONT = 12


def tile(image: Tensor, side: int) -> Image.Image:
    """An image, uint8 (1 or 3, height, width), enlarged or reduced so that its longer side has `side` pixels."""
    picture = Image.fromarray(image.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())
    scale = side / max(picture.size)
    kind = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BILINEAR
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, kind)


def sheet(
    tiles: Sequence[Image.Image],
    captions: Sequence[Sequence[str]] = (),
    title: str = "",
    columns: int | None = None,
    gap: int = GAP,
) -> Image.Image:
    """Tiles row by row, under each the lines of its caption, the first black and the others grey.

    Args:
        columns: tiles in a row; None: about as many as there are rows.
        title: above all of them.
    """
    columns = max(1, ceil(len(tiles) ** 0.5)) if columns is None else columns
    lines = max((len(caption) for caption in captions), default=0)
    width, height = max(t.width for t in tiles), max(t.height for t in tiles)
    step = (width + gap, height + gap + (_LINE * lines + 4 if lines else 0))
    font, above = ImageFont.load_default(_FONT), _LINE + gap if title else 0
    least = round(font.getlength(title)) + 2 * gap
    size = (max(columns * step[0] + gap, least), above + ceil(len(tiles) / columns) * step[1] + gap)
    picture = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(picture)
    draw.text((gap, gap), title, fill="black", font=font)
    for number, each in enumerate(tiles):
        left, top = number % columns * step[0] + gap, above + number // columns * step[1] + gap
        picture.paste(each, (left, top))
        for line, text in enumerate(captions[number] if number < len(captions) else ()):
            at, colour = (left, top + height + 2 + _LINE * line), "grey" if line else "black"
            draw.text(at, fitting(text, font, width), fill=colour, font=font)
    return picture


def fitting(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    """The text, its beginning left out where it is wider than `width` pixels, without what cannot be printed."""
    shown = "".join(char if char.isprintable() else "?" for char in text)
    shown = shown.encode("utf-8", "replace").decode("utf-8")
    while font.getlength(shown) > width and len(shown) > 2:
        shown = "…" + shown[2:]
    return shown
