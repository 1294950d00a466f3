"""TensorBoard as `leyden view` opens it, in a browser: every dashboard of a sweep has data, at two widths."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from folders import ROOT
from runs import TINY

from leyden.trainer.cli.main import main

BENCHMARKS = ROOT / "benchmarks"
NARROW, WIDE = 1280, 1920
COVER = {"start": (NARROW,), "scalars": (NARROW,), "charts": (WIDE,), "images": (WIDE,), "hparams": (NARROW,)}
"""Widths at which CI opens each dashboard."""
ALL = {name: (NARROW,) if name == "hparams" else (NARROW, WIDE) for name in COVER}


@pytest.fixture
def dashboards(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    if not importlib.import_module("chromium").is_installed():
        pytest.skip("no chromium here")
    return importlib.import_module("dashboards")


@pytest.mark.slow
@pytest.mark.parametrize("widths", [COVER, pytest.param(ALL, marks=pytest.mark.campaign)], ids=["cover", "all"])
def test_no_dashboard_of_a_sweep_is_empty(
    dashboards: Any, widths: dict[str, tuple[int, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*TINY, "logger=default", "trainer.max_epochs=2", "trainer.enable_progress_bar=false",
             "trainer.log_every_n_steps=2", "strategy=ddp", "topology.devices_per_node=2",
             "optimizer.lr=0.1,1e12", "hydra.sweep.dir=sweep"]  # fmt: skip
    assert main(["-m", *words]) == 1, "the second trial diverges"
    empty: dict[tuple[str, int], list[int]] = {}
    with dashboards.viewed(tmp_path / "sweep") as address, dashboards.chromium() as page:
        for name, dashboard in dashboards.DASHBOARDS.items():
            for width in widths[name]:
                page.size(width, dashboards.HEIGHT)
                dashboards.opened(page, address, dashboard)
                if name == "hparams":
                    _has_a_row_for_each_trial(page, dashboard.charts)
                else:
                    empty[name, width] = dashboards.empty(page, dashboard)
    assert not any(empty.values()), empty


def _has_a_row_for_each_trial(page: Any, cells: str) -> None:
    """What varies and the metric by which trials are compared are in the window."""
    texts = page.value(f"all('{cells}').map(cell => cell.innerText)")
    assert {"optimizer.lr", "0 lr=0.1"} <= set(texts)
    assert any(text.startswith("1 lr=1") for text in texts), "the trial that failed"
    ends = page.value(f"all('{cells}').filter(c => c.innerText == 'val/acc').map(c => c.getBoundingClientRect().right)")
    assert 0 < max(ends) <= NARROW
