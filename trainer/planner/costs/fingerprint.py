"""What a cached count or plan depends on: a config's values, and the code that they name. No torch."""

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

_OURS = Path(__file__).parents[3]
"""Folder of Leyden's sub-packages."""
_FOLDERS = ("trainer", "models", "datasets")


def fingerprint(values: Any, python_path: Sequence[str] = ()) -> str:
    """Hash of plain values, of Leyden's code, and of the files of the user's classes that the values name.

    Args:
        values: plain; a class is the value of a key `_target_`.
        python_path: folders of the user's classes.
    """
    text = json.dumps([values, _code(), *_users_files(values, python_path)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _code() -> list[str]:
    """Time and size of every file of Leyden's, so that a change of any makes every fingerprint another."""
    return [_stamp(file) for folder in _FOLDERS for file in sorted((_OURS / folder).rglob("*.py"))]


def _stamp(file: Path) -> str:
    known = os.stat(file)
    return f"{file.name} {known.st_mtime_ns} {known.st_size}"


def _users_files(values: Any, python_path: Sequence[str]) -> Iterator[str]:
    for target in sorted(set(_targets(values))):
        if not target.startswith(("leyden.", "torch.", "lightning.")):
            file = _file_of(target.split(".")[:-1], [*python_path, *sys.path])
            yield target if file is None else f"{target} {_stamp(file)}"


def _targets(values: Any) -> Iterator[str]:
    if isinstance(values, dict):
        if isinstance(values.get("_target_"), str):
            yield values["_target_"]
        for value in values.values():
            yield from _targets(value)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _targets(value)


def _file_of(modules: Sequence[str], folders: Iterable[str]) -> Path | None:
    """The file of a module, found without importing its packages."""
    for folder in folders:
        place = Path(folder or ".").joinpath(*modules)
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if modules and file.is_file():
                return file
    return None
