"""`leyden resume SWEEP`: the trials that did not finish, each in its own folder, from its checkpoint if it has one."""

from collections.abc import Mapping, Sequence, Set
from contextlib import ExitStack
from pathlib import Path

import yaml

from .checkpoint_names import saved
from .config import Config, frozen_values
from .errors import ConfigError, refuse
from .origin import shown
from .presence import leading, refuse_led
from .rerun import Changes, FrozenRun, change, opened, read_changes, written_changes
from .run_folder import SWEEP
from .run_status import RUNNING
from .slurm_jobs import STOP_REQUESTED
from .status import runs_in, statuses
from .sweep_results import BASIC, QUEUED, Metric, Trial, ended, monitored, print_table, stop_reason
from .trial_process import STOPPED, run_process, sigterm_as_exit

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
    runs = list(runs_in(folder))
    pipelines = {run: trials for run in runs if (trials := _trials_of(run)) is not None}
    trials = [run for run in runs if run not in pipelines]
    if not trials:
        raise refuse("SWEEP", "none of its trials was ever written down", shown(folder), "leyden -m ... again")
    for led in (folder, *runs):
        refuse_led(led)
    states = {trial: status.state for trial, status in zip(trials, statuses(trials), strict=True)}
    finished = [trial for trial in trials if states[trial] in _FINISHED]
    left_alone = [trial for trial in trials if states[trial] in RUNNING]
    shared, own = _divided(changes) if pipelines else (Changes(), changes)
    unfinished = [_judged(trial, own) for trial in trials if trial not in (*finished, *left_alone)]
    sharing = [_judged(run, shared)[0] for run in pipelines]
    print(f"{len(finished)} of {len(trials)} trials are done, {len(unfinished)} are resumed", flush=True)
    _tell_of_sweeper(folder)
    codes, jobs = dict.fromkeys(finished, 0), dict[Path, str]()
    try:
        with leading(folder), sigterm_as_exit(), ExitStack() as written:
            for run in sharing:
                written.enter_context(written_changes(run, shared))
            for run, _ in unfinished:
                written.enter_context(written_changes(run, own))
                (run.folder / STOP_REQUESTED).unlink(missing_ok=True)
            jobs = _queued(folder, [(run, config) for run, config in unfinished if config.launcher == "slurm"])
            codes |= dict.fromkeys(jobs, QUEUED)
            here = [run for run, config in unfinished if config.launcher != "slurm"]
            codes |= _run_pipelines(pipelines, {run.folder for run in here})
            codes |= _run([run for run in here if run.folder not in codes])
    except KeyboardInterrupt:
        return _stopped(folder, 130)
    except SystemExit as stop:
        return _stopped(folder, int(stop.code or 0))
    _print(folder, [opened(str(trial)) for trial in trials if trial.exists() and trial in codes], codes, jobs)
    return 1 if any(code not in (0, QUEUED) for code in codes.values()) else 0


def _divided(changes: Changes) -> tuple[Changes, Changes]:
    """What is to change in a pipeline, whose workers the topology means, and what in its trials."""
    topology = {key: value for key, value in changes.dotted.items() if key.split(".")[0] == "topology"}
    rest = {key: value for key, value in changes.dotted.items() if key not in topology}
    return Changes(topology, changes.given), Changes(rest, changes.given)


def _tell_of_sweeper(folder: Path) -> None:
    sweeper = yaml.safe_load((folder / SWEEP).read_text())["hydra"]["sweeper"]["_target_"]
    if sweeper != BASIC:
        print(f"{sweeper.rpartition('.')[2]} chooses no further trials: for those, a new sweep", flush=True)


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


def _trials_of(run_dir: Path) -> Sequence[Path] | None:
    """The trials whose models share the workers of this run; None where it trains a model of its own."""
    pipeline = frozen_values(run_dir).get("pipeline")
    return None if pipeline is None else [Path(trial) for trial in pipeline["trials"]]


def _run_pipelines(pipelines: Mapping[Path, Sequence[Path]], wanted: Set[Path]) -> dict[Path, int]:
    """Resume the pipelines of trials that are wanted. Returns the exit codes of the trials.

    Raises:
        SystemExit: one was told to stop, with its code.
    """
    codes: dict[Path, int] = {}
    for run_dir, trials in pipelines.items():
        if wanted.isdisjoint(trials):
            continue
        print(f"\npipeline: {shown(run_dir)}", flush=True)
        code = run_process(run_dir, "resume")
        if code in STOPPED:
            raise SystemExit(code)
        codes |= {trial: ended(trial, code)[0] for trial in trials if trial in wanted}
    return codes


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
    monitor = trials[0].values.get("callbacks", {}).get("checkpoint") if trials else None
    print_table(rows, Metric.of(monitor or {}), folder)


def _row(run: FrozenRun, code: int, job: str) -> Trial:
    metric = monitored(run.folder, run.values)
    return Trial(run.folder.name, _overrides(run.folder), code, metric, job, stop_reason(run.folder))


def _overrides(trial: Path) -> list[str]:
    """What Hydra's users find in the trial's folder."""
    try:
        given = yaml.safe_load((trial / ".hydra" / "overrides.yaml").read_text())
    except (OSError, yaml.YAMLError):
        return []
    return [str(override) for override in given] if isinstance(given, list) else []
