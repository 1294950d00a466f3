"""Building what a `_target_` names, and what the run itself hands to a constructor that asks for it."""

import importlib
import inspect
import sys
from typing import Any

from .config import Config, Target

GIVEN: dict[str, tuple[str, ...]] = {
    "dataset": ("split",),
    "model": ("classes", "image_shape", "seed"),
    "task": ("model", "classes", "image_shape"),
    "strategy": ("topology", "parallel", "batch_size"),
    "optimizer": ("params",),
    "schedule": ("optimizer", "total_steps"),
    "logger": ("root_dir", "save_dir"),
}
"""Constructor arguments that the run supplies, by config group, where the YAML does not."""


def make_importable(config: Config) -> None:
    """Append the config's folders to sys.path: a user's own classes lie there."""
    sys.path += [folder for folder in config.python_path if folder not in sys.path]


def locate(path: str) -> Any:
    """The object at an import path.

    Raises:
        ValueError: no module or no such name in it; the message says which part is missing.
    """
    parts = path.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:cut])
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
                continue
            raise
        for attribute in parts[cut:]:
            if not hasattr(found, attribute):
                raise ValueError(f"module {name} has no {attribute!r}")
            found = getattr(found, attribute)
        return found
    raise ValueError(f"there is no module {parts[0]!r}")


def takes(constructor: Any, argument: str) -> bool:
    """Whether a constructor has a parameter of this name."""
    return argument in inspect.signature(constructor).parameters


def build(node: Target, **given: Any) -> Any:
    """The object a node describes; of `given`, what its constructor takes and the node does not say itself."""
    constructor = locate(node.target)
    arguments = {name: _nested(value) for name, value in node.arguments.items()}
    for name, value in given.items():
        if arguments.get(name) is None and takes(constructor, name):
            arguments[name] = value
    return constructor(**arguments)


def _nested(value: Any) -> Any:
    if isinstance(value, dict):
        return build(Target.model_validate(value)) if "_target_" in value else {k: _nested(v) for k, v in value.items()}
    return [_nested(item) for item in value] if isinstance(value, list) else value
