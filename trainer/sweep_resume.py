"""`leyden resume SWEEP`: the trials that did not finish, each in its own folder, from its checkpoint if it has one."""

from collections.abc import Mapping, Sequence, Set
from contextlib import ExitStack
from pathlib import Path

import yaml

from .checkpoint_names import saved
from .config import Config, trials_in
from .errors import ConfigError, refuse
from .origin import shown
from .pipeline.membership import join
from .pipeline.start import started
from .presence import leading, refuse_led
from .rerun import Changes, FrozenRun, change, opened, read_changes, written_changes
from .run_folder import SWEEP
from .run_status import RUNNING, RunStatus
from .slurm_jobs import STOP_REQUESTED
from .status import runs_in, statuses
from .sweep_queue import Queued, queue_runs
from .sweep_results import BASIC, QUEUED, WAITING, Metric, Trial, ended, monitored, print_table, stop_reason
from .trial_process import STOPPED, run_process, sigterm_as_exit

_HANG_TIMEOUT = "trainer.hang_timeout"
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
    pipelines = {run: trials for run in runs if (trials := trials_in(run))}
    trials = [run for run in runs if run not in pipelines]
    if not trials:
        raise refuse("SWEEP", "none of its trials was ever written down", shown(folder), "leyden -m ... again")
    for led in (folder, *runs):
        refuse_led(led)
    states = dict(zip(trials, statuses(trials), strict=True))
    finished = [trial for trial in trials if states[trial].state in _FINISHED]
    left_alone = [trial for trial in trials if states[trial].state in RUNNING]
    pipelines = {run: members for run, members in pipelines.items() if not set(members) <= set(finished)}
    for run, members in pipelines.items():
        _refuse_going_on(run, [states[trial] for trial in left_alone if trial in members])
    shared, own = _divided(changes) if pipelines else (Changes(), changes)
    unfinished = [_judged(trial, own) for trial in trials if trial not in (*finished, *left_alone)]
    sharing = [_judged(run, shared) for run in pipelines]
    print(f"{len(finished)} of {len(trials)} trials are done, {len(unfinished)} are resumed", flush=True)
    _tell_of_sweeper(folder)
    codes, queued = dict.fromkeys(finished, 0), Queued()
    try:
        with leading(folder), sigterm_as_exit(), ExitStack() as written:
            for run, changed in [*((run, shared) for run, _ in sharing), *((run, own) for run, _ in unfinished)]:
                written.enter_context(written_changes(run, changed))
                (run.folder / STOP_REQUESTED).unlink(missing_ok=True)
            queued = _queued(folder, sharing, pipelines, unfinished)
            codes |= dict.fromkeys(queued.jobs, QUEUED)
            codes |= _run_pipelines(pipelines, {run.folder for run, _ in unfinished if run.folder not in codes})
            codes |= _run([run for run, _ in unfinished if run.folder not in codes])
    except KeyboardInterrupt:
        return _stopped(folder, 130)
    except SystemExit as stop:
        return _stopped(folder, int(stop.code or 0))
    _print(folder, [opened(str(trial)) for trial in trials if trial.exists() and trial in codes], codes, queued)
    return 1 if any(code not in (0, QUEUED, WAITING) for code in codes.values()) else 0


def _refuse_going_on(pipeline: Path, trials: Sequence[RunStatus]) -> None:
    """
    Args:
        trials: those of it that are going on.

    Raises:
        ConfigError: the pipeline, or one of its trials by itself, is.
    """
    from .launch.slurm.queue import refuse_second

    refuse_second(pipeline)
    for trial in trials:
        text = f"its trial {trial.run} is {trial.state}: {trial.why}"
        raise refuse("SWEEP", text, shown(pipeline), f"leyden stop {trial.run}, and then again")


def _divided(changes: Changes) -> tuple[Changes, Changes]:
    """What is to change in a pipeline, whose workers the topology means, and what in its trials."""
    topology = {key: value for key, value in changes.dotted.items() if key.split(".")[0] == "topology"}
    rest = {key: value for key, value in changes.dotted.items() if key not in topology}
    # what the workers compute on is what their models are trained on
    if isinstance(topology.get("topology"), dict):
        rest["topology.device"] = topology["topology"]["device"]
    rest |= {key: value for key, value in topology.items() if key.startswith("topology.device.")}
    watched = {key: value for key, value in rest.items() if key == _HANG_TIMEOUT}
    return Changes({**topology, **watched}, changes.given), Changes(rest, changes.given)


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


def _queued(
    sweep: Path,
    sharing: Sequence[tuple[FrozenRun, Config]],
    pipelines: Mapping[Path, Sequence[Path]],
    trials: Sequence[tuple[FrozenRun, Config]],
) -> Queued:
    """Submit what Slurm starts: pipelines, and those trials that are in none."""
    left, waiting = [run.folder for run, _ in trials], list[Path]()
    for run, config in sharing:
        if config.launcher == "slurm":
            for trial in pipelines[run.folder]:
                join(trial, run.folder)  # one that was frozen by an older version does not know it
            waiting += [trial for trial in pipelines[run.folder] if trial in left]
    members = {trial for own in pipelines.values() for trial in own}
    alone = [run.folder for run, config in trials if config.launcher == "slurm" and run.folder not in members]
    runs = [*waiting, *alone]
    numbered = all(run.name.isdigit() and run.parent == sweep for run in runs)
    return queue_runs(sweep, {int(run.name) if numbered else at: run for at, run in enumerate(runs)}, "resume")


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
        code = started(run_dir)
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


def _print(folder: Path, trials: Sequence[FrozenRun], codes: dict[Path, int], queued: Queued) -> None:
    rows = [_row(run, codes[run.folder], queued.jobs.get(run.folder, "")) for run in trials]
    monitor = trials[0].values.get("callbacks", {}).get("checkpoint") if trials else None
    print_table(rows, Metric.of(monitor or {}), folder, queued.logs)


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
