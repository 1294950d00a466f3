"""Building of `_target_` nodes, and the constructor arguments that the run supplies."""

import inspect
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
    "schedule": ("optimizer", "total_steps"),
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
    """The object that a node describes; `supplied` fills the parameters that the node does not set."""
    constructor = locate(node.target)
    arguments = {name: _nested(value) for name, value in node.arguments.items()}
    for name, value in supplied.items():
        if arguments.get(name) is None and takes(constructor, name):
            arguments[name] = value
    return constructor(**with_options(constructor, arguments))


def _nested(value: Any) -> Any:
    if isinstance(value, dict):
        return build(Target.model_validate(value)) if "_target_" in value else {k: _nested(v) for k, v in value.items()}
    return [_nested(item) for item in value] if isinstance(value, list) else value


def is_data_module(target: str) -> bool:
    """Whether a `_target_` is a LightningDataModule rather than a dataset."""
    return is_data_module_class(locate(target))
