"""What a person sees while a run trains."""

import re
import sys
from pathlib import Path

import pytest
from runs import PATIENCE_S, TINY, Freeze
from terminal import Terminal

from leyden.trainer.components.callbacks import progress
from leyden.trainer.entrypoints.start import start

BAR = r"epoch \d+ [━╸╺]+ +\d+/1080 \d:\d\d:\d\d [\d-]:[\d-]{2}:[\d-]{2}"


@pytest.mark.machine
@pytest.mark.slow
@pytest.mark.parametrize("columns", [pytest.param(80, marks=pytest.mark.campaign), 50])
def test_bar_keeps_steps_and_times_where_room_is_scarce(columns: int, tmp_path: Path) -> None:
    words = ["model=mlp", "dataset.image_size=8", "trainer.max_epochs=60", "trainer.log_every_n_steps=5", "logger=none"]
    command = [sys.executable, "-m", "leyden", *words, f"hydra.run.dir={tmp_path}/run"]
    looks: list[list[str]] = []
    with Terminal(command, columns=columns, rows=12) as terminal:
        while terminal.read(0.2):
            looks.append([line for line in terminal.screen.lines if line])
        assert terminal.process.wait(PATIENCE_S) == 0, terminal.screen.text
    last_two = [look[-2:] for look in looks if len(look) > 1 and re.fullmatch(BAR, look[-2])]
    assert len(last_two) > 5
    metrics = [below for _, below in last_two]
    assert all(below.startswith("train/loss ") and len(below) <= columns for below in metrics)
    assert any("val/acc" in below for below in metrics)
    lines = "".join(terminal.screen.text.split())
    missing = [epoch for epoch in range(1, 61) if f"epoch{epoch}of60train/loss" not in lines]
    assert not missing, "the bar has written over lines"
    assert "━" not in terminal.screen.text


def test_first_line_without_a_terminal(freeze: Freeze, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything has been logged, too."""
    monkeypatch.setattr(progress, "_LINE_S", 0.0)
    run_dir = freeze("run", *TINY, "trainer.max_epochs=25", "trainer.max_steps=20", "trainer.log_every_n_steps=1000")
    assert start(run_dir) == 0
    logged = (run_dir / "run.log").read_text().splitlines()
    lines = [line.split(" INFO ")[1] for line in logged if " INFO " in line]
    first = next(line for line in lines if line.startswith("epoch 1, step 1 of 20"))
    assert re.fullmatch(r"epoch 1, step 1 of 20  train/loss \d\.\d+  \d+ samples/s  \d:\d\d:\d\d left", first)
    assert any(line.startswith("epoch 2 of 25, ended at step 20  train/loss ") for line in lines), lines


def test_a_line_though_nothing_is_trained(freeze: Freeze, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LONGEST_SILENCE_S", 0.2)
    run_dir = freeze(
        "run", *TINY, "trainer.max_epochs=1", "+callbacks.sleeps={_target_: progress_examples.Sleeps, lines: 2}"
    )
    assert start(run_dir) == 0
    text = (run_dir / "run.log").read_text()
    assert len(re.findall(r"epoch 1, step 18 of 18  in callbacks and logging\n", text)) >= 2, text
