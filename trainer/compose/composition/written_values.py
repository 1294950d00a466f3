"""Values that are written otherwise than they are read: numbers in texts from the environment, times to base 60."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from ...base import limited_yaml
from ...base.errors import ConfigError, refuse
from ...base.paths import shorten_path
from ..known_names import find_value


def read_as_typed(composed: DictConfig, keys: Iterable[str]) -> bool:
    """Replace texts of interpolations, such as ${oc.env:LR}, by what they are on the command line.

    Args:
        keys: where a number or a truth value is wanted, and something else was found.

    Returns:
        Whether one of them is a number or a truth value there.
    """
    found = {key: value for wanted in keys for key, value in _interpolated_texts(composed, wanted)}
    with read_write(composed), open_dict(composed):
        for key, value in found.items():
            OmegaConf.update(composed, key, value)
    return bool(found)


def _interpolated_texts(composed: DictConfig, key: str) -> Iterator[tuple[str, int | float | bool]]:
    node: Any = OmegaConf.select(composed, key, throw_on_missing=False)
    names = [f"{key}.{index}" for index in range(len(node))] if OmegaConf.is_list(node) else [key]
    for name in names:
        parent, _, last = name.rpartition(".")
        holder: Any = OmegaConf.select(composed, parent) if parent else composed
        value = OmegaConf.select(composed, name, throw_on_missing=False)
        inside = int(last) if OmegaConf.is_list(holder) else last
        if isinstance(value, str) and OmegaConf.is_interpolation(holder, inside):
            typed = _parse_typed(value)
            if typed is not None:
                yield name, typed


def _parse_typed(text: str) -> int | float | bool | None:
    """The number or truth value that a text is on the command line."""
    try:
        value = OverridesParser.create().parse_override(f"key={text}").value()
    except (HydraException, ValueError):
        return None
    return value if isinstance(value, int | float) else None


def base_60(text: str, file: Path) -> ConfigError | None:
    """The error for a number such as 12:00:00 in a YAML file, if there is one."""
    if not re.search(r"\d:\d", text):
        return None
    root = limited_yaml.compose(text)
    for key, node in _scalars(root, "") if root is not None else ():
        if node.tag.endswith((":int", ":float")) and ":" in node.value and not node.style:
            name = key.rpartition(".")[2]
            meant = find_value("trainer.max_time" if name == "max_time" else "topology.slurm.time_min", node.value)[0]
            time = name in ("max_time", "time_min") and meant
            right = f"'{node.value}'" if not time else meant if name == "time_min" else f"'{meant}'"
            said = "is read to base 60 by YAML, as a number; in quotes it is text"
            return refuse(key, said, node.value, f"{name}: {right}", f"{shorten_path(file)}:{node.start_mark.line + 1}")
    return None


def _scalars(node: yaml.Node, key: str) -> Iterator[tuple[str, yaml.ScalarNode]]:
    if isinstance(node, yaml.ScalarNode):
        yield key, node
    elif isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            yield from _scalars(value, f"{key}.{name.value}".lstrip("."))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _scalars(value, f"{key}.{index}")
