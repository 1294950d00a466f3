"""`leyden resume SWEEP`: resumes the unfinished trials, each in its own folder, from its checkpoint if it has one."""

from collections.abc import Mapping, Sequence, Set
from contextlib import ExitStack
from pathlib import Path

import yaml

from ..base import limited_yaml
from ..base.errors import ConfigError, refuse
from ..base.paths import shorten_path
from ..base.printable import printable
from ..compose.reopen import Changes, FrozenRun, change, open_run, read_changes, write_changes
from ..config.schema import Config
from ..config.target_policy.untrusted_runs import refuse_foreign
from ..runs.checkpoints import saved_checkpoints
from ..runs.frozen import owners_of, trials_in
from ..runs.lease import hold_lease, refuse_running
from ..runs.slurm import STOP_REQUESTED
from ..runs.status import RUNNING, RunStatus, runs_in, statuses
from .hopping_launcher import run_hopping
from .results import QUEUED, WAITING, Metric, Trial, metric_of, print_table, stop_reason, trial_result
from .resume_study import N_TRIALS, reopen_study
from .slurm import SubmittedTrials, submit_trials
from .trial_failures import TrialFailures
from .trial_process import STOPPED, run_process, share_imports, sigterm_as_exit

_HANG_TIMEOUT = "trainer.hang_timeout"
_FINISHED = ("done", "stopped early", "pruned")


def resume_sweep(folder: Path, overrides: Sequence[str], config_dir: str | None) -> int:
    """Run the unfinished trials of a sweep to their end.

    Args:
        overrides: as for the resumption of a run; they apply to every trial that is resumed.

    Returns:
        0; 1 if a trial failed; or the code of a trial stopped by a signal.

    Raises:
        ConfigError: a trial cannot start, or one is running; nothing was started.
    """
    of_study = [override for override in overrides if override.startswith(f"{N_TRIALS}=")]
    changes = read_changes([override for override in overrides if override not in of_study], config_dir)
    refuse_foreign(folder, owners_of(folder), "resume")
    runs = list(runs_in(folder))
    pipelines = {run: trials for run in runs if (trials := trials_in(run))}
    trials = [run for run in runs if run not in pipelines]
    if not trials:
        raise refuse("SWEEP", "none of its trials was ever frozen", shorten_path(folder), "leyden -m ... again")
    for led in (folder, *runs):
        refuse_running(led)
    states = dict(zip(trials, statuses(trials), strict=True))
    study = reopen_study(folder, of_study)
    finished = [trial for trial in trials if states[trial].state in _FINISHED]
    running = [trial for trial in trials if states[trial].state in RUNNING]
    pipelines = {run: members for run, members in pipelines.items() if not set(members) <= set(finished)}
    for run, members in pipelines.items():
        _refuse_running(run, [states[trial] for trial in running if trial in members])
    shared, own = _split_changes(changes) if pipelines else (Changes(), changes)
    unfinished = [_validate(trial, own) for trial in trials if trial not in (*finished, *running)]
    sharing = [_validate(run, shared) for run in pipelines]
    print(f"{len(finished)} of {len(trials)} trials are done, {len(unfinished)} are resumed", flush=True)
    codes, submitted = dict.fromkeys(finished, 0), SubmittedTrials()
    try:
        with hold_lease(folder), sigterm_as_exit(), share_imports(), ExitStack() as written:
            if study is not None and study.study is not None:
                study.study.journal.repair()
            for run, changed in [*((run, shared) for run, _ in sharing), *((run, own) for run, _ in unfinished)]:
                written.enter_context(write_changes(run, changed))
                (run.folder / STOP_REQUESTED).unlink(missing_ok=True)
            submitted = _submit(folder, sharing, pipelines, unfinished)
            codes |= dict.fromkeys(submitted.jobs, QUEUED)
            codes |= _run_pipelines(pipelines, {run.folder for run, _ in unfinished if run.folder not in codes})
            codes |= _run([run for run, _ in unfinished if run.folder not in codes])
    except KeyboardInterrupt:
        return _stopped(folder, 130)
    except SystemExit as stop:
        return _stopped(folder, int(stop.code or 0))
    ended = [open_run(str(trial)) for trial in trials if trial.exists() and trial in codes]
    if study is not None and _all_ended(trials, codes, changes):
        return study.go_on([_row(run, codes[run.folder], "", study.metric) for run in ended])
    _print(folder, ended, codes, submitted)
    return 1 if any(code not in (0, QUEUED, WAITING) for code in codes.values()) else 0


def _all_ended(trials: Sequence[Path], codes: Mapping[Path, int], changes: Changes) -> bool:
    """Whether a study can go on with these trials, else a line says why not."""
    if changes.dotted:
        print("the study goes on with `leyden resume`, without changes: its trials are of one config", flush=True)
        return False
    if any(codes.get(trial) in (None, QUEUED, WAITING) for trial in trials):
        print("the study goes on with `leyden resume`, once all of these trials have ended", flush=True)
        return False
    return True


def _refuse_running(pipeline: Path, trials: Sequence[RunStatus]) -> None:
    """
    Args:
        trials: of it, running by themselves.

    Raises:
        ConfigError: the hopping run, or one of its trials by itself, is running.
    """
    from ..launch.slurm.submit import refuse_if_queued

    refuse_if_queued(pipeline)
    for trial in trials:
        text = f"its trial {trial.run} is {trial.state}: {trial.why}"
        raise refuse("SWEEP", text, shorten_path(pipeline), f"leyden stop {trial.run}, and then again")


def _split_changes(changes: Changes) -> tuple[Changes, Changes]:
    """Changes of a hopping run, whose workers the topology describes, and changes of its trials."""
    topology = {key: value for key, value in changes.dotted.items() if key.split(".")[0] == "topology"}
    rest = {key: value for key, value in changes.dotted.items() if key not in topology}
    # the trials' device is that of the workers
    if isinstance(topology.get("topology"), dict):
        rest["topology.device"] = topology["topology"]["device"]
    rest |= {key: value for key, value in topology.items() if key.startswith("topology.device.")}
    hang = {key: value for key, value in rest.items() if key == _HANG_TIMEOUT}
    return Changes({**topology, **hang}, changes.given), Changes(rest, changes.given)


def _validate(trial: Path, changes: Changes) -> tuple[FrozenRun, Config]:
    try:
        run = open_run(str(trial), changes.given)
        change(run, changes)
        config = run.validate_reopened()
        refuse_foreign(run.folder, run.owners, "resume")
        return run, config
    except ConfigError as error:
        raise error.with_places(lambda key: "", f"trial {trial.name}") from None


def _submit(
    sweep: Path,
    sharing: Sequence[tuple[FrozenRun, Config]],
    pipelines: Mapping[Path, Sequence[Path]],
    trials: Sequence[tuple[FrozenRun, Config]],
) -> SubmittedTrials:
    """Submit the hopping runs and trials that Slurm starts."""
    left, waiting = [run.folder for run, _ in trials], list[Path]()
    for run, config in sharing:
        if config.launcher == "slurm":
            waiting += [trial for trial in pipelines[run.folder] if trial in left]
    members = {trial for own in pipelines.values() for trial in own}
    alone = [run.folder for run, config in trials if config.launcher == "slurm" and run.folder not in members]
    runs = [*waiting, *alone]
    numbered = all(run.name.isdigit() and run.parent == sweep for run in runs)
    return submit_trials(sweep, {int(run.name) if numbered else at: run for at, run in enumerate(runs)}, "resume")


def _run_pipelines(pipelines: Mapping[Path, Sequence[Path]], wanted: Set[Path]) -> dict[Path, int]:
    """Resume the hopping runs of trials. Returns the exit codes of the trials.

    Raises:
        SystemExit: one was stopped by a signal, with its code.
    """
    codes: dict[Path, int] = {}
    for run_dir, trials in pipelines.items():
        if wanted.isdisjoint(trials):
            continue
        print(f"\npipeline: {shorten_path(run_dir)}", flush=True)
        code = run_hopping(run_dir)
        codes |= {trial: trial_result(trial, code)[0] for trial in trials if trial in wanted}
    return codes


def _run(trials: Sequence[FrozenRun]) -> dict[Path, int]:
    """Run frozen trials one after the other. Returns their exit codes.

    Raises:
        SystemExit: one was stopped by a signal, with its code.
    """
    codes, failures = dict[Path, int](), TrialFailures()
    for trial in trials:
        folder = trial.folder
        begun = bool(saved_checkpoints(folder)) or (folder / "summary.json").exists()
        print(f"\ntrial {folder.name}: {' '.join(_overrides(folder))}\nrun folder: {shorten_path(folder)}", flush=True)
        codes[folder] = run_process(folder, "resume" if begun else "train")
        if codes[folder] in STOPPED:
            raise SystemExit(codes[folder])
        failures.end_trial(folder.name, folder, failed=codes[folder] != 0)
    return codes


def _stopped(folder: Path, code: int) -> int:
    print(f"stopped; continue with: leyden resume {shorten_path(folder)}", flush=True)
    return code


def _print(folder: Path, trials: Sequence[FrozenRun], codes: dict[Path, int], submitted: SubmittedTrials) -> None:
    monitor = trials[0].values.get("callbacks", {}).get("checkpoint") if trials else None
    by = Metric.of(monitor or {})
    rows = [_row(run, codes[run.folder], submitted.jobs.get(run.folder, ""), by) for run in trials]
    print_table(rows, by, folder, submitted.logs)


def _row(run: FrozenRun, code: int, job: str, by: Metric) -> Trial:
    metric = metric_of(run.folder, by.name)
    return Trial(run.folder.name, _overrides(run.folder), code, metric, job, stop_reason(run.folder))


def _overrides(trial: Path) -> list[str]:
    """Overrides in the trial's .hydra folder."""
    try:
        given = limited_yaml.load(limited_yaml.read(trial / ".hydra" / "overrides.yaml"))
    except (OSError, ValueError, yaml.YAMLError):
        return []
    return [printable(str(override)) for override in given] if isinstance(given, list) else []
