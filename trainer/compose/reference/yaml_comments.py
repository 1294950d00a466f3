"""Comments of a YAML file by key. PyYAML drops comments, so they are located by its tokens."""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from ...base import limited_yaml


@dataclass(frozen=True)
class Key:
    """A key of a YAML file.

    Args:
        value: plain, interpolations as written; for a mapping all of it.
        comment: the key's comment on one line, or "".
        inherited: the comment is that of the flow mapping {...} around it.
    """

    value: Any
    comment: str
    inherited: bool = False


@dataclass(frozen=True)
class Commented:
    """A YAML file: the lines above its first key, and its keys by their dotted names."""

    head: tuple[str, ...]
    keys: dict[str, Key] = field(default_factory=dict)
    is_global: bool = False
    """Whether `# @package _global_` puts the keys at the root."""


def read_comments(text: str) -> Commented:
    """Read a file's keys and comments.

    A comment follows its key on the same line, continued below; or is on lines of its own right above the key, with the
    key's indentation.

    Raises:
        yaml.YAMLError: invalid YAML.
    """
    root = limited_yaml.compose(text)
    lines = _lines(text)
    is_global = any(re.match(r"@package\s+_global_", line.comment) for line in lines)
    keys: dict[str, Key] = {}
    if isinstance(root, yaml.MappingNode):
        _note(root, "", lines, keys, "")
    head = (line.comment for line in lines[: next((n for n, line in enumerate(lines) if not line.alone), len(lines))])
    return Commented(tuple(line for line in head if line and not line.startswith("@package")), keys, is_global)


@dataclass(frozen=True)
class _Line:
    comment: str
    column: int
    """Column of the #; -1 without a comment."""
    alone: bool
    """Only a comment, or empty."""


def _lines(text: str) -> list[_Line]:
    lines = text.splitlines()
    ends: dict[int, int] = {}
    """Column after the last token of each line."""
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        if token.start_mark.index < token.end_mark.index:
            ends.update(dict.fromkeys(range(token.start_mark.line, token.end_mark.line), 0))
            ends[token.end_mark.line] = token.end_mark.column
    found = []
    for number, line in enumerate(lines):
        column = line.find("#", ends.get(number, 0))
        found.append(_Line(line[column + 1 :].strip() if column >= 0 else "", column, number not in ends))
    return found


def _note(node: yaml.MappingNode, prefix: str, lines: list[_Line], keys: dict[str, Key], around: str) -> None:
    for name, value in node.value:
        key = f"{prefix}.{name.value}" if prefix else str(name.value)
        own = "" if node.flow_style and around else _comment(name.start_mark.line, name.start_mark.column, lines)
        keys[key] = Key(_plain(value), own or around, inherited=not own and bool(around))
        if isinstance(value, yaml.MappingNode):
            _note(value, key, lines, keys, keys[key].comment if value.flow_style else "")


def _comment(line: int, column: int, lines: list[_Line]) -> str:
    """Comment of the key that begins at this position."""
    if lines[line].column >= 0:
        following = []
        for below in lines[line + 1 :]:
            if not below.alone or below.column != lines[line].column or below.column <= column:
                break
            following.append(below.comment)
        return " ".join([lines[line].comment, *following])
    above: list[str] = []
    for before in reversed(lines[:line]):
        if not before.alone or before.column != column:
            # a block at the top of the file is about the file
            break
        above.insert(0, before.comment)
    return "" if len(above) == line else " ".join(above)


def _plain(node: yaml.Node) -> Any:
    return yaml.SafeLoader("").construct_document(node)
