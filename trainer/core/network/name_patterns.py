"""Parameters of a network by patterns of their names."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from ...base.errors import join_names, nearest


def matching(names: Sequence[str], pattern: str, key: str) -> list[str]:
    """The parameters whose name, or that of a module around them, matches; the model's names have no leading `model.`.

    Raises:
        ValueError: none does.
    """
    found = [name for name in names if any(fnmatchcase(path, pattern) for path in _paths(name))]
    if not found:
        there_are = list(dict.fromkeys(path for name in names for path in _paths(name)))
        close = nearest(pattern.rstrip(".*"), there_are)
        meant = (
            f"; did you mean {close}?" if close else f"; there are {join_names([_paths(name)[-1] for name in names])}"
        )
        raise ValueError(f"{key}={pattern} matches no parameter{meant}")
    return found


def _paths(name: str) -> list[str]:
    """Dotted names of a parameter and of the modules around it, outermost first."""
    parts = name.removeprefix("model.").split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
