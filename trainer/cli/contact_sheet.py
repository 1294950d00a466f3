"""A contact sheet: small images in a grid, each with its class and probability."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from PIL import Image

from ..diagnostics.pictures.tiles import sheet, tile

if TYPE_CHECKING:
    from torch import Tensor

    from ..api.predictions import Prediction

_SIDE = 144


def contact_sheet(images: "Sequence[Tensor]", predictions: "Sequence[Prediction]") -> Image.Image:
    """Images, uint8 (1 or 3, height, width), row by row, under each its most probable class and its file's name."""
    captions = [
        (f"{100 * prediction.probability:.0f} % {prediction.name}", prediction.file)
        for prediction in predictions[: len(images)]
    ]
    return sheet([tile(image, _SIDE) for image in images], captions)
