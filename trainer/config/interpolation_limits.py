"""Limits of interpolations: `${...}` may stand for what stands for more, and ten lines of YAML for gigabytes or hours.

OmegaConf resolves each reference anew wherever it stands. So references are counted while they are resolved, with the
characters and nodes that they stand for.
"""

import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from omegaconf.errors import InterpolationResolutionError

from .hydra_compat import observe_references, raw_value

MAX_REFERENCES = 2_000
"""References resolved in one reading of a composition; those of what Leyden ships are 20. A resolver counts as five."""
MAX_CHARACTERS = 4 << 20
"""Characters that they stand for."""
MAX_NODES = 20_000
"""Keys, values and items that they stand for."""
MAX_DEPTH = 24
"""References that lead to references, or stand inside of one."""


_BRACES = re.compile(r"\$\{|\}")


class TooManyReferences(InterpolationResolutionError):
    """Interpolations of a config beyond the limits."""


def nested_references(text: str) -> int:
    """How many references stand inside each other in a text: `${a.${b}}` has two. Nothing is parsed."""
    depth = deepest = 0
    for brace in _BRACES.finditer(text):
        depth = depth + 1 if brace[0] == "${" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


@dataclass
class _Spent:
    references: int = 0
    characters: int = 0
    nodes: int = 0
    depth: int = 0


_spent: _Spent | None = None


@contextmanager
def limited_references() -> Generator[None, None, None]:
    """While compositions are read: each has the limits to itself, from `limits_renewed` on. May be nested.

    Raises:
        TooManyReferences: from the reading of a value, wherever it stands.
    """
    global _spent
    if _spent is not None:
        yield
        return
    _spent = _Spent()
    try:
        yield
    finally:
        _spent = None


def limits_renewed() -> None:
    """Begin to count anew: what is read from now on is another composition."""
    global _spent
    _spent = None if _spent is None else _Spent(depth=_spent.depth)


@contextmanager
def _counted(is_resolver: bool) -> Generator[Any, None, None]:
    spent = _spent
    if spent is None:
        yield lambda value: None
        return
    spent.references += 5 if is_resolver else 1
    spent.depth += 1
    try:
        _refuse(spent.references, MAX_REFERENCES, "references")
        _refuse(spent.depth, MAX_DEPTH, "references that lead to each other")
        yield lambda value: _count(spent, value)
    finally:
        spent.depth -= 1


def _count(spent: _Spent, value: Any) -> None:
    """Count what a reference stands for; references in it count when they are resolved."""
    values = [value]
    while values:
        found = raw_value(values.pop())
        spent.nodes += 1
        _refuse(spent.nodes, MAX_NODES, "keys, values and items")
        if isinstance(found, dict):
            values.extend(found.values())
        elif isinstance(found, list | tuple):
            values.extend(found)
        elif isinstance(found, str | bytes):
            spent.characters += len(found)
            _refuse(spent.characters, MAX_CHARACTERS, "characters")


def _refuse(count: int, most: int, what: str) -> None:
    if count > most:
        raise TooManyReferences(f"Interpolations of this config stand for more than {most:,} {what}")


observe_references(_counted)
