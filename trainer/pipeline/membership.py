"""Which pipeline trains a trial, noted in the trial's own folder: who is given that folder alone must know, too."""

import json
import os
from pathlib import Path

from ..run_folder import FROZEN, absolute, write_whole

FILE = "pipeline.json"


def join(trial: Path, run_dir: Path) -> None:
    """Note that a trial is trained by the pipeline in `run_dir`."""
    write_whole(trial / FILE, json.dumps({"folder": os.path.relpath(run_dir, trial)}) + "\n")


def pipeline_of(trial: Path) -> Path | None:
    """The folder of the pipeline that trains a run; None where there is none."""
    try:
        run_dir = absolute(trial / str(json.loads((trial / FILE).read_text())["folder"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return run_dir if (run_dir / FROZEN).exists() else None
