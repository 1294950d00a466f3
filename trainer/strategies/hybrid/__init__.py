"""strategy=hybrid."""

from .strategy import Hybrid as Hybrid
