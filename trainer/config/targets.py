"""Building of `_target_` nodes, and the constructor arguments that the run supplies."""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from .lightning.base_classes import is_data_module_class
from .locate import locate
from .locate import make_importable as append_to_path
from .option_classes import with_options
from .schema import Config, Target

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
    return _bound(node, supplied)()


def _bound(node: Target, supplied: Mapping[str, Any], nested: bool = False) -> "partial[Any]":
    constructor = locate(node.target, nested)
    arguments = {name: _nested(value, name) for name, value in node.arguments.items()}
    for name, value in supplied.items():
        if arguments.get(name) is None and takes(constructor, name):
            arguments[name] = value
    return partial(constructor, **with_options(constructor, arguments))


def _nested(value: Any, key: str) -> Any:
    """A value of a node: nodes in it are built, or, with `_partial_`, left to the object that gets them to call.

    Args:
        key: of the value in the node, for messages.
    """
    if isinstance(value, dict):
        if "_target_" not in value:
            return {name: _nested(item, f"{key}.{name}") for name, item in value.items()}
        node = Target.model_validate(value)
        return _bound(node, {}, nested=True) if node.partial else _built(node, key)
    return [_nested(item, f"{key}.{number}") for number, item in enumerate(value)] if isinstance(value, list) else value


def _built(node: Target, key: str) -> Any:
    """The object of a node that is another's argument.

    Raises:
        ValueError: a message that begins with an argument and its value (p=2) begins with the argument's key then.
    """
    try:
        return _bound(node, {}, nested=True)()
    except ValueError as error:
        if not str(error).startswith(tuple(f"{name}{end}" for name in node.arguments for end in "=.")):
            raise
        raise ValueError(f"{key}.{error}") from error


def is_data_module(target: str) -> bool:
    """Whether a `_target_` is a LightningDataModule rather than a dataset."""
    return is_data_module_class(locate(target))
