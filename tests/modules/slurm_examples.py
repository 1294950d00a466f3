"""Callbacks that hold runs, for tests/launch/test_slurm.py and others."""

import os
import time
from pathlib import Path
from typing import Any


class Holds:
    """Holds a run until a signal arrives: in the first start of its job at the first of `steps`, in the second at the
    second, ... and not at all in later ones, or outside Slurm.

    Args:
        steps: the step to hold after, or the first one beyond; 0: before any.
    """

    def __init__(self, steps: list[int]):
        start = int(os.environ.get("SLURM_RESTART_COUNT", "0")) if "SLURM_JOB_ID" in os.environ else len(steps)
        self.step = steps[start] if start < len(steps) else None

    def on_fit_start(self, state: Any) -> None:
        if self.step == 0:
            self._hold(state)

    def on_step_end(self, state: Any) -> None:
        if self.step is not None and state.step >= self.step:
            self._hold(state)

    def _hold(self, state: Any) -> None:
        self.step = None
        (state.run_dir / f"held-{state.fabric.global_rank}").touch()
        while state.stop_request.signal is None:
            time.sleep(0.02)


class HoldsOnce:
    """Holds each worker after a step until a signal arrives, once in a run."""

    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, state: Any) -> None:
        held = state.run_dir / f"held-{state.fabric.global_rank}"
        if state.step == self.step and not held.exists():
            held.touch()
            while state.stop_request.signal is None:
                time.sleep(0.02)


class WaitsAndMayFail:
    """Trials that begin when all have been submitted, and of which one fails.

    Args:
        sign: a file; they begin once it exists.
        seed: of the trial that fails.
    """

    def __init__(self, sign: str, seed: int):
        self.sign = Path(sign)
        self.seed = seed

    def on_fit_start(self, state: Any) -> None:
        (state.run_dir / "waits").touch()
        end = time.monotonic() + 120
        while state.stop_request.signal is None and not self.sign.exists():
            if time.monotonic() > end:
                raise TimeoutError("the sign to begin has not come")
            time.sleep(0.02)

    def on_step_end(self, state: Any) -> None:
        if state.config.seed == self.seed and state.step == 3:
            raise RuntimeError("on purpose")
