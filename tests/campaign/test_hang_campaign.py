"""The hang campaign: injected hangs are said soon and rightly, and runs that are only slow are left alone."""

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hang_gate
import pytest
from fault_run import STRATEGIES, FaultRun
from hang_gate import KINDS, PHASES
from pairwise import Cell, cover
from runs import HERE, TINY, Freeze, wait_until
from taken_cores import taken_cores

from leyden.trainer.base.heartbeat import PHASES as PHASE_NAMES

SAID_S = 15.0
HANGS = 20
CLEAN_RUNS = int(os.environ.get("LEYDEN_CLEAN_RUNS", "20"))
TRAINED_BY = [name for name in STRATEGIES if name != "pipeline"]
OPTIONS = [*TINY, "dataset=digits", "dataset.image_size=8", "trainer.enable_progress_bar=false"]
ALARM = "leyden: warning: no progress"


def exists(cell: Cell) -> bool:
    """Whether a worker of the strategy can hang so.

    A stopped process that trains alone can say nothing, and has nobody to wait for.
    """
    kind, phase, strategy = cell
    if kind == "loader":
        return phase == "data"
    return kind == "full pipe" or strategy != "single"


CELLS = cover((KINDS, tuple(PHASES), tuple(TRAINED_BY)), exists)[:HANGS]


def workers(strategy: str) -> list[str]:
    return [] if strategy == "single" else ["topology.devices_per_node=2"]


def run_that_hangs(cell: Cell, number: int, freeze: Freeze, scratch: Path) -> tuple[FaultRun, int]:
    """The run, and the worker that will hang."""
    kind, phase, strategy = cell
    rank = number % 2 if strategy != "single" else 0
    happened = scratch / "happened"
    environment = {
        hang_gate.KIND: kind, hang_gate.PHASE: phase, hang_gate.RANK: str(rank), hang_gate.FILE: str(happened),
    }  # fmt: skip
    words = [*OPTIONS, *STRATEGIES[strategy], *workers(strategy), "trainer.max_epochs=3"]
    if kind == "loader":
        here = HERE
        after = 300 if number % 2 else 800  # loader processes are started anew for each epoch
        stuck = ["dataset._target_=hang_examples.Stuck", f"+dataset.rank={rank}", f"+dataset.after={after}"]
        words += [*stuck, here, f"+dataset.once={happened}", f"dataset.num_workers={number % 2}"]
    else:
        words.append("+callbacks.hang._target_=hang_gate.Hang")
    run_dir = freeze(f"run{number}", *words)
    return FaultRun(run_dir, scratch, environment=environment), rank


def said(run: FaultRun, rank: int, phase: str) -> dict[str, Any]:
    """What the run says of its hang, and after how many seconds."""
    happened = Path(run.environment[hang_gate.FILE])
    wait_until(lambda: happened.exists() or run.process.poll() is not None, 180)
    assert run.process.poll() is None, run.output
    began = time.monotonic()
    while ALARM not in run.output and time.monotonic() - began < 4 * SAID_S:
        time.sleep(0.1)
    seconds = time.monotonic() - began
    line = next((line for line in run.output.splitlines() if ALARM in line), "")
    named = re.search(r"(?:rank|worker) (\d+) on (\S+) (?:is|was) [a-z ]+, in (.*?), (?:at|after) ", line)
    expected = (str(rank), os.uname().nodename, PHASE_NAMES[PHASES[phase]])
    right = named is not None and (named[1], named[2], named[3]) == expected
    return {"seconds": round(seconds, 1), "right": right and seconds < SAID_S, "line": line}


@pytest.mark.campaign
def test_injected_hangs_are_said_in_time_with_rank_host_and_phase(freeze: Freeze, tmp_path: Path) -> None:
    results: list[dict[str, Any]] = []
    for number, cell in enumerate(CELLS):
        run, rank = run_that_hangs(cell, number, freeze, tmp_path / str(number))
        run.start()
        try:
            results.append({"cell": "-".join(cell), **said(run, rank, cell[1])})
        finally:
            run.kill()
        print(json.dumps(results[-1]), flush=True)
    right = sum(result["right"] for result in results)
    print(f"{right} of {len(results)}", flush=True)
    assert len(results) == HANGS
    assert right >= HANGS - 1, [result for result in results if not result["right"]]


@pytest.mark.campaign
def test_slow_runs_raise_no_alarm(freeze: Freeze, tmp_path: Path) -> None:
    """Slow on all workers, every other run on a machine whose cores are all taken."""
    alarms: list[str] = []
    slow = {"start_s": 12, "batch_s": 2.5, "first_batch_s": 13, "end_s": 14, "save_s": 12, "pause_s": 12}
    words = ["+callbacks.slow._target_=hang_gate.Slow", *(f"+callbacks.slow.{key}={slow[key]}" for key in slow)]
    words += [
        "dataset._target_=hang_examples.Stuck",
        "+dataset.first_s=13",
        HERE,
    ]
    limits = ["trainer.limit_val_batches=5", "trainer.limit_test_batches=1", "trainer.max_epochs=1"]
    for number in range(CLEAN_RUNS):
        strategy = TRAINED_BY[number % len(TRAINED_BY)]
        run_dir = freeze(f"run{number}", *OPTIONS, *STRATEGIES[strategy], *workers(strategy), *words, *limits)
        run = FaultRun(run_dir, tmp_path / f"scratch{number}")
        with taken_cores((os.cpu_count() or 1) * (number % 2)):
            run.start()
            try:
                assert run.end(480) == 0, run.output
            finally:
                run.kill()
        alarms += [f"{strategy}: {line}" for line in run.output.splitlines() if ALARM in line]
        print(f"{number + 1} of {CLEAN_RUNS} clean runs, {len(alarms)} alarms", flush=True)
    assert not alarms


def test_the_cells_are_of_all_kinds_phases_and_strategies() -> None:
    values: Callable[[int], set[str]] = lambda index: {cell[index] for cell in CELLS}  # noqa: E731
    assert len(CELLS) == len(set(CELLS)) == HANGS
    assert (values(0), values(1), values(2)) == (set(KINDS), set(PHASES), set(TRAINED_BY))
