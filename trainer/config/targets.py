"""Classes that `_target_` nodes name: found, asked for their parameters, and built with what the run supplies."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..base.errors import Problem, nearest, raised_at
from .allowed_targets import REMEDY, RefusedTarget
from .lightning.base_classes import is_data_module_class
from .locate import locate
from .locate import make_importable as append_to_path
from .option_classes import with_options
from .schema import Config, Target
from .target_policy.group_types import wrong_class

SUPPLIED: dict[str, tuple[str, ...]] = {
    "dataset": ("split",),
    "model": ("classes", "image_shape", "seed"),
    "task": ("model", "classes", "image_shape"),
    "strategy": ("topology", "parallel", "batch_size"),
    "optimizer": ("params",),
    "schedule": ("optimizer", "total_steps", "steps_per_epoch"),
    "logger": ("root_dir", "save_dir"),
}
"""Constructor arguments that the run supplies, by config group, unless the YAML sets them."""


def make_importable(config: Config) -> None:
    """Append the config's folders to sys.path: they hold user-provided classes."""
    append_to_path(config.python_path)


def takes(constructor: Any, argument: str) -> bool:
    """Whether a constructor has a parameter of this name."""
    return argument in inspect.signature(constructor).parameters


def build(node: Target, **supplied: Any) -> Any:
    """The object that a node describes; `supplied` fills the parameters that the node does not set.

    A node of a config group that is `_partial_` is completed here, by what the run supplies.
    """
    return _bind_arguments(node, supplied)()


def _bind_arguments(node: Target, supplied: Mapping[str, Any], nested: bool = False) -> "partial[Any]":
    constructor = locate(node.target, nested)
    arguments = {name: _build_nested(value, name) for name, value in node.arguments.items()}
    for name, value in supplied.items():
        if arguments.get(name) is None and takes(constructor, name):
            arguments[name] = value
    return partial(constructor, **with_options(constructor, arguments))


def _build_nested(value: Any, key: str) -> Any:
    """A value of a node: nodes in it are built, or, with `_partial_`, left to the object that gets them to call.

    Args:
        key: of the value in the node, for messages.
    """
    if isinstance(value, dict):
        if "_target_" not in value:
            return {name: _build_nested(item, f"{key}.{name}") for name, item in value.items()}
        node = Target.model_validate(value)
        return _bind_arguments(node, {}, nested=True) if node.partial else _build_argument(node, key)
    return (
        [_build_nested(item, f"{key}.{number}") for number, item in enumerate(value)]
        if isinstance(value, list)
        else value
    )


def _build_argument(node: Target, key: str) -> Any:
    """The object of a node that is another's argument.

    Raises:
        ValueError: a message that begins with an argument and its value (p=2) begins with the argument's key then.
    """
    try:
        return _bind_arguments(node, {}, nested=True)()
    except ValueError as error:
        if not str(error).startswith(tuple(f"{name}{end}" for name in node.arguments for end in "=.")):
            raise
        raise ValueError(f"{key}.{error}") from error


def is_data_module(target: str) -> bool:
    """Whether a `_target_` is a LightningDataModule rather than a dataset."""
    return is_data_module_class(locate(target))


def find(key: str, node: Target) -> Callable[..., Any] | Problem:
    """The class or function that a node names, or the problem."""
    try:
        found = locate(node.target, not is_group_node(key))
    except RefusedTarget as error:
        return Problem(f"{key}._target_", str(error), node.target, REMEDY)
    except ValueError as error:
        return Problem(f"{key}._target_", f"{error}{_find_meant(node.target)}", node.target)
    except Exception as error:  # A user-provided module may raise anything while it is imported.
        text = f"importing it failed: {type(error).__name__}: {error}{raised_at(error)}"
        return Problem(f"{key}._target_", text, node.target, executed=True)
    if not callable(found):
        return Problem(f"{key}._target_", "is neither a class nor a function", node.target)
    return wrong_class(key, node.target, found) or found


def parameters_of(constructor: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Constructor parameters by name; empty if Python has no signature of it."""
    return signature_of(constructor) or {}


def is_a(constructor: Any, class_name: str) -> bool:
    """Whether a class of this name is among its bases, compared without importing that class."""
    return any(base.__name__ == class_name for base in getattr(constructor, "__mro__", ()))


def signature_of(constructor: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Parameters by name; None if Python has no signature of it."""
    try:
        return inspect.signature(constructor).parameters
    except (ValueError, TypeError):
        return None


def takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Whether there is a **kwargs among them."""
    return any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def is_group_node(key: str) -> bool:
    """Whether the run itself builds the node, which is no argument of another."""
    group, _, name = key.partition(".")
    return not name or (group in ("callbacks", "logger") and "." not in name)


def _find_meant(target: str) -> str:
    """A suggestion for a missing import path: the nearest name at the first unknown part."""
    parts = target.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        inside = [m.name for m in pkgutil.iter_modules(getattr(module, "__path__", []))]
        public = [name for name in {*vars(module), *inside} if not name.startswith("_")]
        close = nearest(parts[cut], public)
        return f"; did you mean {'.'.join([*parts[:cut], close, *parts[cut + 1 :]])}?" if close else ""
    return "; searched in the current folder, in --config-dir and among the installed packages"
