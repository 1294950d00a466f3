"""Callback that holds a training at a step, for a test that kills it there."""

import os
import time
from typing import Any

WAITING = "waiting"
"""File in the run folder: the step was made."""


class WaitsAtStep:
    """At the step that the environment names, if it names one."""

    def on_step_end(self, state: Any) -> None:
        if str(state.step) == os.environ.get("WAITS_AT_STEP"):
            (state.run_dir / WAITING).touch()
            time.sleep(600)
