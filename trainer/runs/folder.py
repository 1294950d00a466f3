"""Run folders: created once, never shared, never overwritten; and look-up by name."""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..base.atomic_file import write_atomically
from ..base.errors import ConfigError, nearest, refuse
from ..base.log import close_log
from ..base.paths import absolute, exists, shorten_path
from ..base.untrusted_file import read_json
from .lease_record import is_alive, lease_of

FROZEN = "config.yaml"
CHANGES = "resume.yaml"
"""What each `leyden resume` changed."""
SWEEP = "multirun.yaml"


@dataclass(frozen=True)
class Claim:
    """A folder that belongs to one run, and the parents created for it."""

    folder: Path
    made: tuple[Path, ...]

    def release(self) -> None:
        """Remove the folders created for a run that never started, unless another process leads one in them."""
        leader = lease_of(self.folder)
        if leader is not None and leader.pid != os.getpid() and is_alive(self.folder, leader):
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        for parent in self.made:
            try:
                parent.rmdir()
            except OSError:
                return


def claim(folder: Path, named_by_user: bool, key: str = "hydra.run.dir") -> Claim:
    """Create a folder that no other run has.

    A taken name gets a number appended if it is from the default pattern; a name chosen by the user is used as it is,
    and the folder must be empty.

    Raises:
        ConfigError: the user's folder is not empty, or the folder cannot be created.
    """
    missing = tuple(parent for parent in folder.parents if not parent.exists())
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        return Claim(_use(folder, key) if named_by_user else _first_free(folder), missing)
    except ConfigError:
        raise
    except OSError as error:
        text = f"the output folder cannot be written: {error.strerror or error}"
        raise refuse(key, text, str(folder), f"{key}=FOLDER that you may write to") from None


def _first_free(folder: Path) -> Path:
    number = 1
    while True:
        candidate = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        try:
            # mkdir is the lock: of two runs in the same second only one succeeds.
            candidate.mkdir()
            return candidate
        except FileExistsError:
            number += 1


def _use(folder: Path, key: str) -> Path:
    try:
        folder.mkdir()
    except FileExistsError:
        refuse_taken(folder, key)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(13, "Permission denied")
    return folder


def refuse_taken(folder: Path, key: str) -> None:
    """Raise ConfigError if the folder is not empty."""
    refuse_frozen(folder, key)
    if folder.is_dir() and any(folder.iterdir()):
        raise refuse(key, "this folder is not empty, and a run has its own", shorten_path(folder), f"{key}=NEW_FOLDER")
    if folder.exists() and not folder.is_dir():
        raise refuse(key, "this is a file", shorten_path(folder), f"{key}=NEW_FOLDER")


def refuse_frozen(folder: Path, key: str) -> None:
    """Raise ConfigError if the folder holds a run."""
    if (folder / FROZEN).exists():
        remedy = f"leyden resume {shorten_path(folder)}"
        raise refuse(key, "this folder holds a run already; another may be named", shorten_path(folder), remedy)


def freeze(folder: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Write config.yaml, the config that the workers of the run read. Returns the values in it."""
    frozen = absolute_paths(values)
    write_atomically(folder / FROZEN, yaml.safe_dump(frozen, sort_keys=False, allow_unicode=True))
    return frozen


def absolute_paths(values: Any, key: str = "") -> Any:
    """The values with every existing relative path made absolute, so that a run can start in any folder."""
    if isinstance(values, Mapping):
        return {name: absolute_paths(value, str(name)) for name, value in values.items()}
    if isinstance(values, list):
        return [absolute_paths(value, key) for value in values]
    is_path = key in ("root", "labels", "path", "init_from", "pretrained") or key.endswith(("_dir", "_path"))
    if is_path and isinstance(values, str) and exists(values):
        return str(absolute(values))
    return values


def is_sweep(named: str) -> bool:
    """Whether this is the folder of a sweep."""
    folder = absolute(named)
    return (folder / SWEEP).exists() and not (folder / FROZEN).exists()


def run_and_checkpoint(named: str) -> tuple[Path, Path | None]:
    """The run folder, and the checkpoint if one is named, of the path of either.

    Raises:
        ConfigError: it is neither; the message names the nearest run.
    """
    path = absolute(named)
    if path.is_file():
        for folder in path.parents[:2]:
            if (folder / FROZEN).exists():
                return folder, path
        raise refuse("RUN", "this file is not in a run folder", named, _nearest_run(path))
    folder = path.parent if path.name == "checkpoints" else path
    if (folder / FROZEN).exists():
        return folder, None
    if (folder / SWEEP).exists():
        trials = sorted(file.parent for file in folder.glob(f"*/{FROZEN}"))
        text = f"this is a sweep; its trials are {', '.join(trial.name for trial in trials) or 'none'}"
        raise refuse("RUN", text, named, shorten_path(trials[0]) if trials else "")
    text = f"this folder holds no run (no {FROZEN})" if path.exists() else "there is no such run folder or checkpoint"
    raise refuse("RUN", text, named, _nearest_run(path))


def _nearest_run(path: Path) -> str:
    """A suggestion: the run with the most similar name, else the newest."""
    places = (Path.cwd() / "outputs", path.parent)
    runs = _runs_below(places)
    if not runs:
        return "a folder under outputs/ that holds config.yaml; there is none yet"
    return nearest(shorten_path(path), [shorten_path(run) for run in runs]) or _newest(runs)


def newest_run() -> str:
    """The newest run under outputs/; "" if there is none."""
    runs = _runs_below([Path.cwd() / "outputs"])
    return _newest(runs) if runs else ""


def _runs_below(places: Iterable[Path]) -> set[Path]:
    files = [file for place in places for depth in range(1, 5) for file in place.glob("*/" * depth + FROZEN)]
    return {file.parent for file in files if file.parent.name != ".hydra"}  # Hydra's own, in every run


def _newest(runs: Iterable[Path]) -> str:
    return shorten_path(max(runs, key=lambda run: (run / FROZEN).stat().st_mtime))


FILE = "pipeline.json"


def record_pipeline(trial: Path, run_dir: Path) -> None:
    """Record that a trial is trained by the pipeline in `run_dir`."""
    write_atomically(trial / FILE, json.dumps({"folder": os.path.relpath(run_dir, trial)}) + "\n")


def pipeline_of(trial: Path) -> Path | None:
    """The folder of the pipeline that trains a run, or None."""
    try:
        run_dir = absolute(trial / str(read_json(trial / FILE)["folder"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return run_dir if (run_dir / FROZEN).exists() else None


def storage_of(run_dir: Path, in_pipeline: bool) -> Path:
    """The folder whose disk the processes of a run write on: its own, or that of the sweep whose trials they train."""
    return run_dir.parent if in_pipeline else run_dir


def remove_unstarted(run_dir: Path, verb: str) -> None:
    """Remove the folder of a run that never started."""
    if verb == "train":
        close_log()
        shutil.rmtree(run_dir, ignore_errors=True)
