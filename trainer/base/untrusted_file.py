"""Small text files that somebody else may have written: read with limits, and named where they are damaged."""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from .errors import ConfigError, Problem
from .paths import shorten_path
from .regular_file import NotRegularFile, open_regular

MAX_BYTES = 16 << 20
MAX_VALUES = 300_000
"""Values of a JSON file: each takes up to a hundred bytes of memory, however short it is written."""


class DamagedFile(ConfigError):
    """A file of a run folder that does not hold what it should."""

    def __init__(self, path: Path, reason: str, remedy: str = ""):
        self.path = path
        self.reason = reason
        super().__init__(Problem(shorten_path(path), f"this file is damaged: {reason}", remedy=remedy))

    def __str__(self) -> str:
        return f"{self.path} is damaged: {self.reason}"


def read_text(path: Path, most: int = MAX_BYTES, opened: Callable[[Path], BinaryIO] = open_regular) -> str:
    """The text of a regular file.

    Args:
        most: bytes that it may have.
        opened: opens it.

    Raises:
        DamagedFile: it is a device or a pipe, too large, or not UTF-8.
        OSError: it cannot be read.
    """
    try:
        with opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise DamagedFile(path, f"it has {size} bytes, at most {most} are read")
            content = file.read(most)
    except NotRegularFile:
        raise DamagedFile(path, "it is no regular file") from None
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DamagedFile(path, f"it is no text: {error.reason} at byte {error.start}") from None


def read_json(path: Path, most: int = MAX_BYTES, most_values: int = MAX_VALUES) -> Any:
    """The content of a JSON file.

    Args:
        most: bytes that it may have.
        most_values: values that it may have, commas in texts counted as well.

    Raises:
        DamagedFile: it is not JSON, or nested too deeply.
        OSError: it cannot be read.
    """
    text = read_text(path, most)
    if sum(map(text.count, "[{,")) > most_values:
        raise DamagedFile(path, f"it has more than {most_values:,} values")
    try:
        return json.loads(text)
    except RecursionError:
        raise DamagedFile(path, "it is nested too deeply") from None
    except ValueError as error:
        raise DamagedFile(path, f"it is not JSON: {error}") from None


def read_mapping(path: Path, types: Mapping[str, type]) -> dict[str, Any]:
    """The content of a JSON file of keys and values; {} without the file.

    Args:
        types: of known keys; `float` is any finite number. Null is allowed, and other keys are not looked at.

    Raises:
        DamagedFile: it is damaged, or a known key has another type.
        OSError: it cannot be read.
    """
    if not path.exists():
        return {}
    content = read_json(path)
    if not isinstance(content, dict):
        raise DamagedFile(path, "it holds no keys")
    check_types(path, content, types)
    return content


def check_types(path: Path, content: Mapping[str, Any], types: Mapping[str, type], prefix: str = "") -> None:
    """Raise DamagedFile unless every known key is null or of its type."""
    for key, kind in types.items():
        value = content.get(key)
        if value is not None and not _is_a(value, kind):
            wanted = {int: "an integer", float: "a number", str: "a text", dict: "keys", list: "a list"}[kind]
            raise DamagedFile(path, f"{prefix}{key} must be {wanted}, not {str(value)[:40]!r}")


def _is_a(value: object, kind: type) -> bool:
    if isinstance(value, bool):
        return False
    if kind is float:
        return isinstance(value, int | float) and abs(value) < 1e300 and math.isfinite(value)
    return isinstance(value, kind) and not (kind is int and abs(value) >= 1 << 62)  # pyright: ignore[reportArgumentType]
