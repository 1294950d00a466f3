"""Terminal of a hopping run: a table below the lines of all processes; in the end, the lines."""

import sys
from pathlib import Path

import pytest
from folders import MODULES
from runs import PATIENCE_S
from terminal import Terminal

TRIALS, EPOCHS = 5, 1
SUB_EPOCHS = TRIALS * EPOCHS * 2
HEADING = "trial  worker 0  worker 1  progress"


@pytest.mark.slow
def test_live_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More trials than there are rows, and workers that write meanwhile. Each trial waits in its second half until the
    table has shown one there."""
    shown = tmp_path / "shown-30"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(MODULES))
    words = [
        "hydra/launcher=pipeline", "topology=cpu", "topology.devices_per_node=2", "dataset.image_size=8", "model=mlp",
        "model.hidden=[8]", "augment=none", f"trainer.max_epochs={EPOCHS}", "hydra.sweep.dir=mine", "logger=none",
        "batch_size=32", "callbacks.checkpoint.every_n_epochs=1000",
        "+callbacks.prints._target_=hopping_examples.Prints",
        f"+callbacks.waits={{_target_:progress_examples.WaitsUntilShown,steps:[30],folder:'{tmp_path}'}}",
        f"seed=range({TRIALS})",
    ]  # fmt: skip
    rows: set[str] = set()
    headings: set[str] = set()
    with Terminal([sys.executable, "-m", "leyden", "-m", *words], columns=80, rows=7) as terminal:
        while terminal.read(0.5):
            lines = terminal.screen.lines
            for at in [number for number, line in enumerate(lines) if line.startswith(HEADING)]:
                headings.add(lines[at])
                rows.update(lines[at + 1 :])
            if any(" of " in row and "█" in row and "░" in row and "●" in row for row in rows):
                shown.touch()
        assert terminal.process.wait(PATIENCE_S) == 0, terminal.screen.text

    assert shown.exists()
    assert any(f"of {SUB_EPOCHS} sub-epochs, 0 of {TRIALS} trials are finished" in row for row in rows)
    assert any("train/loss" in heading and "val/acc" in heading for heading in headings)

    left = terminal.screen.text.splitlines()
    spoken = [f"word {seed} {epoch} [red]" for seed in range(TRIALS) for epoch in range(1, EPOCHS + 1)]
    assert sorted(line for line in left if "word" in line) == sorted(spoken)
    assert not [line for line in left if "worker 0" in line or "●" in line or "half" in line or "sub-epochs, " in line]
    assert sum(line.startswith("trial ") and " is done (" in line for line in left) == TRIALS
    summary = next(number for number, line in enumerate(left) if line.startswith(f"pipeline: {SUB_EPOCHS} sub"))
    assert any("val/acc" in line and "status" in line for line in left[summary:])
    assert terminal.raw.count("\x1b[?25l") == terminal.raw.count("\x1b[?25h") == 1  # the cursor comes back
