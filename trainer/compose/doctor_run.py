"""`leyden doctor`: from overrides to the frozen run that measures a topology, and to the trainings of its checks."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..base.errors import ConfigError, refuse
from ..base.paths import absolute
from ..config.job import freeze
from ..config.schema import Config, with_processes_node
from ..runs.folder import Claim, claim
from .checks import check_values
from .composer import Composer, parse_overrides, set_output_dir
from .validation import validate_values

RUN_DIR = "hydra.run.dir='outputs/${now:%Y-%m-%d}/${now:%H-%M-%S}-doctor'"


def freeze_doctor_run(composer: Composer, overrides: Sequence[str], write: str | None) -> tuple[Config, Claim]:
    """The config of a doctor run, and the new folder in which it is frozen.

    Args:
        overrides: of the topology, and hydra.run.dir.
        write: the file for the measured topology.

    Raises:
        ConfigError: an override outside the topology, or a topology that cannot run here.
    """
    _refuse_others(overrides)
    file = _writable(write) if write is not None else None
    named = any(override.startswith("hydra.run.dir=") for override in overrides)
    # any strategy in lockstep passes the checks of topology and strategy
    composed = composer.compose_with_hydra([*([] if named else [RUN_DIR]), *overrides, "strategy=ddp"])
    folder = absolute(str(composed.hydra.run.dir))
    try:
        values = _values(composer, composed, file)
        check_values(validate_values(values))
    except ConfigError as error:
        raise error.with_places(composer.origin(overrides).where) from None
    claimed = claim(folder, named)
    set_output_dir(composed, claimed.folder)
    return freeze(claimed.folder, with_processes_node(values)), claimed


def training_freezer(composer: Composer) -> Callable[[Path, Sequence[str]], str]:
    """The function that freezes a training in a folder, and returns what is wrong with its overrides."""

    def freeze_config(folder: Path, overrides: Sequence[str]) -> str:
        try:
            run = composer.run([*overrides, f"hydra.run.dir='{folder}'"])
        except ConfigError as error:
            return "; ".join(f"{problem.key}: {problem.text}" for problem in error.problems)
        folder.mkdir(parents=True)
        freeze(folder, composer.freeze_in(run, folder))
        return ""

    return freeze_config


def _values(composer: Composer, composed: Any, file: Path | None) -> dict[str, Any]:
    values = composer.freeze_values(composed)
    still = {**values["trainer"], "hang_timeout": None}  # a doctor run makes no steps
    doctor = {"write": str(file) if file else None}
    return {**values, "trainer": still, "doctor": doctor}


def _refuse_others(overrides: Sequence[str]) -> None:
    for override, typed in zip(parse_overrides(overrides), overrides, strict=True):
        key = override.key_or_group
        if key.split(".")[0] not in ("topology", "hydra"):
            text = "the doctor measures a topology, and reads no other key"
            raise refuse(key, text, typed.partition("=")[2], "leyden doctor topology=NAME", f"override '{typed}'")
        if override.is_sweep_override():
            raise refuse(key, "the doctor measures one topology at a time", typed.partition("=")[2], f"{key}=ONE_VALUE")


def _writable(write: str) -> Path:
    file = absolute(write)
    if file.is_dir() or not file.parent.is_dir():
        text = "this is a folder" if file.is_dir() else "there is no such folder"
        raise refuse("--write", text, write, "--write FOLDER/topology/NAME.yaml in an existing FOLDER/topology")
    return file
