"""Hyperparameters of a run, by which tables of several runs tell them apart (TensorBoard's HPARAMS)."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .config import Composition, Config

Value = int | float | str | bool

ALWAYS = ("model", "optimizer.lr", "batch_size", "seed")
"""Shown of every run."""


def hyperparameters(config: Config) -> dict[str, Value]:
    """What the sweep varies, what the user overrode, then model, learning rate, batch size and seed.

    A group is named by its file (model: resnet20), any other key by its value.
    """
    values = config.model_dump(by_alias=True, mode="json")
    names = dict.fromkeys([*map(_spelled, config.composition.swept), *_overridden(config), *ALWAYS])
    found = {name: _value(name, values, config.composition) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def varied(config: Config) -> list[str]:
    """Those that the sweep varies, under the names that `hyperparameters` gives them."""
    return [_spelled(key) for key in config.composition.swept]


def title(config: Config, run_dir: Path) -> str:
    """The run's folder and what distinguishes it: `3 model=mlp optimizer.lr=0.1`."""
    own = {_key(override): override for override in config.composition.overrides}
    told_apart = [own[key] for key in varied(config) if key in own] or list(own.values())
    return " ".join([run_dir.name, *(o for o in told_apart if not o.startswith("hydra"))])


def _overridden(config: Config) -> Iterator[str]:
    for override in config.composition.overrides:
        key = _key(override)
        if "=" in override and not override.startswith("~") and key.split(".")[0].split("/")[0] != "hydra":
            yield key


def _key(override: str) -> str:
    return _spelled(override.partition("=")[0].lstrip("+~"))


def _spelled(key: str) -> str:
    """The key with `dataset` for `data`, without the package of a group."""
    first, dot, rest = key.split("@")[0].partition(".")
    return f"{'dataset' if first == 'data' else first}{dot}{rest}"


def _value(name: str, values: Mapping[str, Any], composition: Composition) -> Value | None:
    """None where the config has no such key, or holds nothing there."""
    if composition.choices.get(name) is not None:
        return composition.choices[name]
    node: Any = values
    for part in name.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    if node is None or isinstance(node, int | float | str | bool):
        return node
    typed = [override.partition("=")[2] for override in composition.overrides if _key(override) == name]
    return typed[-1] if typed else str(node)
