"""strategy=butterfly."""

from .strategy import Butterfly as Butterfly
