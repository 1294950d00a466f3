"""`leyden find batch_size`: the largest batch size that fits into memory."""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...base.atomic_file import write_atomically
from ...base.errors import refuse
from ...base.paths import shorten_path
from ...base.printable import printable
from ...compose.composer import Composer, run_dir_of
from ...hardware.discovery.memory import free_bytes
from ...hardware.topology import device_kind
from ...runs.folder import claim, freeze
from .probe import STEPS, ProbeFailed, run_probe
from .search import Probe, probes
from .settings import STEPS_ALONE, compose_here, divide_words, with_values

if TYPE_CHECKING:
    from ...compose.composer import ComposedRun
    from ...config.schema import Config

_WITHOUT = ("checkpoint", "early_stopping", "progress", "train_images", "confusion_matrix")
"""Callbacks of the config that a probe does without; others may keep memory."""
FOUND = "batch_size.json"


def find_batch_size(words: Sequence[str], config_dir: str | None) -> int:
    """Search, and print each probe and the result. Returns 0, or the exit code of a probe that has failed.

    Raises:
        ConfigError: a mistake in the words; nothing is started.
    """
    settings, overrides = divide_words("batch_size", words)
    composer = Composer(config_dir)
    run = compose_here(composer, "batch_size", overrides)
    unit = run.config.topology.workers * run.config.trainer.accumulate_grad_batches
    _check(settings, run.config, unit)
    start = min(settings["start"] or run.config.batch_size, settings["most"] or sys.maxsize)
    start = max(unit, start // unit * unit)
    usual, meant = run.config.batch_size, run.config.optimizer and run.config.optimizer.lr_batch_size
    run = with_values(composer, run, overrides, {**_changes(run.values), "batch_size": start})
    limit = _limit_gb(settings, run.config)
    claimed = claim(run_dir_of(run.composed), any(word.startswith("hydra.run.dir=") for word in overrides))
    print(f"output folder: {shorten_path(claimed.folder)}")
    print(_state_limit(limit, run.config), flush=True)
    found: list[Probe] = []
    tried = partial(_probe, composer, run, overrides, claimed.folder, limit)
    try:
        for probe in probes(tried, start, unit, settings["most"], settings["tolerance"]):
            found.append(probe)
            print(_line(probe), flush=True)
    except ProbeFailed as error:
        text = f"leyden: a probe has failed, and not for want of memory\n  {printable(str(error))}"
        print(text, file=sys.stderr)
        if not found:
            claimed.release()
        return error.code if error.code > 0 else 1
    except BaseException:
        if not found:
            claimed.release()
        raise
    largest = max((probe.taken for probe in found if probe.fits), default=None)
    about = {"largest": largest, "memory_gb": limit, "probes": [asdict(probe) for probe in found]}
    write_atomically(claimed.folder / FOUND, json.dumps(about, indent=2) + "\n")
    print("\n".join(_result(found, largest, unit, usual if meant is None else None)))
    return 0 if largest is not None else 1


def _check(settings: Mapping[str, Any], config: "Config", unit: int) -> None:
    """
    Raises:
        ConfigError: a value outside its range.
    """
    for name in ("start", "most"):
        value = settings[name]
        if value is not None and (not isinstance(value, int) or value < unit):
            workers = f"{config.topology.workers} workers x {config.trainer.accumulate_grad_batches} parts of a batch"
            raise refuse(name, f"must be a whole number of at least {unit}: {workers}", value, f"{name}={unit}")
    if not 0 <= settings["tolerance"] < 1:
        raise refuse("tolerance", "must be at least 0 and less than 1", settings["tolerance"], "tolerance=0.05")
    memory = settings["memory_gb"]
    if memory is not None and not memory > 0:
        raise refuse("memory_gb", "must be greater than 0", memory, "memory_gb=8")
    if memory is not None and device_kind(config.topology) != "cpu":
        text = "is a limit for workers on the CPU; a GPU is filled until it is out of memory"
        raise refuse("memory_gb", text, memory, "memory_gb=null")


def _changes(values: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from the training of the config: a few epochs of one step, nothing is evaluated or saved."""
    return {
        **STEPS_ALONE,
        "logger": {},
        "callbacks": {name: node for name, node in values["callbacks"].items() if name not in _WITHOUT},
        "trainer.max_epochs": STEPS,
        "trainer.max_steps": -1,
        "trainer.limit_train_batches": 1,
        "trainer.overfit_batches": 0.0,
    }


def _limit_gb(settings: Mapping[str, Any], config: "Config") -> float | None:
    """Limit of a worker's resident set in 2^30 bytes; None on a GPU, whose memory is the limit."""
    if device_kind(config.topology) != "cpu":
        return None
    if settings["memory_gb"] is not None:
        return float(settings["memory_gb"])
    free = free_bytes()
    if free is None:
        raise refuse("memory_gb", "must be set: the free memory of this machine is unknown", None, "memory_gb=8")
    return free / 2**30 / config.worker_processes


def _state_limit(limit: float | None, config: "Config") -> str:
    each = "the worker" if config.worker_processes == 1 else f"each of {config.worker_processes} workers"
    if limit is None:
        return f"a batch fits if {each} trains {STEPS} steps without an error of the GPU's allocator"
    return f"a batch fits if {each} trains {STEPS} steps with a resident set of at most memory_gb={limit:.3g}"


def _probe(
    composer: Composer, run: "ComposedRun", overrides: Sequence[str], folder: Path, limit: float | None, size: int
) -> Probe:
    from omegaconf import OmegaConf, open_dict, read_write

    run_dir = folder / f"probe-{size}"
    with read_write(run.composed), open_dict(run.composed):
        OmegaConf.update(run.composed, "batch_size", size)
    composer.validate_run(run.composed, overrides)
    run_dir.mkdir()
    freeze(run_dir, composer.freeze_in(run, run_dir))
    try:
        return run_probe(run_dir, size, limit)
    finally:
        with suppress(OSError):
            shutil.rmtree(run_dir)


def _line(probe: Probe) -> str:
    peak = "" if probe.peak_gb is None or not probe.fits else f"{probe.peak_gb:8.2f} GB"
    whole = f"  the training set has {probe.taken} samples" if 0 < probe.taken < probe.size else ""
    return f"batch_size={probe.size:<8} " + (f"fits {peak}{whole}" if probe.fits else f"does not fit: {probe.why}")


def _result(found: Sequence[Probe], largest: int | None, unit: int, usual: int | None) -> list[str]:
    if largest is None:
        less = "trainer.activation_checkpointing=true, trainer.precision=bf16-mixed or a smaller model need less"
        return [f"not even the smallest batch fits, batch_size={unit}", less]
    without = [probe.size for probe in found if not probe.fits]
    above = f"; {min(without)} does not fit" if without else "; larger ones were not tried"
    lines = [f"the largest that fits: batch_size={largest // unit * unit or largest}{above}"]
    if usual is not None and largest != usual:
        lines.append(f"optimizer.lr is meant for batch_size={usual}: optimizer.lr_batch_size={usual} scales it")
    return lines
