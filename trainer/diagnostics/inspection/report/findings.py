"""What an inspection finds: pictures, and values for histograms."""

from typing import NamedTuple

from PIL import Image
from torch import Tensor


class Picture(NamedTuple):
    """A picture: the name of its file without suffix, and one line that says what it shows."""

    name: str
    image: Image.Image
    text: str


class Distribution(NamedTuple):
    """The values of a histogram."""

    name: str
    values: Tensor


class Omitted(NamedTuple):
    """What is not drawn of this run, and why."""

    text: str
