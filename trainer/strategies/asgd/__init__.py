"""strategy=asgd."""

from .strategy import ASGD as ASGD
