"""The user's folder of what can be computed again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$LEYDEN_CACHE, or `leyden` in $XDG_CACHE_HOME, or in ~/.cache."""
    if os.environ.get("LEYDEN_CACHE"):
        return Path(os.environ["LEYDEN_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "leyden"
