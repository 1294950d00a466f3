"""Paths as users type and read them."""

import os
from pathlib import Path


def shown(file: Path) -> str:
    """A path relative to the current folder if that is shorter to read."""
    absolute = file.absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(absolute)


def absolute(path: str | Path) -> Path:
    """A user's path made absolute, without `..`; symbolic links are kept."""
    return Path(os.path.abspath(Path(path).expanduser()))
