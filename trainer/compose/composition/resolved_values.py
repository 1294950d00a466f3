"""Plain, resolved values of a composition, as a run freezes them."""

import re
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from ...base.errors import ConfigError, Problem, refuse
from ...config.schema import TASK_LOADERS
from ...hardware.topology import resolve_device_kind
from ..limits import limit_composition


@limit_composition()
def resolve_text(composed: DictConfig, key: str) -> str:
    """The value of a key that names a folder.

    Raises:
        ConfigError: an interpolation in it has no value.
    """
    try:
        return str(OmegaConf.select(composed, key, throw_on_missing=True, throw_on_resolution_failure=True))
    except OmegaConfBaseException as error:
        raise refuse(key, str(error).splitlines()[0], remedy=f"{key}=FOLDER") from None


def without_hydra(composed: DictConfig) -> DictConfig:
    """A copy of the composition without Hydra's node."""
    hydra = composed.hydra if "hydra" in composed else None
    user = deepcopy(composed, {id(hydra): OmegaConf.create()})  # Hydra's node, the larger half, is not copied
    with flag_override(user, ["struct", "readonly"], False):
        if "hydra" in user:
            del user["hydra"]
    return user


@limit_composition()
def plain(composed: DictConfig) -> dict[str, Any]:
    """Resolved plain values.

    Raises:
        ConfigError: a mandatory value is missing, or an interpolation has no target or is circular.
    """
    try:
        missing = sorted(OmegaConf.missing_keys(composed))
        if missing:
            raise ConfigError(*[_mandatory(key) for key in missing])
        resolved = OmegaConf.to_container(composed, resolve=True)
    except OmegaConfBaseException as error:
        raise explain_unresolved(error, composed) from None
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def freeze_composition(
    composed: DictConfig, hydra: Any, python_path: Sequence[str], swept: Sequence[str] = ()
) -> dict[str, Any]:
    """The plain values of a run, from its composition without Hydra's own node.

    Args:
        composed: the user's keys.
        hydra: Hydra's own node (a HydraConf, or the same as a DictConfig).
        python_path: folders of user-provided classes.
        swept: keys that the run's sweep varies.
    """
    values = plain(composed)
    choices = hydra.runtime.choices
    for group in ("model", "optimizer", "schedule"):
        # train.yaml has keys for these groups, meaningless if the group is null.
        if choices.get(group) is None and "_target_" not in (values.get(group) or {}):
            _refuse_without_model(values.get(group) if group == "model" else None)
            values[group] = None
    values["composition"] = {
        "choices": {g: choice for g, choice in choices.items() if not g.startswith("hydra/")},
        "overrides": [str(override) for override in hydra.overrides.task],
        "swept": list(swept),
    }
    dataset = values.get("dataset")
    if choices.get("dataset") is None and isinstance(dataset, dict) and "_target_" not in dataset:
        values["dataset"] = {"_target_": TASK_LOADERS, **dataset}
    given = values.get("python_path", [])
    if isinstance(given, list):
        values["python_path"] = list(dict.fromkeys([*given, *python_path]))
    resolve_device_kind(values)
    return values


def _refuse_without_model(keys: Any) -> None:
    """Keys of a network, which the user has set where there is none."""
    for key, value in keys.items() if isinstance(keys, dict) else ():
        if value:
            text = "is of the network that model names, and model is null"
            remedy = f"init_from={value}" if key == "pretrained" else "leave it out"
            raise refuse(f"model.{key}", text, value, remedy)


def _mandatory(key: str) -> Problem:
    return Problem(key, "must be given, there is no value for it yet (???)", remedy=f"{key}=VALUE")


def explain_unresolved(error: OmegaConfBaseException, composed: DictConfig) -> ConfigError:
    """What to say of an interpolation that gives no value."""
    key = re.sub(r"\[(\d+)\]", r".\1", str(error.full_key or ""))
    first = str(error).splitlines()[0]
    text = first[0].lower() + first[1:]
    if "Recursive interpolation" in first:
        text = "the interpolation leads back to itself"
    elif first.startswith("RecursionError"):
        text = "the interpolation is nested too deeply"
    elif first.startswith("Interpolation key"):
        text = f"there is no key {first.split(chr(39))[1]!r} to take the value from"
    return refuse(key, text, _raw(composed, key), f"{key}=VALUE")


def _raw(composed: DictConfig, key: str) -> Any:
    """The text of an unresolvable value."""
    node: Any = OmegaConf.to_container(composed, resolve=False)
    for part in key.split("."):
        node = node[int(part)] if isinstance(node, list) else node.get(part) if isinstance(node, dict) else ...
    return node
