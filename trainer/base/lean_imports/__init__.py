"""Imports of libraries without what they import for another library's sake."""

from . import compiler, torchmetrics_import


def install() -> None:
    """Have them imported so from here on."""
    torchmetrics_import.install()
    compiler.install()
