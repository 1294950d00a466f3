"""Communication that nothing hides, in a trace of torch.profiler."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path

Interval = tuple[float, float]


def exposed_seconds(file: Path) -> float:
    """Seconds in which kernels of NCCL run on the device, and no others."""
    with gzip.open(file) as stream:
        events = [event for event in json.load(stream)["traceEvents"] if event.get("cat") == "kernel"]
    intervals = {"nccl": [], "other": []}
    for event in events:
        kind = "nccl" if "nccl" in event["name"].lower() else "other"
        intervals[kind].append((event["ts"], event["ts"] + event["dur"]))
    return 1e-6 * (_length([*intervals["nccl"], *intervals["other"]]) - _length(intervals["other"]))


def _length(intervals: Iterable[Interval]) -> float:
    """Of the union."""
    length, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        length += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return length
