"""Calls of a run's loggers: an error of a logger ends no run; the id of what it writes stays in the run folder."""

import json
import re
from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any, ParamSpec
from weakref import WeakKeyDictionary

from lightning.fabric.loggers import Logger

from ...base.atomic_file import write_atomically
from ...base.log import log
from ...base.printable import printable
from ...base.untrusted_file import read_json
from .contract import LoggerContract

Arguments = ParamSpec("Arguments")

FILE = "loggers.json"
"""File of the id of each logger's run at a service, or its version, by the logger's name in the config."""
_ARGUMENTS = ("run_id", "experiment_key", "id", "version")
"""Arguments by which loggers go on with what they have begun: MLflow's, Comet's, W&B's, those that count versions."""
_HARMLESS = re.compile(r"\w[\w.@+-]{0,127}")
"""An id: a version that is a text is the name of a folder."""
_recorders: "WeakKeyDictionary[Logger, Callable[[], None]]" = WeakKeyDictionary()
_warned: "WeakKeyDictionary[Logger, bool]" = WeakKeyDictionary()


def call_logger(
    logger: Logger, method: Callable[Arguments, object], *arguments: Arguments.args, **options: Arguments.kwargs
) -> None:
    """Call a method of the logger; an error of one that is not essential is a warning, the first of each logger."""
    if isinstance(logger, LoggerContract) and logger.essential:
        method(*arguments, **options)
        return
    try:
        method(*arguments, **options)
        recorder = _recorders.pop(logger, None)
        if recorder is not None:
            recorder()
    except Exception as error:
        if logger not in _warned:
            _warned[logger] = True
            text = "logger %s has failed, and the run goes on (said once): %s: %s"
            log.warning(text, type(logger).__name__, type(error).__name__, printable(str(error)))


def recorded_argument(run_dir: Path, name: str, constructor: Any) -> dict[str, Any]:
    """The argument by which a logger goes on with what it has begun in this run; {} if there is nothing."""
    value = _read_record(run_dir).get(name)
    argument = _argument(constructor)
    return {} if argument is None or value is None else {argument: value}


def record_when_used(run_dir: Path, name: str, logger: Logger) -> None:
    """Record the logger's version once it has logged something: services give it then."""
    if _argument(type(logger)) is None:
        return

    def record() -> None:
        version, known = logger.version, _read_record(run_dir)
        if _is_harmless(version) and known.get(name) != version:
            write_atomically(run_dir / FILE, json.dumps({**known, name: version}, indent=2) + "\n")

    _recorders[logger] = record


def _argument(constructor: Any) -> str | None:
    taken = signature(constructor).parameters
    return next((name for name in _ARGUMENTS if name in taken), None)


def _read_record(run_dir: Path) -> Mapping[str, Any]:
    try:
        found = read_json(run_dir / FILE)
    except (OSError, ValueError):
        return {}
    return {name: value for name, value in found.items() if _is_harmless(value)} if isinstance(found, dict) else {}


def _is_harmless(value: Any) -> bool:
    return type(value) is int or (isinstance(value, str) and _HARMLESS.fullmatch(value) is not None)
