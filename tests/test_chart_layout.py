# pyright: reportAttributeAccessIssue=false
# (names of protobuf modules are created at import)
"""TensorBoard's custom scalars: each chart that a run has values for finds them, and `epoch` is no chart."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pool import Pool
from runs import TINY, Freeze
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2, metadata

from leyden.trainer.entrypoints.start import start

QUICK = [*TINY, "trainer.enable_progress_bar=false", "trainer.log_every_n_steps=2"]


def empty_charts(run: Path) -> tuple[set[str], set[str]]:
    """Titles of the charts without values, and all tags of scalars."""
    events = EventAccumulator(str(run))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    (entry,) = events.Tensors(metadata.CONFIG_SUMMARY_TAG)
    layout = layout_pb2.Layout.FromString(entry.tensor_proto.string_val[0])  # pyright: ignore[reportAttributeAccessIssue]
    charts = [chart for category in layout.category for chart in category.chart]
    assert len(charts) >= 6
    empty = {
        chart.title
        for chart in charts
        if not any(re.search(pattern, tag) for pattern in chart.multiline.tag for tag in tags)
    }
    return empty, tags


def test_one_worker_has_loss_accuracy_and_time(freeze: Freeze) -> None:
    run = freeze("run", *QUICK)
    assert start(run) == 0
    assert start(run, "resume") == 0
    empty, tags = empty_charts(run)
    assert "epoch" not in tags
    assert "epoch" in (run / "metrics.csv").read_text().splitlines()[0].split(",")
    assert len(empty) == 3
    assert all("worker" in title for title in empty), empty


@pytest.mark.slow
def test_with_two_workers_no_chart_is_empty(freeze: Freeze, pools: Callable[[int], Pool]) -> None:
    run = freeze("run", *QUICK, "strategy=ddp", "topology.devices_per_node=2")
    pools(2).run(run)
    empty, _ = empty_charts(run)
    assert not empty
