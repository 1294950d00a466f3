# pyright: reportAttributeAccessIssue=false
# (names of protobuf modules are created at import)
"""TensorBoard's custom scalars: each chart has values, and `epoch` is no chart."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pool import Pool
from runs import TINY, Freeze
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2, metadata

from leyden.trainer.components.loggers.time_shares import shares
from leyden.trainer.entrypoints.start import start

QUICK = [*TINY, "trainer.enable_progress_bar=false", "trainer.log_every_n_steps=2"]


def charts(run: Path) -> tuple[dict[str, bool], set[str]]:
    """Whether each chart has values, by its title in the layout's order, and all tags of scalars."""
    events = EventAccumulator(str(run))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    entry = events.Tensors(metadata.CONFIG_SUMMARY_TAG)[0]
    layout = layout_pb2.Layout.FromString(entry.tensor_proto.string_val[0])
    found: dict[str, bool] = {}
    for chart in (chart for category in layout.category for chart in category.chart):
        series = [tag for each in chart.margin.series for tag in (each.value, each.lower, each.upper)]
        lines = [any(re.search(pattern, tag) for tag in tags) for pattern in chart.multiline.tag]
        found[chart.title] = all(tag in tags for tag in series) and all(lines) and bool(series or lines)
    return found, tags


def test_one_worker_has_loss_accuracy_and_time(freeze: Freeze) -> None:
    run = freeze("run", *QUICK)
    assert start(run) == 0
    assert start(run, "resume") == 0
    found, tags = charts(run)
    assert "epoch" not in tags
    assert "epoch" in (run / "metrics.csv").read_text().splitlines()[0].split(",")
    assert list(found)[:3] == ["accuracy", "loss", "share of a step by phase, in percent"]
    assert len(found) == 5
    assert all(found.values()), found


def test_without_validation_the_charts_of_training_are_laid_out_at_the_end(freeze: Freeze) -> None:
    run = freeze("run", *QUICK, "trainer.limit_val_batches=0", "trainer.limit_test_batches=0", "callbacks=none")
    assert start(run) == 0
    found, _ = charts(run)
    assert "loss" in found
    assert all(found.values()), found


@pytest.mark.slow
def test_two_workers_stand_beside_each_other(freeze: Freeze, pools: Callable[[int], Pool]) -> None:
    run = freeze("run", *QUICK, "strategy=butterfly", "topology.devices_per_node=2")
    pools(2).run(run)
    found, tags = charts(run)
    assert len(found) == 9
    assert all(found.values()), found
    assert {"workers/own_ms/0", "workers/own_ms/1"} <= tags
    events = EventAccumulator(str(run))
    events.Reload()
    assert "butterfly/exchange" in events.Tags()["images"]


def test_shares_add_up() -> None:
    times = {"data": 1.0, "forward": 2.0, "backward": 4.0, "update": 1.0, "communication": 2.0, "other": 0.0}
    found = shares({f"time/{phase}_ms": value for phase, value in times.items()})
    assert list(found.values()) == [0.0, 10.0, 30.0, 70.0, 80.0, 100.0, 100.0]
    assert shares({"time/data_ms": 1.0}) == {}
