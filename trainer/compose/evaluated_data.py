"""Data of `leyden eval RUN dataset=...`; workers get it by their environment."""

import json
from collections.abc import Mapping

from ..base.errors import ConfigError, refuse
from ..base.paths import shorten_path
from ..config.schema import EVALUATION_DATASET, TASK_LOADERS
from ..config.target_policy.untrusted_runs import restrict_values
from ..config.targets import is_data_module
from ..runs.folder import absolute_paths
from .composer import parse_overrides
from .reopen import FrozenRun, compose_nodes

MOVABLE = ("dataset.root", "dataset.max_bad_samples")
"""Keys of the run's own dataset that may differ: the images stay what they are."""
_PREPARATION = ("image_size", "resize", "crop", "exif_orientation")
"""Keys by which image files are prepared for the network: those of the run, unless others are named."""


def with_data(run: FrozenRun, overrides: list[str], config_dir: str | None = None) -> dict[str, str]:
    """Give the run's dataset other keys, or the run another dataset, in memory.

    Args:
        overrides: of MOVABLE; or dataset=NAME and keys of it.
        config_dir: a folder of the user's YAML files.

    Returns:
        The environment variable from which the workers read it.

    Raises:
        ConfigError: there is no such dataset, or the run's or the other one is not read by Leyden itself. Or the run is
            another user's, and names what only --trust allows: its own dataset is built, too.
    """
    if not overrides:
        return {}
    restrict_values(run.values, run.folder, run.owners)
    own = run.values["dataset"]
    given = {each.key_or_group: each for each in parse_overrides(overrides)}
    for key, each in given.items():
        if each.is_sweep_override() or each.is_delete():
            typed = str(each.input_line).partition("=")[2]
            raise refuse(key, "a run is evaluated with one value for each key", typed, f"{key}=VALUE")
    if "dataset" in given:
        node = compose_nodes(["dataset"], overrides, config_dir)["dataset"]
        keys = [key for key in _PREPARATION if f"dataset.{key}" not in given]
        node |= {key: own[key] for key in keys if key in node and key in own}
        for each in (own, node):
            if each.get("_target_", TASK_LOADERS) == TASK_LOADERS:  # dataset=null
                raise _no_dataset(run, None)
    else:
        node = {**own, **{key.removeprefix("dataset."): each.value() for key, each in given.items()}}
    values = {"dataset": absolute_paths(node)}
    if "dataset" in given:
        values["schedule"] = None  # it may need more steps than an epoch of this data has
    run.values |= values
    return {EVALUATION_DATASET: json.dumps({"values": values, "own": own if "dataset" in given else None})}


def refuse_data_modules(run: FrozenRun, variables: Mapping[str, str]) -> None:
    """Refuse other data if it or the run's own is a LightningDataModule; their classes can be imported by now.

    Args:
        variables: as `with_data` has returned them.

    Raises:
        ConfigError: one of them is.
    """
    given = json.loads(variables.get(EVALUATION_DATASET, "{}"))
    for node in (given.get("own"), run.values["dataset"]) if given.get("own") else ():
        if is_data_module(node["_target_"]):
            raise _no_dataset(run, node["_target_"])


def _no_dataset(run: FrozenRun, target: str | None) -> ConfigError:
    text = (
        "must be a dataset, and that of the run, too: a LightningDataModule, and loaders of the task's own "
        "(dataset=null), are neither"
    )
    return refuse("dataset", text, target, f"leyden eval {shorten_path(run.folder)}")
