"""strategy=easgd."""

from .strategy import EASGD as EASGD
