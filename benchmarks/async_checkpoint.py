"""How long a step waits for a checkpoint.

    python benchmarks/async_checkpoint.py [FOLDER]           # about a minute and a half

An MLP of 12.5 million parameters with SGD and momentum, 100 MB of state, saves after every tenth step, once while the
training waits and once while it goes on. A row is the median over the saves of all rounds but their first, which takes
new memory.
"""

import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from measurement import ROOT, write_subject
from rounds import in_turns

from leyden.trainer.cli.main import main
from leyden.trainer.core.state import RunState
from leyden.trainer.engine.checkpoints import checkpoint

EVERY, SAVES, ROUNDS = 10, 8, 2
OVERRIDES = [
    "model=mlp", "model.hidden=[3500,3500]", "dataset.image_size=8", "batch_size=64", "strategy=single", "topology=cpu",
    f"trainer.max_steps={EVERY * SAVES}", "trainer.enable_progress_bar=false", "trainer.check_val_every_n_epoch=1000",
    "trainer.max_epochs=1000", f"callbacks.checkpoint.every_n_steps={EVERY}",
    "callbacks.checkpoint.every_n_epochs=1000",
]  # fmt: skip
RESULT = ROOT / "benchmarks" / "results" / "async_checkpoint.json"
TEXT = """An MLP of 12.5 million parameters with SGD and momentum, 100 MB of state, saves after every tenth step.
Medians over the saves of all rounds but the first of each, which takes new memory. `wait`: what the step waits for its
save; `step`: the median of the nine steps between two saves, which a thread that writes may slow down."""
COLUMNS = {"wait": ("wait, ms", ".1f"), "share": ("share of synchronous", ".1%"), "step": ("step, ms", ".1f")}


@contextmanager
def timed(waits: list[float], steps: list[float]) -> Iterator[None]:
    """Records how long each save takes, and the time between two steps without one."""
    save = checkpoint.save
    before = [0.0]

    def measured(state: RunState) -> Path | None:
        began = perf_counter()
        try:
            return save(state)
        finally:
            waits.append(perf_counter() - began)
            before[0] = 0.0

    def step(self: Any, state: RunState) -> None:
        now = perf_counter()
        if before[0]:
            steps.append(now - before[0])
        before[0] = now
        on_step_end(self, state)

    from leyden.trainer.components.callbacks.checkpoint import Checkpoint

    on_step_end = Checkpoint.on_step_end
    checkpoint.save, Checkpoint.on_step_end = measured, step
    try:
        yield
    finally:
        checkpoint.save, Checkpoint.on_step_end = save, on_step_end


def run(in_background: str, folder: Path) -> tuple[list[float], list[float]]:
    waits: list[float] = []
    steps: list[float] = []
    run_dir = folder / "run"
    with timed(waits, steps):
        words = [*OVERRIDES, f"trainer.async_checkpoint={in_background}", f"hydra.run.dir={run_dir}"]
        assert main(words) == 0
    shutil.rmtree(run_dir)
    return waits[1:SAVES], steps


def measure(folder: Path) -> None:
    found = in_turns({"false": "false", "true": "true"}, ROUNDS, lambda how, _: run(how, folder))
    rows: list[dict[str, object]] = []
    synchronous = 0.0
    for how, what in (("false", "the training waits"), ("true", "written in the background")):
        wait = statistics.median(wait for waits, _ in found[how] for wait in waits)
        step = statistics.median(step for _, steps in found[how] for step in steps)
        synchronous = synchronous or wait
        rows.append({"what": what, "wait": 1000 * wait, "share": wait / synchronous, "step": 1000 * step})
        print(rows[-1])
    write_subject(RESULT, "Checkpoints: what a step waits for a save", TEXT, COLUMNS,
                  "python benchmarks/async_checkpoint.py", rows)  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else os.getcwd()) as folder:
        measure(Path(folder))
