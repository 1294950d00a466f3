"""Objects by their import path, if a config may name them."""

import importlib
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from .allowed_targets import RefusedTarget, refused_name, refused_object


def make_importable(folders: Iterable[str]) -> None:
    """Append folders to sys.path: they hold user-provided classes."""
    sys.path += [folder for folder in folders if folder not in sys.path]


def locate(path: str, nested: bool = False) -> Any:
    """The object at an import path.

    Args:
        nested: it is an argument's, not that of a config group.

    Raises:
        RefusedTarget: no config may name it. If its name decides that, nothing was imported.
        ValueError: no module or no such name in it; the message says which part is missing.
    """
    _raise_if(refused_name(path, nested))
    parts = path.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:cut])
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
                continue
            raise
        return _attribute(found, parts[cut:], nested)
    raise ValueError(f"there is no module {parts[0]!r}")


def _attribute(found: Any, attributes: list[str], nested: bool) -> Any:
    """An attribute of a module, of an attribute of it, and so on; a module on the way may be an alias of any other."""
    for done, attribute in enumerate(attributes):
        if isinstance(found, ModuleType):
            _raise_if(refused_name(".".join([found.__name__, *attributes[done:]]), nested))
        if not hasattr(found, attribute):
            raise ValueError(f"module {found.__name__} has no {attribute!r}")
        found = getattr(found, attribute)
    _raise_if(refused_object(found, nested))
    return found


def _raise_if(reason: str | None) -> None:
    if reason is not None:
        raise RefusedTarget(reason)
