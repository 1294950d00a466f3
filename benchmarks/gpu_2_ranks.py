"""GPU battery, call 2: several ranks of NCCL on one GPU. Every strategy = single; a killed worker; servers.

    python benchmarks/gpu_2_ranks.py [--rehearse] [--only TEXT] [--again]

LEYDEN_SHARE_GPU=1 puts worker r on GPU r % count, and NCCL takes each worker for a host of its own: its sockets, not
its NVLink path, carry the messages. With more GPUs than workers each has its own, and the same checks hold.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from gpu_battery import SECONDS, Checks, Outcome, Skipped, main
from gpu_sanitizer import sanitized
from gpu_trace import exposed_seconds

from leyden.trainer.compose.composer import Composer
from leyden.trainer.compose.doctor_run import training_freezer
from leyden.trainer.config.schema import load
from leyden.trainer.diagnostics.doctor.training.checks import Check
from leyden.trainer.diagnostics.doctor.training.child_runs import OUTPUT, ChildRuns, weights_of
from leyden.trainer.diagnostics.doctor.training.equality import (
    CASES,
    LIMIT,
    SHORT,
    distance,
    folder_of,
    network_of,
    overrides,
    plan_reference,
    strategy_checks,
)
from leyden.trainer.diagnostics.doctor.training.equality import Outcomes as Trained
from leyden.trainer.diagnostics.doctor.training.plan import Plan
from leyden.trainer.diagnostics.doctor.training.recovery import plan_recovery, recovery_checks
from leyden.trainer.diagnostics.doctor.training.run import START
from leyden.trainer.engine.step_profiler import FOLDER
from leyden.trainer.hardware.topology import SHARE

LAZY = ("butterfly", "butterfly, eager")
REHEARSED = ("ddp", *LAZY)
LONG = 300
HANG_TIMEOUT_S, HUNG_S = 10, 60
EXPOSED = ("ddp", "butterfly, eager")
PROFILED = 20
"""Steps of a log, which are profiled after as many."""
WIDE = ["model=mlp", "model.hidden=[4096,4096,4096]", "dataset.image_size=32", "batch_size=24"]
"""A network whose gradients take longer to send than its backward takes; an epoch has 48 steps."""
NORMED = [*SHORT, "model=resnet20", "dataset.image_size=8", "batch_size=48", "trainer.sync_batchnorm=true"]


def checks(device: str, rehearse: bool) -> Checks:
    """Strategies first, with two workers and then four."""
    os.environ[SHARE] = "1"
    made: dict[str, Callable[[], Outcome]] = {}
    for workers in (2,) if rehearse else (2, 4):
        for case in REHEARSED if rehearse else CASES:
            made[f"{case} = single, {workers} workers"] = partial(equal, device, workers, case)
        made[f"butterfly: lazy = eager, {workers} workers"] = partial(lazy, device, workers)
        made[f"butterfly: lazy = eager in {LONG} steps with sleeps, {workers} workers"] = partial(
            sleeping, device, workers, 40 if rehearse else LONG
        )
    made["killed and resumed = uninterrupted, 2 workers"] = partial(killed, device)
    made["butterfly with sync_batchnorm = single, 2 workers"] = partial(normed, device, 2)
    made["a hung worker is named, and its run ends: seconds"] = partial(hung, device)
    made["asgd: one worker and its server = single"] = partial(served, device)
    made["models that hop between 2 workers = trained alone"] = partial(hopped, device)
    for case in EXPOSED:
        made[f"{case}: exposed communication, part by which the profiler's differs"] = partial(exposed, device, case)
    made["compute-sanitizer: butterfly, 2 workers"] = partial(
        sanitized, device, [*overrides("butterfly", 2), *topology(device, 2)]
    )
    return made


def topology(device: str, workers: int) -> list[str]:
    return [f"topology.device.kind={device}", f"topology.devices_per_node={workers}"]


@cache
def folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="leyden-gpu-"))


def trained(device: str, workers: int, name: str, add: Callable[[Plan], None]) -> Trained:
    """What became of the trainings that are added to a plan."""
    plan = Plan(training_freezer(Composer()), folder() / name, topology(device, workers))
    add(plan)
    runs = ChildRuns(folder() / name, time.monotonic() + SECONDS)
    return {run.name: runs.run(run, lambda run_dir: (START, str(run_dir)), "gpu") for run in plan.runs}


@cache
def reference(device: str, workers: int, network: str) -> Trained:
    name = f"{workers}-{network}".replace(" ", "-")
    return trained(device, workers, name, lambda plan: plan_reference(plan, network, workers))


@cache
def compared(device: str, workers: int, case: str) -> Trained:
    name = f"{workers}-{case}".replace(" ", "-")
    found = trained(device, workers, name, lambda plan: plan.on_all(folder_of(case), overrides(case, workers)))
    return {**found, **reference(device, workers, network_of(case))}


def equal(device: str, workers: int, case: str) -> Outcome:
    return outcome(*strategy_checks(compared(device, workers, case), [case]))


def lazy(device: str, workers: int) -> Outcome:
    found = {name: run for case in LAZY for name, run in compared(device, workers, case).items()}
    return outcome([*strategy_checks(found, LAZY)][-1])


def sleeping(device: str, workers: int, steps: int) -> Outcome:
    """Streams that wait for each other by events alone, at random times."""
    sleeps = "+callbacks.sleeps._target_=gpu_examples.RandomSleeps"
    options = [*overrides("butterfly", workers), "trainer.max_epochs=99", f"trainer.max_steps={steps}", sleeps]

    def add(plan: Plan) -> None:
        for name in ("lazy", "eager"):
            plan.on_all(name, [*options, f"strategy.lazy={str(name == 'lazy').lower()}"])

    found = trained(device, workers, f"{workers}-sleeping", add)
    return Outcome(distance(*(weights_of(run.check()) for run in found.values())), 0.0, f"{steps} steps")


def killed(device: str) -> Outcome:
    found = trained(device, 2, "killed", lambda plan: plan_recovery(plan, overrides("ddp", 2), device == "cuda"))
    resumed, *waits = recovery_checks(found)
    for check in waits:
        if not check.ok:
            raise RuntimeError(f"{check.check}: {check.text}")
    return outcome(resumed)


def normed(device: str, workers: int) -> Outcome:
    """Two communicators in one backward: batch statistics and the butterfly's exchanges."""
    return against_single(device, workers, "normed", [*NORMED, "strategy=butterfly"], NORMED)


def served(device: str) -> Outcome:
    """A parameter server that steps for one worker."""
    options = [*SHORT, "model=lenet5", "dataset.image_size=16", "batch_size=48"]
    return against_single(device, 1, "asgd", [*options, "strategy=asgd"], options)


def hung(device: str) -> Outcome:
    """A collective that never ends: NCCL's is aborted, gloo's fails."""
    hangs = [f"trainer.hang_timeout={HANG_TIMEOUT_S}", "+callbacks.hangs._target_=gpu_examples.HangsAt"]
    run = trained(device, 2, "hung", lambda plan: plan.on_all("hung", [*overrides("ddp", 2), *hangs]))["hung"]
    text = " ".join(path.read_text(errors="replace") for path in run.folder.glob(f"*{OUTPUT}"))
    if run.error is None or "rank 1 on" not in text or "is behind" not in text:
        raise RuntimeError(f"the worker that hung was not named: {run.error}; {text[-400:]}")
    return Outcome(run.seconds, HUNG_S, f"hang_timeout={HANG_TIMEOUT_S}")


def hopped(device: str) -> Outcome:
    """Two models that two workers train in turns, each against the same one over the partitions in the same order."""
    sweep = folder() / "pipeline"
    options = [*SHORT, "trainer.max_steps=-1", "model=lenet5", "dataset.image_size=16", "batch_size=48"]
    words = ["-m", "hydra/launcher=pipeline", f"hydra.sweep.dir='{sweep}'", *topology(device, 2), *options, "seed=1,2"]
    with open(folder() / "pipeline.log", "w+b") as file:
        code = subprocess.call([sys.executable, "-P", "-m", "leyden", *words], stdout=file, stderr=subprocess.STDOUT)
        file.seek(0)
        if code:
            raise RuntimeError(f"exit code {code}: {file.read().decode(errors='replace')[-400:]}")
    trials = sorted(path for path in sweep.iterdir() if path.name.isdigit())
    worst = max(hopped_against_alone(device, trial, options) for trial in trials)
    return Outcome(worst, LIMIT, f"{len(trials)} models")


def hopped_against_alone(device: str, trial: Path, options: Sequence[str]) -> float:
    order = json.loads((trial / "summary.json").read_text())["partition_orders"]
    ordered = f"dataset.partition_order={json.dumps(order).replace(' ', '')}"
    words = [*options, f"dataset.partitions={len(order[0])}", ordered, f"seed={load(trial).seed}"]
    run = trained(device, 1, f"alone-{trial.name}", lambda plan: plan.on_one("alone", words))["alone"]
    return distance(weights_of(trial), weights_of(run.check()))


def exposed(device: str, case: str) -> Outcome:
    """comm/exposed_ms of some steps against the time in their traces in which NCCL's kernels run and no others do."""
    profiler = f"trainer.profiler={{first_step: {PROFILED + 1}, steps: {PROFILED}}}"
    logged = [f"trainer.log_every_n_steps={PROFILED}", f"trainer.max_steps={2 * PROFILED}", "trainer.max_epochs=9"]
    options = [*SHORT, *WIDE, f"strategy={case.partition(',')[0]}", *CASES[case][1], "trainer.precision=32-true"]
    words = [*options, *logged, profiler]
    run = trained(device, 2, f"exposed-{folder_of(case)}", lambda plan: plan.on_all("run", words))["run"]
    if device == "cpu":
        run.check()
        raise Skipped("gloo has no kernels")
    with open(run.check() / "metrics.csv", newline="") as file:
        ours = [float(row["comm/exposed_ms"]) for row in csv.DictReader(file) if row.get("comm/exposed_ms")][-1]
    traces = sorted((run.folder / FOLDER).glob("rank-*.json.gz"))
    profiled = 1e3 * sum(exposed_seconds(trace) for trace in traces) / len(traces) / PROFILED
    return Outcome(abs(ours / profiled - 1), 0.2, f"{ours:.2f} ms a step, {profiled:.2f} in the traces")


def against_single(device: str, workers: int, name: str, options: Sequence[str], single: Sequence[str]) -> Outcome:
    def add(plan: Plan) -> None:
        plan.on_all("found", options)
        plan.on_one("single", [*single, "strategy=single"])

    found = trained(device, workers, name, add)
    return Outcome(distance(*(weights_of(found[run].check()) for run in ("found", "single"))), LIMIT)


def outcome(check: Check) -> Outcome:
    """A doctor's check as one of the battery."""
    if check.ok is None:
        raise Skipped(check.text)
    if check.value is None:
        raise RuntimeError(check.text)
    return Outcome(check.value, check.limit, check.text)


if __name__ == "__main__":
    sys.exit(main(2, checks, __doc__))
