"""`leyden eval` and `leyden resume`: a frozen run, and the changes that resuming makes to it."""

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from ..base import limited_yaml
from ..base.atomic_file import write_atomically
from ..base.errors import ConfigError, Problem, nearest, refuse, spell_value
from ..base.process import restored_environment
from ..base.untrusted_file import DamagedFile
from ..config.evaluation_views import VARIABLE, EvaluationViews
from ..config.schema import DATA_FOLDERS, EVALUATION_DEVICE, Config
from ..config.target_policy.untrusted_runs import restrict_values
from ..config.targets import make_importable
from ..hardware.topology import resolve_device_kind
from ..runs.folder import CHANGES, FROZEN, absolute_paths, run_and_checkpoint
from ..runs.frozen import OpenedRun
from .checks import check_classes, check_values
from .provenance import Given, Origin
from .rules.resumable_keys import may_change, resumable_fields
from .validation import MISSING, schema_keys, unknown_key, validate_values

DEVICE_KIND = "topology.device.kind"


@dataclass
class FrozenRun:
    """A run folder, and the checkpoint in it that the user named."""

    folder: Path
    checkpoint: Path | None
    values: dict[str, Any]
    origin: Origin
    owners: frozenset[int] = frozenset()
    """User ids of the folder and of the files that the values were read from."""
    resolved: dict[str, Any] = field(default_factory=dict)
    """Values that depend on the host, resolved for this one; recorded with the other changes."""

    def validate_reopened(self, before_classes: Callable[[Config], None] | None = None) -> Config:
        """The config, if it can run on this machine.

        Args:
            before_classes: called once every check has passed that needs no class.

        Raises:
            ConfigError: with every mistake found.
        """
        try:
            config = self._of_this_version()
            check_values(config, resumed=True)
            if before_classes is not None:
                before_classes(config)
            make_importable(config)
            config = check_classes(config)
        except ConfigError as error:
            problems = [self._with_possible_remedy(problem) for problem in error.problems]
            raise ConfigError(*problems, context=error.context).with_places(self.origin.where) from None
        self._note_processes(config)
        return config

    def _of_this_version(self) -> Config:
        values = restrict_values(self.values, self.folder, self.owners)
        try:
            return validate_values(values)
        except ConfigError as error:
            raise ConfigError(*map(_of_another_version, error.problems), context=error.context) from None

    def _with_possible_remedy(self, problem: Problem) -> Problem:
        """The problem; where its remedy is another place of the data, one that a frozen run can take."""
        folders = {f"dataset.{name}" for name in DATA_FOLDERS}
        if problem.key not in folders or may_change(problem.key, self.values):
            return problem
        remedy = f"ln -s PATH {spell_value(problem.value)}, since arguments of this class stay as they are"
        return replace(problem, remedy=remedy)

    def _note_processes(self, config: Config) -> None:
        """Record changed processes."""
        now = config.processes
        if now is not None and now.model_dump() != self.values.get("processes"):
            self.values["processes"] = self.resolved["processes"] = now.model_dump()


def _of_another_version(problem: Problem) -> Problem:
    """A key that the frozen config lacks, or has under an old name; other problems as they are."""
    if problem.text != MISSING and problem.key in schema_keys():
        return problem
    text = f"{FROZEN} is of another version of Leyden: {problem.text.splitlines()[0]}"
    return replace(problem, text=text, remedy="that version, or a new run")


@dataclass
class Changes:
    """Changes requested by `leyden resume RUN key=value`."""

    dotted: dict[str, Any] = field(default_factory=dict)
    given: list[Given] = field(default_factory=list)


def open_run(named: str, given: Sequence[Given] = ()) -> FrozenRun:
    """The run that a user names by its folder or by a checkpoint.

    Raises:
        ConfigError: there is none, or its config cannot be read.
    """
    folder, checkpoint = run_and_checkpoint(named)
    try:
        with OpenedRun(folder) as opened:
            values = opened.values()
    except DamagedFile as error:
        text = f"its {error.path.name} cannot be read: {error.reason}"
        raise refuse("RUN", text, named, error.problems[0].remedy) from None
    except OSError as error:
        raise refuse("RUN", f"its {FROZEN} or {CHANGES} cannot be read: {error.strerror}", named) from None
    origin = Origin(given)
    origin.read(folder / FROZEN)
    return FrozenRun(folder, checkpoint, values, origin, frozenset(opened.owners))


def change(run: FrozenRun, changes: Changes) -> None:
    """Apply changes to a run's values, in memory.

    Raises:
        ConfigError: one of them is of a key that is part of the run's identity, or of none.
    """
    _refuse_identity(run, changes)
    for key, value in changes.dotted.items():
        *parents, last = key.split(".")
        node = run.values
        for depth, parent in enumerate(parents, 1):
            node = node.get(parent)
            if not isinstance(node, dict):
                raise refuse(".".join(parents[:depth]), "holds no keys in this run")
        # of the others one that is missing is younger than the run
        if last not in node and key.startswith("topology."):
            raise ConfigError(unknown_key(key, value, run.values)).with_places(run.origin.where)
        node[last] = deepcopy(value)
    before = _device_kind(run.values)
    resolve_device_kind(run.values)
    if _device_kind(run.values) != before:
        run.resolved[DEVICE_KIND] = _device_kind(run.values)


def _device_kind(values: Mapping[str, Any]) -> Any:
    node: Any = values
    for part in DEVICE_KIND.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


@contextmanager
def write_changes(run: FrozenRun, changes: Changes) -> Generator[None, None, None]:
    """Record the changes in resume.yaml; undone if the resumption is refused inside."""
    file = run.folder / CHANGES
    before = limited_yaml.read(file) if file.exists() else ""
    changed = {**changes.dotted, **run.resolved}
    if changed:
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        items = [*(limited_yaml.load(before) or []), {"at": now, "changed": changed}]
        write_atomically(file, yaml.safe_dump(items, sort_keys=False, allow_unicode=True))
    try:
        yield
    except ConfigError:
        if before:
            write_atomically(file, before)
        else:
            file.unlink(missing_ok=True)
        raise


@contextmanager
def evaluate_with(
    kind: str | None, views: EvaluationViews | None, others: Mapping[str, str]
) -> Generator[None, None, None]:
    """Device kind and views of images of the workers started inside; None: those of their config.

    Args:
        others: further environment variables of theirs.
    """
    given = {EVALUATION_DEVICE: kind, VARIABLE: None if views is None else views.variable, **others}
    with restored_environment():
        os.environ.update({name: value for name, value in given.items() if value is not None})
        yield


def read_changes(overrides: Sequence[str], config_dir: str | None = None) -> Changes:
    """The changes that overrides request.

    Raises:
        ConfigError: one of them may not be changed, or cannot be read.
    """
    from .composer import parse_overrides

    parsed = parse_overrides(overrides)
    changes = Changes(given=[Given(o.key_or_group, typed) for o, typed in zip(parsed, overrides, strict=True)])
    named = {override.key_or_group for override in parsed} & {"topology", "strategy"}
    composed_anew: list[str] = []
    for override, typed in zip(parsed, overrides, strict=True):
        key = override.key_or_group
        _refuse_unchangeable(override, typed, named)
        if key.split(".")[0] in named:
            composed_anew.append(typed)
        else:
            changes.dotted[key] = absolute_paths(override.value(), key.rpartition(".")[2])
    if composed_anew:
        changes.dotted.update(compose_nodes(sorted(named), composed_anew, config_dir))
    return changes


def _refuse_identity(run: FrozenRun, changes: Changes) -> None:
    for key, typed in changes.given:
        if key in changes.dotted and not may_change(key, run.values):
            raise ConfigError(_not_changeable(key, typed.partition("=")[2], typed))


def _refuse_unchangeable(override: Any, typed: str, named: set[str]) -> None:
    key, value = override.key_or_group, typed.partition("=")[2]
    if override.is_sweep_override() or override.is_delete():
        raise refuse(key, "a run is resumed with one value for each key", value, where=f"override '{typed}'")
    if key.startswith("strategy.") and "strategy" not in named:
        raise refuse(key, "the strategy changes only if it is named", value, f"strategy=NAME {typed}")


def compose_nodes(groups: Sequence[str], overrides: list[str], config_dir: str | None = None) -> dict[str, Any]:
    """Nodes of these groups, composed of overrides that choose them and change their keys."""
    from .composer import Composer
    from .composition.resolved_values import plain, without_hydra

    chosen = without_hydra(Composer(config_dir).compose_with_hydra(overrides))
    return {group: plain(chosen[group]) for group in groups}


def _not_changeable(key: str, value: Any, typed: str) -> Problem:
    close = nearest(key, resumable_fields())
    meant = f"; did you mean {close}?" if close else ""
    text = (
        f"is part of the run's identity and stays frozen{meant}\n"
        "resume changes trainer limits (max_epochs, max_steps, limit_*), where data is, topology and, where named, "
        "strategy"
    )
    remedy = f"{close}={value}" if close else f"a new run: leyden init_from=RUN {typed}"
    return Problem(key, text, value, remedy, f"override '{typed}'")
