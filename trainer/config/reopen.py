"""`leyden eval` and `leyden resume`: a frozen run, and the keys that resuming may change."""

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from ..base import limited_yaml
from ..base.atomic_file import write_atomically
from ..base.errors import ConfigError, Problem, nearest, refuse
from ..base.untrusted_file import DamagedFile
from ..hardware.topology import resolve_device_kind
from ..runs.folder import CHANGES, FROZEN, run_and_checkpoint
from ..runs.frozen import OpenedRun
from ..runs.renamed import with_new_names
from .checks import check_classes, check_values
from .evaluation_views import VARIABLE, EvaluationViews
from .provenance import Given, Origin
from .schema import EVALUATION_DEVICE, Config
from .target_policy.untrusted_runs import restricted
from .targets import make_importable
from .validation import unknown_key, validated

DEVICE_KIND = "topology.device.kind"
RESUMABLE = (
    "trainer.max_epochs",
    "trainer.max_steps",
    "trainer.limit_train_batches",
    "trainer.limit_val_batches",
    "trainer.limit_test_batches",
    "trainer.log_every_n_steps",
    "trainer.check_val_every_n_epoch",
    "trainer.val_check_interval",
    "trainer.max_time",
    "trainer.detect_anomaly",
    "trainer.enable_progress_bar",
    "trainer.hang_timeout",
    "dataset.threads",
    "dataset.num_workers",
    "dataset.prefetch",
    "dataset.check_files_s",
)
"""Keys besides topology and strategy that a resumed run may change: none of them changes what was learned so far."""


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

    def validated(self, before_classes: Callable[[Config], None] | None = None) -> Config:
        """The config, if it can run on this machine.

        Args:
            before_classes: called once every check has passed that needs no class.

        Raises:
            ConfigError: with every mistake found.
        """
        try:
            config = validated(restricted(self.values, self.folder, self.owners))
            check_values(config, resumed=True)
            if before_classes is not None:
                before_classes(config)
            make_importable(config)
            config = check_classes(config)
        except ConfigError as error:
            raise error.located(self.origin.where) from None
        self._note_processes(config)
        return config

    def _note_processes(self, config: Config) -> None:
        """Record changed processes, except in a run frozen before this node existed."""
        before, now = self.values.get("processes"), config.processes
        if before is not None and now is not None and now.model_dump() != before:
            self.values["processes"] = self.resolved["processes"] = now.model_dump()


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
    """Apply changes to a run's values, in memory."""
    for key, value in changes.dotted.items():
        *parents, last = key.split(".")
        node = run.values
        for depth, parent in enumerate(parents, 1):
            node = node.get(parent)
            if not isinstance(node, dict):
                raise refuse(".".join(parents[:depth]), "holds no keys in this run")
        # a run frozen before a key existed does not have it
        if last not in node and not key.startswith("strategy.") and key not in RESUMABLE:
            raise ConfigError(unknown_key(key, value, run.values)).located(run.origin.where)
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
def written_changes(run: FrozenRun, changes: Changes) -> Generator[None, None, None]:
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
def evaluated_with(
    kind: str | None, views: EvaluationViews | None, others: Mapping[str, str]
) -> Generator[None, None, None]:
    """Device kind and views of images of the workers started inside; None: those of their config.

    Args:
        others: further environment variables of theirs.
    """
    given = {EVALUATION_DEVICE: kind, VARIABLE: None if views is None else views.variable, **others}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update({name: value for name, value in given.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})


def read_changes(overrides: Sequence[str], config_dir: str | None = None) -> Changes:
    """The changes that overrides request.

    Raises:
        ConfigError: one of them may not be changed, or cannot be read.
    """
    from .compose import parsed_overrides

    parsed = parsed_overrides(overrides)
    changes = Changes(given=[Given(o.key_or_group, typed) for o, typed in zip(parsed, overrides, strict=True)])
    named = {override.key_or_group for override in parsed} & {"topology", "strategy"}
    composed_anew: list[str] = []
    for override, typed in zip(parsed, overrides, strict=True):
        key = override.key_or_group
        _refuse_unchangeable(override, typed, named)
        if key.split(".")[0] in named:
            composed_anew.append(typed)
        else:
            changes.dotted[key] = override.value()
    if composed_anew:
        changes.dotted.update(chosen_nodes(sorted(named), composed_anew, config_dir))
    return changes


def _refuse_unchangeable(override: Any, typed: str, named: set[str]) -> None:
    key, value = override.key_or_group, typed.partition("=")[2]
    if override.is_sweep_override() or override.is_delete():
        raise refuse(key, "a run is resumed with one value for each key", value, where=f"override '{typed}'")
    if key.startswith("strategy.") and "strategy" not in named:
        raise refuse(key, "the strategy changes only if it is named", value, f"strategy=NAME {typed}")
    if key.split(".")[0] not in ("topology", "strategy") and key not in RESUMABLE:
        raise ConfigError(_not_changeable(key, value, typed))


def chosen_nodes(groups: Sequence[str], overrides: list[str], config_dir: str | None = None) -> dict[str, Any]:
    """Nodes of these groups, composed of overrides that choose them and change their keys."""
    from .compose import Composer
    from .composition.resolved_values import plain, without_hydra

    chosen = without_hydra(Composer(config_dir).composed(overrides))
    return with_new_names({group: plain(chosen[group]) for group in groups})


def _not_changeable(key: str, value: Any, typed: str) -> Problem:
    close = nearest(key, RESUMABLE)
    meant = f"; did you mean {close}?" if close else ""
    text = (
        f"is part of the run's identity and stays frozen{meant}\n"
        "resume changes trainer limits (max_epochs, max_steps, limit_*), topology and, where named, strategy"
    )
    remedy = f"{close}={value}" if close else f"a new run: leyden init_from=RUN {typed}"
    return Problem(key, text, value, remedy, f"override '{typed}'")
