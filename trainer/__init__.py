"""The way from a composed config to a finished run: command line, launching, loop, checkpoints, strategies."""

from .base.lean_imports import install

install()
