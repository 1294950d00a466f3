"""Targets that no config may name, whoever wrote it: code that runs other code, loads it, or destroys files.

A target has to pass twice, since one object has many names: the configured import path before anything is imported
(`refused_name`), and every object on the way to what it resolves to, by its real name (`refused_object`). Of the
standard library only plain values pass; of other packages everything but the list. A list is no proof: what a run
folder of somebody else may name is decided by an allowlist, see `target_policy.untrusted_runs`.
"""

import os
import sys
from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module
from types import BuiltinMethodType, FunctionType, MethodType, MethodWrapperType, ModuleType
from typing import Any

from .names import CORE, NEVER, NEVER_OF_STDLIB, PASSING, VALUES

ALLOWLIST = "HYDRA_INSTANTIATE_ALLOWLIST_OVERRIDE"
"""Environment variable of Hydra's, names separated by colons, that allows exact names of the standard library."""


_MODULES_OF_VALUES = {value.rpartition(".")[0] for value in VALUES}


class RefusedTarget(ValueError):
    """A target of the blocklist; the message is a predicate of it."""


def refused_name(name: str) -> str | None:
    """The reason why no config may name this import path, decided without importing anything; None: it may."""
    parts = name.split(".")
    # __main__: a script of the user's that starts a run in its own process
    if any(part.startswith("__") for part in parts[parts[0] == "__main__" :]):
        return "has a part that begins with two underscores: Python's own machinery, which no config may name"
    if name.startswith(PASSING):
        return None
    if parts[0] in CORE and any(part.startswith("_") for part in parts[1:]):
        return f"is private to {parts[0]}, and no config may name it"
    if parts[0] in sys.stdlib_module_names:
        return _refused_stdlib(name)
    return _no_flag(name) if _is_blocked(name) else None


def refused_object(found: Any) -> str | None:
    """The reason why no config may name this object, by its real name; None: it may."""
    if any(found is value for value in _values()):
        return None
    for real in _real_names(found):
        reason = _refused_real(real, isinstance(found, ModuleType))
        if reason is not None:
            return f"is {real}, which {reason}"
    if isinstance(found, FunctionType) and found.__name__ == "<lambda>":
        return "is a lambda, which has no name of its own: def"
    return None


def _refused_stdlib(name: str) -> str | None:
    if name in VALUES or name.startswith("math."):
        return None
    if name.partition(".")[0] in NEVER_OF_STDLIB:
        return _no_flag(name)
    if name in os.environ.get(ALLOWLIST, "").split(":"):
        return None
    return (
        f"is of Python's standard library, of which a config may name plain values alone; {ALLOWLIST}={name} allows it"
    )


def _no_flag(name: str) -> str:
    return "runs or loads code, starts processes or changes files: no config may name it, and no flag allows it"


def _is_blocked(name: str) -> bool:
    parts = name.split(".")
    if parts[0] in CORE and "from_file" in parts:
        return True
    return any(".".join(parts[:cut]) in NEVER for cut in range(1, len(parts) + 1))


def _refused_real(real: str, is_module: bool) -> str | None:
    """As `refused_name`, but private parts pass: many public objects are defined in private modules."""
    package = real.partition(".")[0]
    if f"{real}.".startswith(PASSING):
        return None
    if package in sys.stdlib_module_names:
        # a module is only on the way to what is named, which gets a verdict of its own
        passing = is_module and (package not in NEVER_OF_STDLIB or package in _MODULES_OF_VALUES)
        return None if passing else _refused_stdlib(real)
    return _no_flag(real) if _is_blocked(real) else None


def _real_names(found: Any) -> Iterator[str]:
    """Where an object is defined, as package.module.Class.method; of a method also what it is bound to."""
    if isinstance(found, ModuleType):
        yield found.__name__
        return
    if isinstance(found, partial):
        yield from _real_names(found.func)
        return
    owner = found.__self__ if isinstance(found, MethodType | BuiltinMethodType | MethodWrapperType) else None
    if owner is not None and not isinstance(owner, ModuleType):
        cls = owner if isinstance(owner, type) else type(owner)
        yield f"{cls.__module__}.{cls.__qualname__}.{found.__name__}"
        if cls.__module__.partition(".")[0] == "torch":
            yield f"torch.{found.__name__}"  # torch.tensor and the like are methods of a class in torch._C
    module = getattr(found, "__module__", None)
    if isinstance(module, str):
        yield f"{module}.{getattr(found, '__qualname__', type(found).__qualname__)}"
    elif owner is None:
        yield f"{type(found).__module__}.{type(found).__qualname__}"


@cache
def _values() -> tuple[Any, ...]:
    """The objects of VALUES."""
    names = (value.rpartition(".") for value in VALUES)
    return tuple(getattr(import_module(module), attribute) for module, _, attribute in names)
