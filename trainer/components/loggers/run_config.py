"""Name and config of a run, as services show them."""

from pathlib import Path
from typing import Any

from ...runs.frozen import read_values

_NOT_SHOWN = ("composition", "python_path", "processes")


def run_name(run_dir: str) -> str:
    """The last two parts of the run folder: DAY/TIME, SWEEP/TRIAL."""
    return "/".join(Path(run_dir).absolute().parts[-2:])


def run_config(run_dir: Path) -> dict[str, Any]:
    """The frozen config, nested."""
    return {str(name): value for name, value in read_values(run_dir).items() if name not in _NOT_SHOWN}


def flat_config(run_dir: Path) -> dict[str, Any]:
    """The frozen config by keys with dots."""
    return dict(_flat("", run_config(run_dir)))


def _flat(prefix: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [pair for name, item in value.items() for pair in _flat(f"{prefix}{name}.", item)]
    return [(prefix[:-1], value)]
