"""YAML files of a run folder, which anybody may have written: read with limits, and named where they are damaged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from ..base import limited_yaml
from ..base.regular_file import open_regular
from ..base.untrusted_file import MAX_BYTES, DamagedFile, read_text


def read_yaml(path: Path, opened: Callable[[Path], BinaryIO] = open_regular) -> Any:
    """The plain values of a YAML file.

    Args:
        opened: opens it.

    Raises:
        DamagedFile: it is not YAML, or beyond the limits of `base.limited_yaml`.
        OSError: it cannot be read.
    """
    text = read_text(path, MAX_BYTES, opened)
    try:
        return limited_yaml.load(text)
    except yaml.MarkedYAMLError as error:
        where = f" at line {error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        raise DamagedFile(path, f"it is not YAML: {error.problem}{where}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DamagedFile(path, f"it is not YAML: {str(error).splitlines()[0]}") from None


def looks_harmless(path: Path) -> bool:
    """Whether a frozen config's text rules out excesses, without parsing it: a table of runs looks at thousands."""
    return is_harmless(read_text(path))


def is_harmless(text: str) -> bool:
    """Whether a text that is read already is harmless, see `looks_harmless`."""
    deepest = limited_yaml.MAX_DEPTH
    brackets = text.count("[") + text.count("{")
    return brackets <= deepest and "&" not in text and " " * 2 * deepest not in text and len(text) < 1 << 18
