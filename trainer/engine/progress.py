"""progress.json: how far a run is, for readers outside of it (`leyden status`)."""

import json
import math
import os
from contextlib import suppress
from pathlib import Path
from time import monotonic, time
from typing import Any

from ..base.atomic_file import beside, naming, open_new
from ..base.storage import NO_SPACE
from ..core.state import RunState
from ..core.step_timer import Pace
from ..runs.summary import PROGRESS

_EVERY_S = 5.0


class ProgressFile:
    """Written by the first worker every few seconds.

    Not flushed to the disk: it is worth nothing after the machine's end, and training must not wait for it.
    """

    def __init__(self, state: RunState):
        first = state.fabric.is_global_zero and not state.config.trainer.fast_dev_run
        self._due = 0.0 if first else math.inf
        self._pace = Pace(state.step, state.config.batch_size)

    def look(self, state: RunState) -> None:
        """After every step."""
        now = monotonic()
        if now >= self._due:
            self._due = now + _EVERY_S
            self._write(state)

    def _write(self, state: RunState) -> None:
        total = state.total_steps
        content: dict[str, Any] = {
            "step": state.step,
            "total_steps": total,
            "epoch": state.epoch,
            **self._pace.lap(state.step, total)._asdict(),
            "time": time(),
            "session": state.session_record(),
        }
        _replace(state.run_dir / PROGRESS, json.dumps(content))


def _replace(file: Path, text: str) -> None:
    temporary = beside(file)
    try:
        with naming(file), open(temporary, "w", opener=open_new) as stream:
            stream.write(text + "\n")
        os.replace(temporary, file)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
