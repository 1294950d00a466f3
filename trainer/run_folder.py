"""Run folders: made once, never shared, never written over; and found again."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .errors import ConfigError, nearest, refuse
from .origin import shown
from .whole_file import whole_file

FROZEN = "config.yaml"
SWEEP = "multirun.yaml"


@dataclass(frozen=True)
class Claim:
    """A folder that belongs to one run, and the folders that had to be made for it."""

    folder: Path
    made: tuple[Path, ...]

    def release(self) -> None:
        """Remove what was made for a run that never started."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for parent in self.made:
            try:
                parent.rmdir()
            except OSError:
                return


def absolute(path: str | Path) -> Path:
    """A path that the user typed, from the root, without `..`; links stay links."""
    return Path(os.path.abspath(Path(path).expanduser()))


def claim(folder: Path, named_by_user: bool, key: str = "hydra.run.dir") -> Claim:
    """Make a new folder that no other run has.

    Where the name comes from the default pattern, a taken one gets a number appended; a name that the user gave is
    taken as it is, if nothing is in it.

    Raises:
        ConfigError: something is in the user's folder, or the folder cannot be made.
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
            # Making the folder is the claim: of two runs in the same second only one succeeds.
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
    """Raise ConfigError where a run, or anything else, is in the folder already."""
    if (folder / FROZEN).exists():
        remedy = f"leyden resume {shown(folder)}, or another folder"
        raise refuse(key, "this folder holds a run already", shown(folder), remedy)
    if folder.is_dir() and any(folder.iterdir()):
        raise refuse(key, "this folder is not empty, and a run has its own", shown(folder), f"{key}=NEW_FOLDER")
    if folder.exists() and not folder.is_dir():
        raise refuse(key, "this is a file", shown(folder), f"{key}=NEW_FOLDER")


def write_whole(file: Path, text: str) -> None:
    """Write a text file so that it is there whole or not at all."""
    with whole_file(file, encoding="utf-8") as stream:
        stream.write(text)


def freeze(folder: Path, values: Mapping[str, Any]) -> None:
    """Write the config that the workers of a run obey."""
    write_whole(folder / FROZEN, yaml.safe_dump(absolute_paths(values), sort_keys=False, allow_unicode=True))


def absolute_paths(values: Any, key: str = "") -> Any:
    """The values with every relative path that exists made absolute, so that the run starts from any folder."""
    if isinstance(values, Mapping):
        return {name: absolute_paths(value, str(name)) for name, value in values.items()}
    if isinstance(values, list):
        return [absolute_paths(value, key) for value in values]
    is_path = key in ("root", "path", "init_from") or key.endswith(("_dir", "_path"))
    if is_path and isinstance(values, str) and Path(values).expanduser().exists():
        return str(absolute(values))
    return values


def is_sweep(named: str) -> bool:
    """Whether a user names the folder of a sweep."""
    folder = absolute(named)
    return (folder / SWEEP).exists() and not (folder / FROZEN).exists()


def run_and_checkpoint(named: str) -> tuple[Path, Path | None]:
    """The run folder, and the checkpoint, that a user names by either.

    Raises:
        ConfigError: it is neither; the message names the nearest run.
    """
    path = absolute(named)
    if path.is_file():
        for folder in path.parents[:2]:
            if (folder / FROZEN).exists():
                return folder, path
        raise refuse("RUN", "this file does not lie in a run folder", named, _nearest_run(path))
    folder = path.parent if path.name == "checkpoints" else path
    if (folder / FROZEN).exists():
        return folder, None
    if (folder / SWEEP).exists():
        trials = sorted(file.parent for file in folder.glob(f"*/{FROZEN}"))
        text = f"this is a sweep; its trials are {', '.join(trial.name for trial in trials) or 'none'}"
        raise refuse("RUN", text, named, shown(trials[0]) if trials else "")
    text = f"this folder holds no run (no {FROZEN})" if path.exists() else "there is no such run folder or checkpoint"
    raise refuse("RUN", text, named, _nearest_run(path))


def _nearest_run(path: Path) -> str:
    """A run that may have been meant: of a similar name, else the newest."""
    places = (Path.cwd() / "outputs", path.parent)
    runs = {file.parent for place in places for depth in range(1, 5) for file in place.glob("*/" * depth + FROZEN)}
    if not runs:
        return "a folder under outputs/ that holds config.yaml; there is none yet"
    close = nearest(shown(path), [shown(run) for run in runs])
    return close or shown(max(runs, key=lambda run: (run / FROZEN).stat().st_mtime))
