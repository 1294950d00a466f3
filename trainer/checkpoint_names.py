"""Where a run's checkpoints lie and what they are called. No torch: a launcher asks, too."""

import re
from pathlib import Path

LAST = "last.ckpt"
_NAME = re.compile(r"step=(\d+)\.ckpt")


def folder(run_dir: Path) -> Path:
    return run_dir / "checkpoints"


def path_of(run_dir: Path, step: int) -> Path:
    """The checkpoint of an optimizer step."""
    return path_in(folder(run_dir), step)


def path_in(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"step={step:08d}.ckpt"


def step_of(path: Path) -> int:
    """The optimizer step in a checkpoint's name; -1 for another name."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else -1


def saved(run_dir: Path) -> list[Path]:
    """The run's checkpoints, newest first."""
    found = [p for p in folder(run_dir).glob("step=*.ckpt") if step_of(p) >= 0]
    return sorted(found, key=step_of, reverse=True)
