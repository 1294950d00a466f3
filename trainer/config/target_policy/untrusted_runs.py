"""Run folders of other users: what their configs may name without `--trust`.

The rule of `allowed_targets` is for every config. Of what it allows, the config of another user's run may name the
names in Leyden's own YAML, and networks, optimizers, schedules and metrics of the installed packages. Whatever reads
the config of a run asks here, the workers too: between two reads the owner may have changed the file.
"""

import os
import pwd
import re
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from ...base.errors import Problem, raise_all, refuse
from ...base.paths import shorten_path
from ...base.process import restored_environment
from ...runs.folder import FROZEN, pipeline_of
from ...runs.frozen import owners_of
from ...runs.study import PRUNING
from ..lightning.base_classes import derives_from
from ..locate import locate

TRUST = "LEYDEN_TRUST"
"""Environment variable that passes `--trust` to the processes of a run."""
_PACKAGES = (
    "leyden.models.", "torch.nn.", "torch.optim.", "torchmetrics.aggregation.", "torchmetrics.classification.",
    "torchmetrics.clustering.", "torchmetrics.nominal.", "torchmetrics.regression.", "torchmetrics.retrieval.",
    "torchmetrics.segmentation.", "torchmetrics.wrappers.",
)  # fmt: skip
"""Where classes may be defined that no YAML of Leyden's names. Not all of torchmetrics: its metrics of text and images
load networks from paths that are arguments."""
_BASES = {"Module": "torch.nn.", "Optimizer": "torch.optim.", "LRScheduler": "torch.optim.", "Metric": "torchmetrics."}
_LOADING = ("checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "stage_dir")
"""Arguments of timm.create_model, files and addresses that are loaded; and of shards, a folder that is written."""

_Refused = tuple[str, str, Any]
"""Key, text and value."""
_ALLOWED = (
    "seed", "batch_size", "tags", "dataset", "augment", "model", "task", "strategy", "optimizer", "schedule",
    "callbacks", "composition", "processes", "trainer.max_epochs", "trainer.max_steps", "trainer.precision",
    "trainer.accumulate_grad_batches", "trainer.gradient_clip_val", "trainer.gradient_clip_algorithm",
    "trainer.limit_train_batches", "trainer.limit_val_batches", "trainer.limit_test_batches",
    "trainer.check_val_every_n_epoch", "trainer.log_every_n_steps", "trainer.fast_dev_run", "trainer.deterministic",
    "trainer.sync_batchnorm", "trainer.compile", "trainer.channels_last", "trainer.enable_progress_bar",
    "trainer.hang_timeout", "trainer.async_checkpoint", "trainer.val_check_interval", "trainer.num_sanity_val_steps",
    "trainer.overfit_batches", "trainer.max_time", "trainer.detect_anomaly", "trainer.exact_dropout",
    "trainer.benchmark", "trainer.matmul_precision", "trainer.activation_checkpointing", "trainer.log_grad_norm",
    "topology.launcher", "topology.nodes", "topology.devices_per_node", "topology.device", "topology.max_restarts",
    "topology.start_method", "topology.on_existing", "topology.server_placement", "topology.links",
    "topology.host", "topology.collectives",
)  # fmt: skip
"""Keys of a stranger's config that are read, with all below them: what they name is checked by itself."""
_DROPPED: Mapping[str, Any] = {
    "python_path": [], "logger": {}, "init_from": None, "model.pretrained": None, "trainer.profiler": None,
    "topology.kubernetes": {}, "topology.slurm": {}, "topology.fabric": {},  # its interface would be listened on
}  # fmt: skip
"""Keys of a stranger's config that have these values in place of his: an evaluation needs none of them."""


@contextmanager
def trust() -> Generator[None, None, None]:
    """Context in which this process, and what it starts, trusts run folders of other users."""
    with restored_environment():
        os.environ[TRUST] = "1"
        yield


def is_trusted() -> bool:
    """Whether the command was given --trust."""
    return os.environ.get(TRUST) == "1"


def other_owner(owners: Collection[int]) -> str | None:
    """The other user among the owners of a run's folder and its files, for a message; None: there is none."""
    others = sorted(uid for uid in owners if uid != os.geteuid())
    return f"{_user(others[0])} (uid {others[0]})" if others else None


def restrict_values(values: Mapping[str, Any], run_dir: Path, owners: Collection[int]) -> dict[str, Any]:
    """The values of a run's config that may be built. Of another user's run some keys are dropped.

    Of everybody's run the folders of `python_path` at and below the run folder are: code that was copied or unpacked
    with it is not the user's own because the files are.

    Args:
        owners: user ids of the folder and of the files that the values were read from.

    Raises:
        ConfigError: another user's run names what only --trust allows, each with its key.
    """
    path = values.get("python_path")
    if isinstance(path, list):
        values = {**values, "python_path": [folder for folder in path if not _is_within(folder, run_dir)]}
    owner = None if is_trusted() else other_owner(owners)
    if owner is None:
        return dict(values)
    remedy = f"the flag --trust, after reading {shorten_path(run_dir / FROZEN)} and the code that it names"
    raise_all(
        Problem(key, f"{text}. This run belongs to {owner}", value, remedy)
        for key, text, value in _find_refused(values)
    )
    kept = {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}
    for key, value in _DROPPED.items():
        group, _, name = key.partition(".")
        if not name and group in kept:
            kept[group] = value
        elif name and isinstance(kept.get(group), dict) and name in kept[group]:
            kept[group][name] = value
    return kept


def refuse_foreign(run_dir: Path, owners: Collection[int], verb: str) -> None:
    """Refuse a verb that writes into the run folder of another user.

    Raises:
        ConfigError: the folder or a file of its config is his, and --trust was not given.
    """
    owner = None if is_trusted() else other_owner(owners)
    if owner is not None:
        text = f"belongs to {owner}, and leyden {verb} writes into it, through links that he may have put there"
        raise refuse(
            "RUN", text, shorten_path(run_dir), f"the flag --trust, after reading {shorten_path(run_dir / FROZEN)}"
        )


def refuse_other_trials(pipeline: Path, trials: Sequence[Path]) -> None:
    """Refuse a pipeline that would train in runs which are not its trials.

    Raises:
        ConfigError: a trial is outside of the pipeline's sweep, is not recorded as its trial, or is another user's.
    """
    for trial in trials:
        owner, fault = None, ""
        if pipeline.resolve().parent not in trial.resolve().parents:
            fault = "lies outside of the folder of this pipeline's sweep"
        elif (found := pipeline_of(trial)) is None or found.resolve() != pipeline.resolve():
            fault = "does not name this pipeline in its pipeline.json"
        elif not is_trusted() and (owner := other_owner(owners_of(trial))) is not None:
            fault = f"belongs to {owner}"
        if fault:
            remedy = "the flag --trust" if owner else f"leyden resume {shorten_path(trial)}, if it is to be trained"
            raise refuse("pipeline.trials", f"this trial {fault}", shorten_path(trial), remedy)


def _is_within(folder: object, run_dir: Path) -> bool:
    """Whether a folder is the run's or below it, by its path or behind links."""
    path = Path(os.path.abspath(run_dir / str(folder)))
    return path.is_relative_to(os.path.abspath(run_dir)) or path.resolve().is_relative_to(run_dir.resolve())


def foreign_targets(key: str, node: Mapping[str, Any]) -> Iterator[_Refused]:
    """Key, text and value of each name in a node of a stranger's file that may not be built."""
    return (each for name, found in _targets(key, node) for each in _refused_node(name, found))


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "an unknown user"


def _find_refused(values: Mapping[str, Any]) -> Iterator[_Refused]:
    found = [(key, node) for key, node in _targets("", values) if key.partition(".")[0] not in _DROPPED]
    yield from (each for key, node in found for each in _refused_node(key, node))
    yield from _refused_keys("", values)


def _refused_keys(group: str, values: Mapping[str, Any]) -> Iterator[_Refused]:
    """Keys that are neither allowed nor dropped; null asks for nothing."""
    for name, value in values.items():
        key = f"{group}{name}"
        below = any(known.startswith(f"{key}.") for known in (*_ALLOWED, *_DROPPED))
        if key in _ALLOWED or key in _DROPPED or value is None:
            continue
        if below and isinstance(value, Mapping):
            yield from _refused_keys(f"{key}.", value)
        else:
            yield key, "is no key that a network is evaluated by", value
    if group == "" and isinstance(values.get("topology"), Mapping) and values["topology"].get("launcher") != "local":
        yield "topology.launcher", "starts processes elsewhere", values["topology"].get("launcher")


def _targets(key: str, value: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every node with a `_target_`, and its key."""
    if isinstance(value, Mapping):
        if "_target_" in value:
            yield key, value
        for name, item in value.items():
            yield from _targets(f"{key}.{name}" if key else str(name), item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _targets(f"{key}.{index}", item)


def _refused_node(key: str, node: Mapping[str, Any]) -> Iterator[_Refused]:
    target = node["_target_"]
    if not isinstance(target, str) or not _may_name(target):
        text = "is neither a class of Leyden's own YAML nor a network, optimizer, schedule or metric of torch's"
        yield f"{key}._target_", text, target
    for name in node:
        if name in _LOADING and node[name] is not None:
            yield f"{key}.{name}", "chooses what is read or written outside of the run's folder", node[name]
    for name in _fetching(target) if any(":" in str(value) for value in node.values()) else ():
        if ":" in str(node.get(name)):
            yield f"{key}.{name}", "is loaded from elsewhere than timm's own collection", node[name]


def _fetching(target: Any) -> Sequence[str]:
    """Arguments by which one of Leyden's networks is fetched from elsewhere, as its class declares."""
    of_ours = isinstance(target, str) and target.startswith("leyden.models.") and _may_name(target)
    return getattr(locate(target), "fetching_arguments", ()) if of_ours else ()


def _may_name(target: str) -> bool:
    """Whether a target is a name in Leyden's own YAML, or an installed class of the allowed kinds."""
    if target in _shipped_targets():
        return True
    if not target.startswith(_PACKAGES):
        return False
    try:
        found = locate(target)
    except Exception:  # there is no such class, or importing it fails
        return False
    return isinstance(found, type) and found.__module__.startswith(_PACKAGES) and derives_from(found, _BASES)


@cache
def _shipped_targets() -> frozenset[str]:
    """Every `_target_` in Leyden's YAML, and those that Leyden adds to a config.

    Loggers and sweepers are none: an evaluation has none, and as arguments they would write wherever the config says.
    """
    folder = Path(str(resources.files("leyden.conf")))
    texts = (file.read_text(encoding="utf-8") for file in folder.rglob("*.yaml"))
    named = {name for text in texts for name in re.findall(r"^\s*_target_:\s*([\w.]+)", text, re.MULTILINE)}
    added = ("leyden.trainer.data.task_loaders.TaskLoaders", PRUNING)
    return frozenset(name for name in (*named, *added) if not re.search(r"\.(loggers|sweep|prepare)\.", name))
