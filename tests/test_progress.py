"""What a person sees while a run trains."""

import re
import sys
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from runs import PATIENCE_S, TINY, Freeze
from terminal import Terminal

from leyden.trainer.components.callbacks import progress
from leyden.trainer.entrypoints.start import start

BAR = r"epoch \d+ [━╸╺]+ +\d+/1080 after \d:\d\d:\d\d [\d-]:[\d-]{2}:[\d-]{2} left"


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
    bars = [[number for number, line in enumerate(look) if re.fullmatch(BAR, line)] for look in looks]
    below = [look[numbers[-1] + 1 :] for look, numbers in zip(looks, bars, strict=True) if numbers]
    assert sum(map(bool, below)) > 5
    assert all(len(line) <= columns for lines in below for line in lines)
    assert all(lines[0].startswith("train/loss ") for lines in below if lines)
    assert any("val/acc" in line and "samples/s" in lines[-1] for lines in below for line in lines), "none is cut"
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


def test_metrics_below_the_bar_are_whole() -> None:
    metrics = ["train/loss 0.1234", "train/acc 0.9", "val/loss 0.2", "val/acc_top5 0.99", "814 samples/s"]
    lines = progress._lines("  ".join(metrics), 40)  # pyright: ignore[reportPrivateUsage]
    assert lines == ["train/loss 0.1234  train/acc 0.9", "val/loss 0.2  val/acc_top5 0.99", "814 samples/s"]
    assert progress._lines("", 40) == [""]  # pyright: ignore[reportPrivateUsage]
    assert progress._lines("x" * 50, 40) == ["x" * 50]  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("columns", [80, 50])
def test_times_beside_the_bar_are_labelled(columns: int) -> None:
    state: Any = SimpleNamespace(total_steps=1080, step=540, epoch=29)
    bar = progress._Bar(state)  # pyright: ignore[reportPrivateUsage]
    console = Console(width=columns, file=StringIO(), force_terminal=False)
    console.print(bar.get_renderable())
    first = console.file.getvalue().splitlines()[0]  # pyright: ignore[reportAttributeAccessIssue]
    assert re.fullmatch(BAR, first.rstrip()), first
