"""`leyden resume SWEEP`: the trials that did not finish, each in its own folder, from its checkpoint if it has one."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import yaml

from .checkpoint_names import saved
from .config import Config
from .errors import ConfigError, refuse
from .origin import shown
from .presence import leading, refuse_led
from .rerun import Changes, FrozenRun, change, opened, read_changes, written_changes
from .run_status import RUNNING
from .slurm_jobs import STOP_REQUESTED
from .status import runs_in, statuses
from .sweep import QUEUED, STOPPED, Trial, monitored, print_table, run_process, sigterm_as_exit

_FINISHED = ("done", "stopped early")


def resume_sweep(folder: Path, overrides: Sequence[str], config_dir: str | None) -> int:
    """Run what is left of a sweep to its end.

    Args:
        overrides: as for the resumption of a run; they apply to every trial that is resumed.

    Returns:
        0, 1 where a trial failed, or the code of a trial that was told to stop.

    Raises:
        ConfigError: a trial would not start, or one is going on; nothing was started.
    """
    changes = read_changes(overrides, config_dir)
    trials = list(runs_in(folder))
    if not trials:
        raise refuse("SWEEP", "none of its trials was ever written down", shown(folder), "leyden -m ... again")
    for led in (folder, *trials):
        refuse_led(led)
    states = {trial: status.state for trial, status in zip(trials, statuses(trials), strict=True)}
    finished = [trial for trial in trials if states[trial] in _FINISHED]
    left_alone = [trial for trial in trials if states[trial] in RUNNING]
    unfinished = [_judged(trial, changes) for trial in trials if trial not in (*finished, *left_alone)]
    print(f"{len(finished)} of {len(trials)} trials are done, {len(unfinished)} are resumed", flush=True)
    codes, jobs = dict.fromkeys(finished, 0), dict[Path, str]()
    try:
        with leading(folder), sigterm_as_exit(), ExitStack() as written:
            for run, _ in unfinished:
                written.enter_context(written_changes(run, changes))
                (run.folder / STOP_REQUESTED).unlink(missing_ok=True)
            jobs = _queued(folder, [(run, config) for run, config in unfinished if config.launcher == "slurm"])
            codes |= dict.fromkeys(jobs, QUEUED)
            codes |= _run([run for run, config in unfinished if config.launcher != "slurm"])
    except KeyboardInterrupt:
        return _stopped(folder, 130)
    except SystemExit as stop:
        return _stopped(folder, int(stop.code or 0))
    _print(folder, [opened(str(trial)) for trial in trials if trial.exists() and trial in codes], codes, jobs)
    return 1 if any(code not in (0, QUEUED) for code in codes.values()) else 0


def _judged(trial: Path, changes: Changes) -> tuple[FrozenRun, Config]:
    try:
        run = opened(str(trial), changes.given)
        change(run, changes)
        return run, run.judged()
    except ConfigError as error:
        raise error.located(lambda key: "", f"trial {trial.name}") from None


def _queued(sweep: Path, trials: Sequence[tuple[FrozenRun, Config]]) -> dict[Path, str]:
    """Submit frozen trials to Slurm. Returns the numbers of their jobs."""
    if not trials:
        return {}
    from .launch.attempt import Job
    from .launch.slurm.trials import queue_trials

    numbered = all(run.folder.name.isdigit() for run, _ in trials)
    jobs = {
        int(run.folder.name) if numbered else number: Job(config, run.folder, "resume", None)
        for number, (run, config) in enumerate(trials)
    }
    return {jobs[number].run_dir: job_id for number, job_id in queue_trials(sweep, jobs).items()}


def _run(trials: Sequence[FrozenRun]) -> dict[Path, int]:
    """Run frozen trials one after the other. Returns their exit codes.

    Raises:
        SystemExit: one was told to stop, with its code.
    """
    codes: dict[Path, int] = {}
    for trial in trials:
        folder = trial.folder
        begun = bool(saved(folder)) or (folder / "summary.json").exists()
        print(f"\ntrial {folder.name}: {' '.join(_overrides(folder))}\nrun folder: {shown(folder)}", flush=True)
        codes[folder] = run_process(folder, "resume" if begun else "train")
        if codes[folder] in STOPPED:
            raise SystemExit(codes[folder])
    return codes


def _stopped(folder: Path, code: int) -> int:
    print(f"stopped; go on with: leyden resume {shown(folder)}", flush=True)
    return code


def _print(folder: Path, trials: Sequence[FrozenRun], codes: dict[Path, int], jobs: dict[Path, str]) -> None:
    rows = [_row(run, codes[run.folder], jobs.get(run.folder, "")) for run in trials]
    monitor = (trials[0].values.get("callbacks", {}).get("checkpoint") or {}).get("monitor") if trials else None
    print_table(rows, monitor or "val/acc", folder)


def _row(run: FrozenRun, code: int, job: str) -> Trial:
    return Trial(run.folder.name, _overrides(run.folder), code, monitored(run.folder, run.values), job)


def _overrides(trial: Path) -> list[str]:
    """What Hydra's users find in the trial's folder."""
    try:
        given = yaml.safe_load((trial / ".hydra" / "overrides.yaml").read_text())
    except (OSError, yaml.YAMLError):
        return []
    return [str(override) for override in given] if isinstance(given, list) else []
