"""`leyden doctor --train`: the checks after the doctor's own measurements, within five minutes."""

import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ....base.atomic_file import write_atomically
from ....base.errors import refuse
from ....config.schema import Config
from ....hardware.topology import device_kind
from ....runs.summary import read_summary
from .checks import Check, exit_code
from .child_runs import ChildRuns, Command, Outcome
from .equality import CASES, Outcomes, overrides, plan_strategies, strategy_checks
from .fabric_state import adapter_checks, transport_checks
from .gpu_state import VERSIONS, gpu_checks
from .plan import FOLDER, Freeze, Plan, read_plan
from .recovery import plan_recovery, recovery_checks
from .report import report
from .speed import plan_speeds, speed_checks

SECONDS = 300.0
START = "leyden.trainer.entrypoints.start"
_REPORTER, _DEVICES = "reporter", "-devices.json"


def split(typed_overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Overrides of the topology, and the strategies to check: those of strategy=NAME,NAME, else all.

    Raises:
        ConfigError: a key of the strategy's, which each check sets for itself.
    """
    others: list[str] = []
    chosen: list[str] = []
    for typed in typed_overrides:
        key, _, value = typed.partition("=")
        if key.lstrip("+~") != "strategy":
            if key.lstrip("+~").startswith("strategy."):
                raise refuse(
                    key, "the doctor sets the options of the strategies that it checks", value, "strategy=NAME"
                )
            others.append(typed)
            continue
        for name in value.split(","):
            chosen += [case for case in CASES if case.partition(",")[0] == name] or [name]
    return others, chosen or list(CASES)


def plan_training(freeze: Freeze, config: Config, run_dir: Path, topology: Sequence[str], cases: Sequence[str]) -> None:
    """Freeze the trainings below the folder of a doctor's run.

    Args:
        freeze: a run.
        topology: overrides, as the user typed them.
    """
    plan, workers, kind = Plan(freeze, run_dir, topology), config.worker_processes, device_kind(config.topology)
    cases = cases if workers > 1 else []
    plan_strategies(plan, cases, workers)
    plan_recovery(plan, overrides("ddp" if workers > 1 else "single", workers), kind == "cuda")
    plan_speeds(plan, kind, workers)
    plan.write(cases)


def examine_training(config: Config, run_dir: Path, code: int, command: Command) -> int:
    """This host's part of the trainings that are planned for a doctor's run. The first host to begin compares the
    results.

    Args:
        code: of the doctor's own measurements, which come before.
        command: for a training over all hosts.

    Returns:
        0; 3 where a check has failed; 1 on another host whose part has failed; `code` where nothing is planned, or the
        measurements did not end.
    """
    plan = read_plan(run_dir)
    if plan is None or read_summary(run_dir).get("status") not in ("done", "slow"):
        return code
    cases, planned = plan
    runs = ChildRuns(run_dir, time.monotonic() + SECONDS)
    host = f"{socket.gethostname()}-{os.getpid()}"
    devices = [check.as_data() for check in (*gpu_checks(), *adapter_checks())]
    write_atomically(run_dir / FOLDER / f"{host}{_DEVICES}", json.dumps(devices) + "\n")
    reports = _is_first(run_dir)
    outcomes: dict[str, Outcome] = {}
    for run in planned:
        if reports or not run.on_one_device:
            outcomes[run.name] = runs.run(run, _alone if run.on_one_device else command, host)
    if not reports:
        return int(any(outcome.error is not None and not outcome.error.refused for outcome in outcomes.values()))
    checks = [*_device_checks(run_dir), *_checks(runs, config, outcomes, cases)]
    report(run_dir, checks)
    return exit_code(checks)


def _alone(folder: Path) -> list[str]:
    return [START, str(folder)]


def _is_first(run_dir: Path) -> bool:
    """Whether this host is the first to begin: it compares and reports."""
    try:
        os.close(os.open(run_dir / FOLDER / _REPORTER, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def _device_checks(run_dir: Path) -> Iterator[Check]:
    """The doctor's own measurements, each host's devices, and the fabric."""
    slow = read_summary(run_dir).get("status") == "slow"
    yield Check("devices and links", None, None, not slow, 0.0, "slow ones are named above" if slow else "")
    files = sorted((run_dir / FOLDER).glob(f"*{_DEVICES}"))
    found = {file.name.removesuffix(_DEVICES): json.loads(file.read_text()) for file in files}
    versions = {check["text"] for checks in found.values() for check in checks if check["check"] == VERSIONS}
    if len(versions) > 1:
        yield Check("the same versions on all hosts", None, None, False, 0.0, "; ".join(sorted(versions)))
    for host, checks in found.items():
        name = f"{host}, " if len(found) > 1 else ""
        yield from (Check(**{**check, "check": name + check["check"]}) for check in checks)
    yield from transport_checks(run_dir)


def _checks(runs: ChildRuns, config: Config, outcomes: Outcomes, cases: Sequence[str]) -> Iterator[Check]:
    yield from strategy_checks(outcomes, cases)
    yield from recovery_checks(outcomes)
    yield from speed_checks(runs, outcomes, device_kind(config.topology), config.worker_processes)
