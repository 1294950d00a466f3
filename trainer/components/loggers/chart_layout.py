# pyright: reportAttributeAccessIssue=false, reportInvalidTypeForm=false
# (names of protobuf modules are created at import)
"""Layout of TensorBoard's custom scalars: what belongs together in one chart, what matters most first."""

import re
from collections.abc import Collection
from itertools import pairwise

from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.plugins.custom_scalar import layout_pb2, metadata

from .time_shares import PHASES, SHARES

_CHARTS = {
    "training and validation": {
        "accuracy": r"^(train|val|test)/acc$",
        "loss": r"^(train|val|test)/(loss|cost)$",
    },
    "time": {
        "share of a step by phase, in percent": SHARES,
        "milliseconds of a step by phase": rf"^time/({'|'.join(PHASES)})_ms$",
        "samples per second": r"^(leyden/)?samples_per_second$",
    },
    "workers": {
        "milliseconds a step that each worker works": r"^workers/own_ms/\d+$",
        "milliseconds a step that workers wait for transfers": r"^comm/exposed_ms$",
        "bytes a step and worker, in all and between nodes": r"^comm/(bytes|inter_node_bytes)$",
        "slowest worker, relative to the median": r"^workers/slowest_ratio$",
    },
}
"""Charts by category: a regular expression of tags, or the bounds of areas on top of each other."""


def layout(logged: Collection[str]) -> Summary:
    """The record of the charts that have values.

    Args:
        logged: names of metrics.
    """
    categories = [
        layout_pb2.Category(title=title, chart=charts)
        for title, described in _CHARTS.items()
        if (charts := [_chart(name, tags) for name, tags in described.items() if _has_values(tags, logged)])
    ]
    content = layout_pb2.Layout(category=categories).SerializeToString()
    tensor = TensorProto(dtype="DT_STRING", string_val=[content])
    described = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=metadata.PLUGIN_NAME))
    value = Summary.Value(tag=metadata.CONFIG_SUMMARY_TAG, tensor=tensor, metadata=described)
    return Summary(value=[value])


def _has_values(tags: str | tuple[str, ...], logged: Collection[str]) -> bool:
    if isinstance(tags, str):
        return any(re.search(tags, name) for name in logged)
    return set(tags) <= set(logged)


def _chart(title: str, tags: str | tuple[str, ...]) -> layout_pb2.Chart:
    if isinstance(tags, str):
        return layout_pb2.Chart(title=title, multiline=layout_pb2.MultilineChartContent(tag=[tags]))
    areas = [
        layout_pb2.MarginChartContent.Series(value=upper, lower=lower, upper=upper) for lower, upper in pairwise(tags)
    ]
    return layout_pb2.Chart(title=title, margin=layout_pb2.MarginChartContent(series=areas))
