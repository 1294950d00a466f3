"""Picture of an exchange: a row for each worker, a bar for each message with its partner, over time."""

from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from ...diagnostics.pictures.palette import colour_of

_WIDTH, _LEFT, _TOP, _ROW = 1000, 70, 34, 30
_LABELLED = 14
"""Pixels; a narrower bar has no number."""
_MOST = 32
"""Workers drawn."""


class Message(NamedTuple):
    """Ranges that were exchanged with a peer."""

    began: float
    """Seconds since the epoch, by this worker's clock."""
    ended: float
    peer: int
    sent: int
    """Bytes."""


def exchange_picture(workers: Sequence[Sequence[Message]]) -> Image.Image:
    """Who exchanged with whom, and when.

    Args:
        workers: messages of one exchange by each.
    """
    drawn = workers[:_MOST]
    began = min(message.began for messages in drawn for message in messages)
    ended = max(message.ended for messages in drawn for message in messages)
    scale = (_WIDTH - _LEFT - 10) / max(ended - began, 1e-9)
    bottom = _TOP + len(drawn) * _ROW
    image = Image.new("RGB", (_WIDTH, bottom + 24), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(12)
    sent = sum(message.sent for messages in workers for message in messages) / len(workers)
    title = f"one step's exchange: {sent / 1e6:.3g} MB a worker; a bar has the number and colour of the partner"
    draw.text((8, 8), title, fill="black", font=font)
    for rank, messages in enumerate(drawn):
        top = _TOP + rank * _ROW
        draw.text((8, top + 14), f"worker {rank}", fill=colour_of(rank), font=font, anchor="lm")
        for message in messages:
            left, right = (_LEFT + scale * (moment - began) for moment in (message.began, message.ended))
            draw.rectangle((left, top + 3, max(left + 1, right - 1), top + _ROW - 4), fill=colour_of(message.peer))
            if right - left >= _LABELLED:
                middle = ((left + right) / 2, top + _ROW / 2)
                draw.text(middle, str(message.peer), fill="white", font=font, anchor="mm")
    draw.text((_LEFT, bottom + 4), "0 ms", fill="grey", font=font)
    draw.text((_WIDTH - 10, bottom + 4), f"{1e3 * (ended - began):.3g} ms", fill="grey", font=font, anchor="ra")
    return image
