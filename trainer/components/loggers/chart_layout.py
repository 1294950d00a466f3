"""Layout of TensorBoard's custom scalars: what belongs together in one chart, what matters most first."""

_PHASES = ("data", "forward", "backward", "update", "communication", "other")

LAYOUT: dict[str, dict[str, list[str | list[str]]]] = {
    "training and validation": {
        "loss": ["Multiline", [r"^(train|val|test)/(loss|cost)$"]],
        "accuracy": ["Multiline", [r"^(train|val|test)/acc$"]],
    },
    "time": {
        "milliseconds of a step by phase": ["Multiline", [rf"^time/({'|'.join(_PHASES)})_ms$"]],
        "samples per second": ["Multiline", [r"^(leyden/)?samples_per_second$"]],
    },
    "workers": {
        "bytes a step and worker, in all and between nodes": ["Multiline", [r"^comm/(bytes|inter_node_bytes)$"]],
        "milliseconds a step that workers wait for transfers": ["Multiline", [r"^comm/exposed_ms$"]],
        "slowest worker, relative to the median": ["Multiline", [r"^workers/slowest_ratio$"]],
    },
}
"""Charts by category, as torch's SummaryWriter.add_custom_scalars takes them: regular expressions of tags. A chart
whose tags a run does not have stays empty."""

NO_CHART = "epoch"
"""A value of every log that is a count of time, not a result: it stays in metrics.csv."""
