"""Callbacks that take their time."""

import time
from pathlib import Path
from typing import Any


class Sleeps:
    """After every validation, until the run's log has further lines about it."""

    def __init__(self, lines: int):
        self.lines = lines

    def on_validation_end(self, state: Any) -> None:
        log, end = state.run_dir / "run.log", time.monotonic() + 120
        while log.read_text().count("in callbacks and logging") < self.lines and time.monotonic() < end:
            time.sleep(0.01)


class WaitsUntilShown:
    """Waits after each of `steps` until the file `shown-STEP` exists.

    Args:
        folder: of the files.
    """

    def __init__(self, steps: list[int], folder: str):
        self.steps = steps
        self.folder = Path(folder)

    def on_step_end(self, state: Any) -> None:
        while state.step in self.steps and not (self.folder / f"shown-{state.step}").exists():
            time.sleep(0.02)
