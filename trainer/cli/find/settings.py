"""Words of `leyden find`: keys of its own YAML files, and overrides of the config."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, Any

from ...base.errors import ConfigError, Problem, refuse
from ...compose.composer import Composer
from ...compose.reference.yaml_library import Library

if TYPE_CHECKING:
    from ...compose.composer import ComposedRun

WHAT = ("lr", "batch_size")
"""What can be found; find_WHAT.yaml has the keys of each."""
STEPS_ALONE = {
    "topology.max_restarts": 0, "trainer.max_time": None, "trainer.fast_dev_run": False, "trainer.profiler": None,
    "trainer.limit_val_batches": 0, "trainer.limit_test_batches": 0, "trainer.num_sanity_val_steps": 0,
    "trainer.val_check_interval": None, "trainer.check_val_every_n_epoch": 1, "trainer.log_every_n_steps": 1,
}  # fmt: skip
"""Changes to a config of which steps alone are wanted: nothing is evaluated, profiled or restarted."""


def divide_words(what: str, words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Values of the keys of find_WHAT.yaml, and the overrides of the config.

    Raises:
        ConfigError: a value of another type than the key's.
    """
    keys = Library().file(f"find_{what}").keys
    values = {name: key.value for name, key in keys.items()}
    overrides: list[str] = []
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name not in values or name == "_target_":
            overrides.append(word)
            continue
        values[name] = _value(name, text, keys[name].value)
    return values, overrides


def _value(name: str, text: str, default: Any) -> Any:
    """A value of the default's type; a number, or null, where that is null."""
    if isinstance(default, str):
        return text
    if default is None and text == "null":
        return None
    if type(default) is not int:
        with suppress(ValueError):
            value = float(text)
            if isfinite(value):
                return int(text) if re.fullmatch(r"[+-]?\d{1,15}", text) else value
    elif re.fullmatch(r"[+-]?\d{1,15}", text):
        return int(text)
    kind = "whole number" if type(default) is int else "number"
    raise refuse(name, f"must be a {kind}", text, f"{name}={'null' if default is None else default}")


def compose_here(composer: Composer, what: str, overrides: Sequence[str]) -> "ComposedRun":
    """The validated run of these overrides, of one machine; its folder is outputs/DAY/TIME-find-WHAT unless named.

    Raises:
        ConfigError: a mistake in them; a sweep; workers that this command does not start.
    """
    folder = f"hydra.run.dir='outputs/${{now:%Y-%m-%d}}/${{now:%H-%M-%S}}-find-{what.replace('_', '-')}'"
    named = any(override.startswith("hydra.run.dir=") for override in overrides)
    run = composer.run([*overrides, *([] if named else [folder])])
    if run.is_sweep:
        raise refuse("hydra.mode", "is a sweep, and the test is one of a single config", "MULTIRUN", "hydra.mode=RUN")
    if run.config.launcher != "local":
        text = "must be local: this command starts the workers, on this machine"
        raise refuse("topology.launcher", text, run.config.launcher, "topology=local")
    return run


def with_values(
    composer: Composer, run: "ComposedRun", overrides: Sequence[str], changes: Mapping[str, Any]
) -> "ComposedRun":
    """The run with other values of some keys, validated again.

    Raises:
        ConfigError: with the keys of find_WHAT.yaml as they are typed.
    """
    from omegaconf import OmegaConf, open_dict, read_write

    with read_write(run.composed), open_dict(run.composed):
        for key, value in changes.items():
            OmegaConf.update(run.composed, key, value, merge=False, force_add=True)
    try:
        return composer.validate_classes(composer.validate_run(run.composed, overrides), overrides)
    except ConfigError as error:
        raise ConfigError(*map(_as_typed, error.problems)) from None


def _as_typed(problem: Problem) -> Problem:
    own = "callbacks.lr_range_test."
    return replace(problem, key=problem.key.removeprefix(own), where="") if problem.key.startswith(own) else problem
