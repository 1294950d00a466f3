"""What a person sees while a run trains."""

import re
import sys
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from folders import MODULES
from rich.console import Console
from runs import PATIENCE_S, TINY, Freeze
from terminal import Terminal

from leyden.trainer.components.callbacks import progress
from leyden.trainer.components.callbacks.notebook_bar import in_notebook
from leyden.trainer.entrypoints.start import start

EPOCHS, STEPS = 15, 18
"""Of the run, and of each of them."""
BAR = rf"epoch \d+ [━╸╺]+ +(?P<step>\d+)/{STEPS * EPOCHS} (after )?\d:\d\d:\d\d [\d-]:[\d-]{{2}}:[\d-]{{2}}( left)?"


@pytest.mark.slow
@pytest.mark.parametrize("columns", [pytest.param(80, marks=pytest.mark.campaign), 50])
def test_bar_keeps_steps_and_times_where_room_is_scarce(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run waits in every second epoch until the end of the one before is on the screen."""
    monkeypatch.setenv("PYTHONPATH", str(MODULES))
    waits = [STEPS * epoch + 1 for epoch in range(1, EPOCHS, 2)]
    command = [
        sys.executable, "-m", "leyden", "model=mlp", "dataset.image_size=8", "logger=none",
        f"trainer.max_epochs={EPOCHS}", "trainer.log_every_n_steps=5", f"hydra.run.dir={tmp_path}/run",
        f"+callbacks.waits={{_target_:progress_examples.WaitsUntilShown,steps:{waits},folder:'{tmp_path}'}}",
    ]  # fmt: skip
    looks: list[list[str]] = []
    with Terminal(command, columns=columns, rows=12) as terminal:
        while terminal.read(0.2):
            lines = [line for line in terminal.screen.lines if line]
            bars = [(number, bar) for number, line in enumerate(lines) if (bar := re.fullmatch(BAR, line))]
            below = lines[bars[-1][0] + 1 :] if bars else []
            if below:
                looks.append(below)
                (tmp_path / f"shown-{int(bars[-1][1]['step']) // STEPS * STEPS + 1}").touch()
        assert terminal.process.wait(PATIENCE_S) == 0, terminal.screen.text
    assert all(len(line) <= columns for below in looks for line in below)
    assert all(below[0].startswith("train/loss ") for below in looks)
    assert any("val/acc" in line and "samples/s" in below[-1] for below in looks for line in below), "none is cut"
    lines = "".join(terminal.screen.text.split())
    missing = [epoch for epoch in range(1, EPOCHS + 1) if f"epoch{epoch}of{EPOCHS}train/loss" not in lines]
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


class _Display:
    """IPython's display function and the output that it returns; the kernel of a notebook has IPython."""

    kernel = object()

    def __init__(self) -> None:
        self.drawn: list[dict[str, str]] = []

    def __call__(self, data: dict[str, str], raw: bool, display_id: bool) -> "_Display":
        assert raw
        assert display_id
        return self

    def update(self, data: dict[str, str], raw: bool) -> None:
        self.drawn.append(data)


def test_a_bar_in_the_cell_of_a_notebook(freeze: Freeze, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = _Display()
    monkeypatch.setattr(progress, "_REFRESH_S", 0.0)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=shell))
    # without the wait for the first line
    monkeypatch.setattr(progress, "_LINE_S", 0.0)
    assert start(freeze("run", *TINY, "trainer.max_epochs=1")) == 0
    *drawn, last = shell.drawn
    pages = [data["text/html"] for data in drawn]
    assert len(pages) >= 18
    assert pages[0].startswith('<progress value="1" max="18"></progress> epoch 1, step 1 of 18<br>train/loss ')
    assert all("samples/s" in page for page in pages)
    assert last == {"text/plain": ""}, "nothing is left but the lines of the log"


def test_plain_ipython_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert not in_notebook()


def test_metrics_below_the_bar_are_whole() -> None:
    metrics = ["train/loss 0.1234", "train/acc 0.9", "val/loss 0.2", "val/acc_top5 0.99", "814 samples/s"]
    lines = progress._lines("  ".join(metrics), 40)  # pyright: ignore[reportPrivateUsage]
    assert lines == ["train/loss 0.1234  train/acc 0.9", "val/loss 0.2  val/acc_top5 0.99", "814 samples/s"]
    assert progress._lines("", 40) == [""]  # pyright: ignore[reportPrivateUsage]
    assert progress._lines("x" * 50, 40) == ["x" * 50]  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("columns", [80, 50])
def test_times_beside_the_bar_are_labelled(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "get_console", lambda: SimpleNamespace(width=columns))
    state: Any = SimpleNamespace(total_steps=18 * EPOCHS, step=9 * EPOCHS, epoch=12)
    bar = progress._Bar(state)  # pyright: ignore[reportPrivateUsage]
    console = Console(width=columns, file=StringIO(), force_terminal=False)
    console.print(bar.get_renderable())
    first = console.file.getvalue().splitlines()[0]  # pyright: ignore[reportAttributeAccessIssue]
    assert re.fullmatch(BAR, first.rstrip()), first
    assert (" after " in first, " left" in first) == (columns == 80,) * 2
