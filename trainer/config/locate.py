"""Objects by their import path, if a config may name them."""

import importlib
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

from .blocklist.verdict import RefusedTarget, refused_name, refused_object


def make_importable(folders: Iterable[str]) -> None:
    """Append folders to sys.path: they hold user-provided classes."""
    sys.path += [folder for folder in folders if folder not in sys.path]


def locate(path: str) -> Any:
    """The object at an import path.

    Raises:
        RefusedTarget: no config may name it. If its name decides that, nothing was imported.
        ValueError: no module or no such name in it; the message says which part is missing.
    """
    _raise_if(refused_name(path))
    parts = path.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:cut])
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
                continue
            raise
        return _attribute(found, name, parts[cut:])
    raise ValueError(f"there is no module {parts[0]!r}")


def _attribute(found: Any, name: str, attributes: Sequence[str]) -> Any:
    """An attribute of a module, of an attribute of it, and so on; each is checked, since it may be an alias."""
    for done in range(len(attributes) + 1):
        if isinstance(found, ModuleType) and done < len(attributes):
            _raise_if(_refused_alias(found, attributes[done:]))
        _raise_if(refused_object(found))
        if done < len(attributes):
            if not hasattr(found, attributes[done]):
                raise ValueError(f"module {name} has no {attributes[done]!r}")
            found = getattr(found, attributes[done])
    return found


def _refused_alias(module: ModuleType, attributes: Sequence[str]) -> str | None:
    """The reason against what a module has under this name, by the module's own name."""
    real = ".".join([module.__name__, *attributes])
    # a private module's public names are often the objects of a public one
    reason = refused_name(real) if "._" not in module.__name__ else None
    return None if reason is None else f"is {real}, which {reason}"


def _raise_if(reason: str | None) -> None:
    if reason is not None:
        raise RefusedTarget(reason)
