"""strategy=spatial."""

from .strategy import Spatial as Spatial
