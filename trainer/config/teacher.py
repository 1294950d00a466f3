"""The teacher of task=distillation: a run, a checkpoint in one, or a network that `leyden export` wrote. No torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ..base.errors import ConfigError, Problem, refuse
from ..base.paths import absolute
from ..runs.checkpoints import intact
from ..runs.folder import run_and_checkpoint
from .hub_weights import digest_of
from .schema import DatasetConfig, Model, PinnedWeights, Target, load
from .target_policy.untrusted_runs import foreign_targets

KEY = "task.teacher"
_TASK = "leyden.trainer.components.tasks.distillation.Distillation"
_REMEDY = f"{KEY}=RUN, a checkpoint in a run folder, or a .safetensors file of `leyden export`"


@dataclass(frozen=True)
class Teacher:
    """A trained network as data.

    Attributes:
        file: of its weights.
        network: the class and its arguments, without classes and image_shape.
        dataset: what it was trained on; None: the file does not say.
        image_shape, classes: of its training, where the file says so.
        python_path: folders of user-provided classes.
    """

    file: Path
    network: Target
    dataset: DatasetConfig | None = None
    image_shape: tuple[int, ...] | None = None
    classes: int | None = None
    python_path: list[str] = field(default_factory=list)


def find_teacher(task: Target) -> str | None:
    """The run or file that task=distillation names; None: it is pinned, or the task is another one."""
    source = task.arguments.get("teacher")
    return source if task.target == _TASK and isinstance(source, str) else None


def with_pinned_teacher(values: Mapping[str, Any]) -> dict[str, Any]:
    """A run's plain values, a teacher pinned by path and SHA-256.

    Raises:
        ConfigError: it cannot be read.
    """
    task = values.get("task") or {}
    source = task.get("teacher")
    if task.get("_target_") != _TASK or not isinstance(source, str):
        return dict(values)
    file = describe_teacher(source).file
    try:
        status = file.stat()
        digest = _digest(file, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise refuse(KEY, f"cannot be read: {error}", source, _REMEDY) from error
    pinned = PinnedWeights(source=source, path=str(file), sha256=digest)
    return {**values, "task": {**task, "teacher": pinned.model_dump()}}


@cache
def _digest(file: Path, size: int, changed_ns: int) -> str:
    """SHA-256, computed once for all trials of a sweep."""
    return digest_of(file)


def describe_teacher(source: str) -> Teacher:
    """The network of a run (its newest checkpoint), of a checkpoint or of an exported file.

    Raises:
        ConfigError: it holds none, or belongs to another user and names what only --trust allows.
    """
    return _describe_exported(source) if Path(source).suffix == ".safetensors" else _of_run(source)


def _of_run(source: str) -> Teacher:
    try:
        folder, file = run_and_checkpoint(source)
        config = load(folder)
    except ConfigError as error:
        raise ConfigError(*(_as_teachers(problem, source) for problem in error.problems)) from error
    except (ValueError, OSError) as error:
        raise refuse(KEY, f"its config cannot be read: {error}", source, _REMEDY) from error
    if config.doctor is not None or config.pipeline is not None:
        raise refuse(KEY, "this run trains no network of its own", source, f"{KEY}=TRIAL, a trial of the sweep")
    if config.model is None:
        text = f"{config.task.target.rpartition('.')[2]} of this run brings its own network (model=null)"
        raise refuse(KEY, text, source, f"{KEY}=RUN, a run whose model is named")
    found = [file] if file is not None else intact(folder)
    if not found:
        raise refuse(KEY, "this run has no checkpoint yet", source, _REMEDY)
    return Teacher(absolute(str(found[0])), _network(config.model), config.dataset, python_path=config.python_path)


def _as_teachers(problem: Problem, source: str) -> Problem:
    """A problem of the command's RUN, or of the run's config, as one of the teacher."""
    remedy = f"{KEY}={problem.remedy}" if problem.key == "RUN" and problem.remedy else problem.remedy
    text = problem.text if problem.key == "RUN" else f"its {problem.sentence()}"
    return Problem(KEY, text, source, remedy)


def _network(model: Model) -> Target:
    return Target.model_validate({"_target_": model.target, **model.arguments})


def _describe_exported(source: str) -> Teacher:
    file = absolute(source)
    about = _metadata(file, source)
    node = about.get("model")
    if not isinstance(node, dict) or not isinstance(node.get("_target_"), str):
        text = "does not say which network its weights are of"
        raise refuse(KEY, text, source, "leyden export RUN --format safetensors, or the run itself")
    for key, text, _ in foreign_targets("model", node):
        # a file has no owner whom one could trust
        raise refuse(KEY, f"{key} in it {text}", source, f"{KEY}=RUN, the run itself")
    shape, classes = about.get("train_shape"), about.get("classes")
    return Teacher(
        file,
        Target.model_validate(node),
        image_shape=tuple(shape) if isinstance(shape, list) and shape else None,
        classes=len(classes) if isinstance(classes, list) and classes else None,
    )


def _metadata(file: Path, source: str) -> dict[str, Any]:
    """What `leyden export` wrote about a network; {} where the file is somebody else's."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as opened:
            about = json.loads((opened.metadata() or {}).get("leyden", "{}"))
    except (SafetensorError, OSError, ValueError) as error:
        raise refuse(KEY, f"cannot be read: {error}", source, _REMEDY) from error
    return about if isinstance(about, dict) else {}
