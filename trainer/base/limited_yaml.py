"""YAML of limited size: bytes, nodes and nesting are counted before anything is built from it.

A YAML text is untrusted: one of 300 bytes whose aliases repeat each other stands for 10^9 nodes, and one nested 200,000
deep overflows the stack of libyaml. So a first pass reads parser events, which need neither recursion nor memory, and
counts an alias as often as the nodes that it repeats.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .regular_file import open_regular

MAX_BYTES = 1 << 20
"""Bytes of one file."""
MAX_NODES = 20_000
"""Keys, values and items, those of aliases included."""
MAX_DEPTH = 64
"""Mappings and lists inside each other."""
MAX_DIGITS = 1000
"""Characters of a number: those of base 60 (`1:1:1`) take quadratic time."""
MAX_DIRECTIVES = 100
"""Lines that begin with %: libyaml compares each with all before it."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader, if PyYAML was built with it, is ten times as fast."""
_NUMBER = re.compile(r"[-+]?[0-9.][0-9a-fA-FxXoO._:+-]*")


class YAMLTooLarge(yaml.YAMLError):
    """A YAML text beyond the limits."""


def read(file: Path) -> str:
    """The text of a regular file of at most MAX_BYTES.

    Raises:
        YAMLTooLarge: more bytes.
        OSError: it cannot be read, or is a FIFO, a device or a socket.
        ValueError: it is not UTF-8.
    """
    with open_regular(file) as stream:
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise YAMLTooLarge(f"more than {MAX_BYTES:,} bytes of YAML")
    return content.decode()


def load(text: str) -> Any:
    """Plain values of a YAML text.

    Raises:
        yaml.YAMLError: invalid, or beyond the limits.
    """
    check(text)
    try:
        return yaml.load(text, Loader=_LOADER)
    except yaml.YAMLError:
        raise
    except Exception as error:  # PyYAML constructs `!!bool x` and `2001-99-99` by KeyError and the like
        raise yaml.YAMLError(f"a value cannot be read: {type(error).__name__}: {error}") from error


def compose(text: str) -> yaml.Node | None:
    """The nodes of a YAML text, with their lines; None if it is empty.

    Raises:
        yaml.YAMLError: invalid, or beyond the limits.
    """
    check(text)
    return yaml.compose(text, Loader=_LOADER)


@dataclass
class _Open:
    """A collection whose end has not been read."""

    anchor: str | None
    nodes: int = 1
    height: int = 1


def check(text: str) -> None:
    """Compare a YAML text with the limits, without building anything.

    Raises:
        YAMLTooLarge: beyond a limit, or an alias inside of what it repeats.
        yaml.YAMLError: invalid.
    """
    if len(text) > MAX_BYTES:
        raise YAMLTooLarge(f"more than {MAX_BYTES:,} bytes of YAML")
    if text.count("\n%") > MAX_DIRECTIVES:
        raise YAMLTooLarge(f"more than {MAX_DIRECTIVES} directives")
    anchors: dict[str, tuple[int, int]] = {}
    around = [_Open(None)]
    for event in _events(text):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.CollectionStartEvent):
            around.append(_Open(event.anchor))
            _refuse_deep(len(around), line)
        elif isinstance(event, yaml.CollectionEndEvent):
            ended = around.pop()
            _add(around, ended.anchor, anchors, (ended.nodes, ended.height), line)
        elif isinstance(event, yaml.ScalarEvent):
            if len(event.value) > MAX_DIGITS and _NUMBER.fullmatch(event.value):
                raise YAMLTooLarge(f"line {line}: a number of {len(event.value):,} characters ({MAX_DIGITS:,} allowed)")
            _add(around, event.anchor, anchors, (1, 0), line)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in [part.anchor for part in around]:
                raise YAMLTooLarge(f"line {line}: the alias *{event.anchor} is inside of what it repeats")
            _add(around, None, anchors, anchors.get(event.anchor, (1, 0)), line)


def _events(text: str) -> Iterator[Any]:
    """Parser events of the text."""
    try:
        yield from yaml.parse(text, Loader=_LOADER)
    except RecursionError:  # of the parser in Python, if there is no libyaml
        raise YAMLTooLarge(f"nested more than {MAX_DEPTH} deep") from None


def _add(
    around: list[_Open], anchor: str | None, anchors: dict[str, tuple[int, int]], size: tuple[int, int], line: int
) -> None:
    """Count a node and its content in the collection around it.

    Args:
        anchor: the node's own.
        size: its nodes, and the depth of the collections in it.
    """
    nodes, height = size
    if anchor is not None:
        anchors[anchor] = size
    outer = around[-1]
    outer.nodes += nodes
    outer.height = max(outer.height, height + 1)
    # collections around it are counted when they end: what is open is never more than MAX_DEPTH times the limit
    if outer.nodes > MAX_NODES:
        raise YAMLTooLarge(f"line {line}: more than {MAX_NODES:,} nodes, aliases counted as what they repeat")
    _refuse_deep(len(around) + height, line)


def _refuse_deep(depth: int, line: int) -> None:
    if depth > MAX_DEPTH + 1:
        raise YAMLTooLarge(f"line {line}: nested more than {MAX_DEPTH} deep")
