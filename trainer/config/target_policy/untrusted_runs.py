"""Run folders of other users: what their configs may name without `--trust`.

The blocklist (`blocklist.verdict`) is for everybody's configs. A folder of somebody else gets an allowlist: the names
in Leyden's own YAML, and networks, optimizers, schedules and metrics of the installed packages. Whatever reads the
config of a run asks here, the workers too: between two reads the owner may have changed the file.
"""

import os
import pwd
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from ...base.errors import Problem, raise_all
from ...base.paths import shown
from ...runs.folder import CHANGES, FROZEN
from ...runs.study import PRUNING
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
_BASES = (
    ("Module", "torch.nn"),
    ("Optimizer", "torch.optim"),
    ("LRScheduler", "torch.optim"),
    ("Metric", "torchmetrics"),
)
_SUPPLIED = ("root_dir", "save_dir")
"""Arguments of loggers: folders that are written."""
_ADDRESSES = ("tracking_uri", "entity", "space_id")
"""Arguments of loggers: where a service is, or whose account of it is written to."""
_LOADING = ("checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay")
"""Arguments of timm.create_model: files and addresses that are loaded."""

_Refused = tuple[str, str, Any]
"""Key, text and value."""
_OF_SCRIPTS = {
    **dict.fromkeys(("setup", "sbatch", "srun", "wrapper"), "holds lines of a script"),
    **dict.fromkeys(("container_image", "container_mounts"), "chooses what the workers run in"),
}
"""Keys of topology.slurm that start other programs, and what is said of each."""


@contextmanager
def trust() -> Generator[None, None, None]:
    """Context in which this process, and what it starts, trusts run folders of other users."""
    before = os.environ.get(TRUST)
    os.environ[TRUST] = "1"
    try:
        yield
    finally:
        del os.environ[TRUST]
        os.environ.update({} if before is None else {TRUST: before})


def is_trusted() -> bool:
    """Whether the command was given --trust."""
    return os.environ.get(TRUST) == "1"


def foreign_owner(run_dir: Path) -> str | None:
    """The other user who owns a run's folder or its config, for a message; None: all is this user's own."""
    # the folder too: whoever owns it may exchange the files in it between two looks at them
    for file in (run_dir, run_dir / FROZEN, run_dir / CHANGES):
        uid = _uid(file)
        if uid is not None and uid != os.geteuid():
            return f"{_user(uid)} (uid {uid})"
    return None


def restricted(values: Mapping[str, Any], run_dir: Path) -> dict[str, Any]:
    """The values of a run's config that may be built: of another user's run without its `python_path`.

    Raises:
        ConfigError: another user's run names what only --trust allows, each with its key.
    """
    owner = None if is_trusted() else foreign_owner(run_dir)
    if owner is None:
        return dict(values)
    remedy = f"the flag --trust, after reading {shown(run_dir / FROZEN)} and the code that it names"
    raise_all(
        Problem(key, f"{text}. This run belongs to {owner}", value, remedy) for key, text, value in _refused(values)
    )
    return {**values, "python_path": []}


def foreign_targets(key: str, node: Mapping[str, Any]) -> Iterator[_Refused]:
    """Of a node in a stranger's file: key, text and value of each name that may not be built."""
    return (each for name, found in _targets(key, node) for each in _refused_node(name, found))


def _uid(file: Path) -> int | None:
    """The owner of a file or folder; None where there is none."""
    try:
        return file.stat().st_uid
    except OSError:
        return None


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "an unknown user"


def _refused(values: Mapping[str, Any]) -> Iterator[_Refused]:
    found = list(_targets("", values))
    yield from (each for key, node in found for each in _refused_node(key, node))
    yield from _refused_slurm(values)


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
        if (name in _SUPPLIED and key.startswith("logger.")) or name in _LOADING:
            yield f"{key}.{name}", "chooses what is read or written outside of the run's folder", node[name]
        if name in _ADDRESSES and key.startswith("logger.") and node[name] is not None:
            yield f"{key}.{name}", "chooses where results are sent", node[name]
    if str(target).endswith(".TimmModel") and ":" in str(node.get("name")):
        yield f"{key}.name", "is loaded from elsewhere than timm's own collection", node["name"]


def _refused_slurm(values: Mapping[str, Any]) -> Iterator[_Refused]:
    topology = values.get("topology")
    if not isinstance(topology, Mapping) or topology.get("launcher") != "slurm":
        return
    slurm = topology.get("slurm")
    for name, text in _OF_SCRIPTS.items():
        if isinstance(slurm, Mapping) and slurm.get(name):
            yield f"topology.slurm.{name}", text, slurm[name]


def _may_name(target: str) -> bool:
    """Whether a target is a name in Leyden's own YAML, or an installed class of the allowed kinds."""
    if target in _shipped():
        return True
    if not target.startswith(_PACKAGES):
        return False
    try:
        found = locate(target)
    except Exception:  # there is no such class, or importing it fails
        return False
    return isinstance(found, type) and found.__module__.startswith(_PACKAGES) and _has_base(found)


def _has_base(cls: type) -> bool:
    return any(
        base.__name__ == name and f"{base.__module__}.".startswith(f"{package}.")
        for base in cls.__mro__
        for name, package in _BASES
    )


@cache
def _shipped() -> frozenset[str]:
    """Every `_target_` in Leyden's YAML, and those that Leyden adds to a config."""
    folder = Path(str(resources.files("leyden.conf")))
    texts = (file.read_text(encoding="utf-8") for file in folder.rglob("*.yaml"))
    named = {name for text in texts for name in re.findall(r"^\s*_target_:\s*([\w.]+)", text, re.MULTILINE)}
    added = ("leyden.trainer.data.task_loaders.TaskLoaders", PRUNING)
    return frozenset({*named, *added})
