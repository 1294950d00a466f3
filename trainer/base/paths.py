"""Paths as users type and read them."""

import os
from pathlib import Path


def shorten_path(file: Path) -> str:
    """A path relative to the current folder if that is shorter to read."""
    absolute = file.absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(absolute)


def absolute(path: str | Path) -> Path:
    """A user's path made absolute, without `..`; symbolic links are kept."""
    return Path(os.path.abspath(Path(path).expanduser()))


def user_cache() -> Path:
    """The user's folder of what can be computed or fetched again: `leyden` in $XDG_CACHE_HOME, or in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "leyden"


def exists(path: str | Path) -> bool:
    """Whether there is something at a user's path; not where the text is too long for one, or names no user's home."""
    try:
        return Path(path).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        return False
