"""A callback that keeps a run in its middle until Slurm ends it, for tests/test_slurm.py."""

import os
import time
from typing import Any


class Holds:
    """Holds a run after a step until it is told to stop: in the first start of its job after the first of `steps`, in
    the second after the second, ... and not at all in later ones, or outside Slurm.
    """

    def __init__(self, steps: list[int]):
        start = int(os.environ.get("SLURM_RESTART_COUNT", "0")) if "SLURM_JOB_ID" in os.environ else len(steps)
        self.step = steps[start] if start < len(steps) else -1

    def on_step_end(self, state: Any) -> None:
        if state.step == self.step:
            with open(state.run_dir / f"held-{self.step}-{state.fabric.global_rank}", "w"):
                pass
            while state.stop_request.signal is None:
                time.sleep(0.02)
