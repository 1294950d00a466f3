"""`leyden resume SWEEP`: the trials that did not finish, each in its own folder, from its checkpoint if it has one."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from .checkpoint_names import saved
from .errors import ConfigError, refuse
from .origin import shown
from .presence import leading, refuse_led
from .rerun import Changes, FrozenRun, change, opened, read_changes, write_changes
from .run_status import RUNNING
from .slurm_jobs import STOP_REQUESTED
from .status import runs_in, statuses
from .sweep import STOPPED, Trial, monitored, print_table, run_process, sigterm_as_exit

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
    for run in unfinished:
        write_changes(run, changes)
        (run.folder / STOP_REQUESTED).unlink(missing_ok=True)
    print(f"{len(finished)} of {len(trials)} trials are done, {len(unfinished)} are resumed", flush=True)
    codes = dict.fromkeys(finished, 0)
    try:
        with leading(folder), sigterm_as_exit():
            codes |= start_trials(unfinished)
    except KeyboardInterrupt:
        return _stopped(folder, 130)
    except SystemExit as stop:
        return _stopped(folder, int(stop.code or 0))
    _print(folder, [opened(str(trial)) for trial in trials if trial.exists() and trial in codes], codes)
    return 1 if any(codes.values()) else 0


def _judged(trial: Path, changes: Changes) -> FrozenRun:
    try:
        run = opened(str(trial), changes.given)
        change(run, changes)
        run.judged()
    except ConfigError as error:
        raise error.located(lambda key: "", f"trial {trial.name}") from None
    return run


def start_trials(trials: Sequence[FrozenRun]) -> dict[Path, int]:
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


def _print(folder: Path, trials: Sequence[FrozenRun], codes: dict[Path, int]) -> None:
    rows = [
        Trial(run.folder.name, _overrides(run.folder), codes[run.folder], monitored(run.folder, run.values))
        for run in trials
    ]
    monitor = (trials[0].values.get("callbacks", {}).get("checkpoint") or {}).get("monitor") if trials else None
    print_table(rows, monitor or "val/acc", folder)


def _overrides(trial: Path) -> list[str]:
    """What Hydra's users find in the trial's folder."""
    try:
        given = yaml.safe_load((trial / ".hydra" / "overrides.yaml").read_text())
    except (OSError, yaml.YAMLError):
        return []
    return [str(override) for override in given] if isinstance(given, list) else []
