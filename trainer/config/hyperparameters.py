"""Hyperparameters of a run: the columns that distinguish runs in tables (TensorBoard's HPARAMS)."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .schema import Composition, Config

Value = int | float | str | bool

ALWAYS = ("model", "optimizer.lr", "batch_size", "seed")
"""Shown for every run."""


def hyperparameters(config: Config) -> dict[str, Value]:
    """Values of the swept keys, of the user's overrides, then model, learning rate, batch size and seed.

    A group is named by its file (model: resnet20), any other key by its value.
    """
    return hyperparameters_of(config.model_dump(by_alias=True, mode="json"), config.composition)


def hyperparameters_of(values: Mapping[str, Any], composition: Composition) -> dict[str, Value]:
    """Those of a config that is given as plain values."""
    names = dict.fromkeys([*map(_spell_key, composition.swept), *_overridden_keys(composition), *ALWAYS])
    found = {name: _value(name, values, composition) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def varied_names(composition: Composition) -> list[str]:
    """Hyperparameters that the sweep varies, under their names in `hyperparameters`."""
    return [_spell_key(key) for key in composition.swept]


def title(config: Config, run_dir: Path) -> str:
    """The run's folder and the overrides that distinguish it: `3 model=mlp optimizer.lr=0.1`."""
    own = {_key(override): override for override in config.composition.overrides}
    distinguishing = [own[key] for key in varied_names(config.composition) if key in own] or list(own.values())
    return " ".join([run_dir.name, *(o for o in distinguishing if not o.startswith("hydra"))])


def short_title(composition: Composition, run_dir: Path) -> str:
    """A trial's folder and what its sweep varies, without the groups of keys where that is clear: `3 lr=0.1`."""
    last = Counter(key.rpartition(".")[2] for key in varied_names(composition))
    words = []
    for override in composition.overrides:
        if (key := _key(override)) in varied_names(composition):
            short = key.rpartition(".")[2]
            words.append(f"{short if last[short] == 1 else key}={override.partition('=')[2]}")
    return " ".join([run_dir.name, *words])


def _overridden_keys(composition: Composition) -> Iterator[str]:
    for override in composition.overrides:
        key = _key(override)
        if "=" in override and not override.startswith("~") and key.split(".")[0].split("/")[0] != "hydra":
            yield key


def _key(override: str) -> str:
    return _spell_key(override.partition("=")[0].lstrip("+~"))


def _spell_key(key: str) -> str:
    """The key with `dataset` for `data`, without the package of a group."""
    first, dot, rest = key.split("@")[0].partition(".")
    return f"{'dataset' if first == 'data' else first}{dot}{rest}"


def _value(name: str, values: Mapping[str, Any], composition: Composition) -> Value | None:
    """The value of a hyperparameter; None without such a key, or without a value."""
    if composition.choices.get(name) is not None:
        return composition.choices[name]
    node: Any = values
    for part in name.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    if node is None or isinstance(node, int | float | str | bool):
        return node
    typed = [override.partition("=")[2] for override in composition.overrides if _key(override) == name]
    return typed[-1] if typed else str(node)
