"""Differences and results of many runs, from their frozen configs and summaries. No torch, no Hydra."""

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..base import limited_yaml
from ..base.paths import shorten_path
from ..base.untrusted_file import DamagedFile, read_text
from .folder import CHANGES, FROZEN
from .frozen import read_values
from .status import DAMAGED, status_of
from .summary import read_summary
from .untrusted_yaml import is_harmless

_NOT_COMPARED = ("composition", "python_path", "processes", "doctor")
"""Top keys of a frozen config that say how it was composed or where it ran, not what was trained."""
_LOWER = ("loss", "error", "_ms", "bytes", "ece", "cost", "rmse", "mse", "mae")
"""Ends of the names of metrics of which less is better."""
_TOP_KEY = re.compile(r"(?<=\n)(?=[A-Za-z])")
"""The place before a key of a frozen config's own level."""


Blocks = Mapping[str, Mapping[str, Any]]
"""The config of a run by top key: the keys below it, with dots, and their values."""


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison; of a damaged one `why` names the file."""

    run: str
    state: str
    values: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the config, with dots."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The last value of each."""
    best: float | None = None
    """Best value of callbacks.checkpoint.monitor, at the best checkpoint that is kept."""
    steps: int | None = None
    samples_per_second: float | None = None
    bytes_a_step: float | None = None
    """Sent by a worker in a step."""
    checkpoint_bytes: int | None = None
    """Bytes of the newest checkpoint's file."""
    why: str = ""

    @property
    def monitor(self) -> tuple[str, str] | None:
        """Metric and mode by which the run ranks its checkpoints."""
        name = self.values.get("callbacks.checkpoint.monitor")
        mode = "min" if self.values.get("callbacks.checkpoint.mode") == "min" else "max"
        return (name, mode) if isinstance(name, str) else None


@dataclass(frozen=True)
class Comparison:
    """Runs ranked by a metric, the best first; runs without it, and damaged ones, are last."""

    metric: str
    mode: str
    runs: Sequence[ComparedRun]
    keys: Sequence[str]
    """Keys of the config in which they differ."""

    def value(self, run: ComparedRun) -> float | None:
        """The metric of a run: at its best checkpoint where it ranks them by this metric, else the last one."""
        if run.monitor == (self.metric, self.mode) and run.best is not None:
            return run.best
        return run.metrics.get(self.metric)


def compare_runs(folders: Sequence[Path], metric: str | None = None, mode: str | None = None) -> Comparison:
    """The comparison of the runs in these folders.

    Args:
        metric: to rank by; None: callbacks.checkpoint.monitor of the first run that has one.
        mode: max or min; None: that of the monitor, else by the metric's name.
    """
    configs: list[Blocks] = []
    runs = [_compare_run(folder, configs) for folder in folders]
    monitors = [run.monitor for run in runs if run.monitor is not None]
    if metric is None:
        metric, by_monitor = monitors[0] if monitors else ("val/acc", "max")
    else:
        by_name = "min" if metric.endswith(_LOWER) else "max"
        by_monitor = next((of for name, of in monitors if name == metric), by_name)
    found = Comparison(metric, mode or by_monitor, runs, _differing(configs))
    sign = -1.0 if found.mode == "max" else 1.0

    def order(run: ComparedRun) -> tuple[bool, float]:
        value = found.value(run)
        return (value is None, 0.0 if value is None else sign * value)

    return Comparison(found.metric, found.mode, sorted(runs, key=order), found.keys)


def _compare_run(run_dir: Path, configs: list[Blocks]) -> ComparedRun:
    """One run, whose config is appended to `configs`; the others are shown without one whose files are damaged."""
    name = shorten_path(run_dir)
    try:
        blocks, summary = _blocks(run_dir), read_summary(run_dir)
        values: dict[str, Any] = {}
        for block in blocks.values():
            values |= block
        state = str(summary.get("status"))
        if state not in ("done", "failed"):
            state = status_of(run_dir, {}).state
        best, sent = summary.get("best"), summary.get("communication")
        first = best[0] if isinstance(best, list) and best else {}
        configs.append(blocks)
        return ComparedRun(
            name,
            state,
            values,
            {key: float(value) for key, value in (summary.get("metrics") or {}).items() if _is_number(value)},
            _number(first.get("value") if isinstance(first, dict) else None),
            summary.get("steps"),
            _number(summary.get("samples_per_second")),
            _number(sent.get("bytes_a_step_and_worker") if isinstance(sent, dict) else None),
            _size(run_dir, summary.get("last_checkpoint")),
            str(summary.get("error") or "") if state == "failed" else "",
        )
    except DamagedFile as error:
        named = error.path.relative_to(run_dir) if error.path.is_relative_to(run_dir) else error.path
        return ComparedRun(name, DAMAGED, why=f"{named}: {error.reason}")
    except OSError as error:
        return ComparedRun(name, DAMAGED, why=f"{error.filename}: {error.strerror}")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _number(value: Any) -> float | None:
    return float(value) if _is_number(value) else None


def _size(run_dir: Path, checkpoint: Any) -> int | None:
    """Bytes of a checkpoint that the summary names, if it is in the folder."""
    if not isinstance(checkpoint, str) or "/" not in checkpoint or "\0" in checkpoint:
        return None
    try:
        return (run_dir / "checkpoints" / checkpoint.rpartition("/")[2]).stat().st_size
    except OSError:
        return None


def _blocks(run_dir: Path) -> Blocks:
    """The config of a run. A top key's text is parsed once for all runs: those of a sweep share most.

    Raises:
        DamagedFile: one of its files is damaged.
        OSError: it cannot be read.
    """
    if os.path.lexists(run_dir / CHANGES):
        return _flat_blocks(read_values(run_dir))
    text = read_text(run_dir / FROZEN)
    if not is_harmless(text):
        return _flat_blocks(read_values(run_dir))
    blocks: dict[str, Mapping[str, Any]] = {}
    for part in _TOP_KEY.split(text):
        name = part.partition(":")[0]
        block = {} if name in _NOT_COMPARED else _parse_yaml(part)
        if block is None:
            return _flat_blocks(read_values(run_dir))
        blocks[name] = block
    return blocks


@lru_cache(maxsize=8192)
def _parse_yaml(text: str) -> Mapping[str, Any] | None:
    """The flat keys of a YAML text with one top key; None if it is anything else, damaged or beyond the limits."""
    try:
        values = limited_yaml.load(text)
    except Exception:  # whatever is wrong with it, the whole file is read, and its error is the one to show
        return None
    if not isinstance(values, dict) or len(values) != 1 or not text.startswith(f"{next(iter(values))}:"):
        return None
    return dict(_flat("", values))


def _flat_blocks(values: Mapping[str, Any]) -> Blocks:
    return {str(name): dict(_flat(f"{name}.", value)) for name, value in values.items() if name not in _NOT_COMPARED}


def _flat(prefix: str, value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(f"{prefix}{key}.", item)
    else:
        yield prefix[:-1], value


def _differing(configs: Sequence[Blocks]) -> list[str]:
    """Keys that do not have one value in all configs, in their order."""
    found: list[str] = []
    for name in dict.fromkeys(name for config in configs for name in config):
        # by object: equal texts are one
        different = list({id(block): block for config in configs for block in (config.get(name, _NO_KEYS),)}.values())
        if len(different) > 1:
            keys = dict.fromkeys(key for block in different for key in block)
            found += [key for key in keys if any(_unlike(block, different[0], key) for block in different)]
    return found


_NO_KEYS: Mapping[str, Any] = {}
_ABSENT = object()


def _unlike(one: Mapping[str, Any], other: Mapping[str, Any], key: str) -> bool:
    a, b = one.get(key, _ABSENT), other.get(key, _ABSENT)
    # 1 and True are equal to Python; 1 and 1.0 are one setting
    return a != b or isinstance(a, bool) is not isinstance(b, bool)
