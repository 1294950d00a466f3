"""Sweeps: Hydra's sweeper and launcher, every trial judged before the first folder is made, each in its own process."""

import math
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus, filter_overrides
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from .compose import Composer, Run, frozen, parsed_overrides, set_output_dir
from .config import Config, load
from .errors import ConfigError, refuse
from .leftover_keys import drop_from_composition, notices
from .origin import shown
from .pipeline.membership import pipeline_of
from .pipeline.plan import Plan, is_pipeline
from .presence import leading
from .run_folder import SWEEP, Claim, absolute, claim, freeze, refuse_taken
from .sweep_queue import queue_runs
from .sweep_results import QUEUED, WAITING, Metric, Trial, monitored, print_table, stop_reason
from .sweeper import answer, chooses, its_end, refused, suit
from .trial_process import STOPPED, run_process, sigterm_as_exit

_QUIET = ["hydra/hydra_logging=none", "hydra/job_logging=none"]


@dataclass(frozen=True)
class RunTrial:
    """The task function that Hydra's launchers call: freezes one trial and runs it in a process of its own."""

    python_path: list[str]
    swept: list[str]
    dropped: dict[int, list[str]]
    """By the trial's number, keys that its classes do not take."""

    def __call__(self, config: DictConfig) -> tuple[int, float]:
        """Exit code, or QUEUED, and metric."""
        hydra = HydraConfig.get()
        folder = Path(hydra.runtime.output_dir)
        drop_from_composition(config, self.dropped.get(int(hydra.job.num), []))
        values = frozen(config, hydra, self.python_path, self.swept)
        print(f"\ntrial {hydra.job.num}: {' '.join(hydra.overrides.task)}", flush=True)
        freeze(folder, values)
        if load(folder).launcher == "slurm":
            return QUEUED, math.nan
        code = run_process(folder)
        if code in STOPPED:
            raise SystemExit(code)
        return code, monitored(folder, values)


class JudgedLauncher(Launcher):
    """A launcher of Hydra's that starts nothing before every trial is known to be right."""

    def __init__(self, launcher: Launcher, sweep: "Sweep"):
        self._launcher = launcher
        self._sweep = sweep

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """The wrapped launcher is set up already."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        trials = dict(enumerate(job_overrides, initial_job_idx))
        wrong = self._sweep.judge(job_overrides, initial_job_idx)
        self._sweep.make_folder()
        self._sweep.freeze_trials()
        results = {number: self._sweep.note_refused(number, trials[number], error) for number, error in wrong.items()}
        for is_wrong, run in groupby(trials, key=wrong.__contains__):
            numbers = list(run)
            if is_wrong:
                continue
            launched = self._launcher.launch([trials[number] for number in numbers], numbers[0])
            for number, result in zip(numbers, launched, strict=True):
                self._sweep.note(number, trials[number], result)
                results[number] = result
        return [results[number] for number in trials]


class Sweep:
    """One multirun from its overrides to its table.

    Args:
        composer: composes the trials.
        overrides: what the user typed, with several values for some keys.
    """

    def __init__(self, composer: Composer, overrides: Sequence[str]):
        self.trials: list[Trial] = []
        self.folder: Path | None = None
        self._claim: Claim | None = None
        self.metric = Metric()
        self._composer = composer
        self._overrides = list(overrides)
        self._master = composer.composed([*_QUIET, *overrides], RunMode.MULTIRUN)
        OmegaConf.set_readonly(self._master.hydra, False)
        composer.swept = _swept(self._master)
        if chooses(self._master):
            suit(self._master, composer.origin(overrides))
        # Sweepers write into their folder before they know their trials; it gets its place when all are judged.
        self._wanted = absolute(str(self._master.hydra.sweep.dir))
        self._judged: dict[int, str] = {}
        """Each trial's folder, below that of the sweep."""
        self._unfrozen: dict[str, Run] = {}
        """By the folder below the sweep's."""
        self._dropped: dict[int, list[str]] = {}
        self._printed: set[str] = set()
        self._until_end = ExitStack()
        self._sweeper: Any = None
        self.plan = Plan(composer, self._master.hydra.launcher) if is_pipeline(self._master) else None
        """What the trials have in common where their models share workers."""
        self._logs: list[Path] = []

    def run(self) -> int:
        """Run all trials. Returns 0, 1 where one failed, or the code of a trial that was told to stop.

        Raises:
            ConfigError: a trial would not start; nothing was made.
        """
        with tempfile.TemporaryDirectory(prefix="leyden-") as waiting, sigterm_as_exit(), self._until_end:
            self._master.hydra.sweep.dir = waiting
            try:
                self._sweep()
                self._queue()
            except KeyboardInterrupt:
                return self._stopped(130)
            except SystemExit as stop:
                return self._stopped(int(stop.code or 0))
            except HydraException as error:
                remedy = "hydra/sweeper=optuna" if "does not support sweep type" in str(error) else ""
                raise refuse("-m", str(error), remedy=remedy) from None
        print_table(self.trials, self.metric, self._place, self._logs)
        return 1 if any(trial.code not in (0, QUEUED, WAITING) for trial in self.trials) else 0

    def _stopped(self, code: int) -> int:
        if self.folder is not None:
            print(f"stopped; go on with: leyden resume {shown(self.folder)}", flush=True)
        return code

    def _sweep(self) -> None:
        context = HydraContext(config_loader=self._composer.loader, callbacks=Callbacks(self._master))
        task = RunTrial(self._composer.python_path, list(self._composer.swept), self._dropped)
        with _launchers_wrapped(self):
            self._sweeper = Plugins.instance().instantiate_sweeper(
                config=self._master, hydra_context=context, task_function=task
            )
        # Judging composes each trial too.
        self._sweeper.validate_batch_is_legal = lambda batch: None
        context.callbacks.on_multirun_start(config=self._master, config_name=self._composer.config_name)
        with its_end(self.trials):
            self._sweeper.sweep(arguments=list(self._master.hydra.overrides.task))
        context.callbacks.on_multirun_end(config=self._master, config_name=self._composer.config_name)

    def _queue(self) -> None:
        """Submit the trials that were left for Slurm, all at once.

        Raises:
            ConfigError: Slurm does not take one of them; the folders of all are removed.
        """
        if self.folder is None:
            return
        numbers = [int(trial.name) for trial in self.trials if trial.code == QUEUED]
        folders = {number: self.folder / self._judged[number] for number in numbers}
        try:
            queued = queue_runs(self.folder, folders, "train")
        except ConfigError:
            self._withdraw(list(folders.values()))
            raise
        jobs = {number: queued.jobs[folder] for number, folder in folders.items()}
        self.trials = [replace(trial, job=jobs.get(int(trial.name), "")) for trial in self.trials]
        self._logs = queued.logs

    def judge(self, batch: Sequence[Sequence[str]], first: int) -> dict[int, ConfigError]:
        """Check every trial of a batch, of the whole sweep where the sweeper knows it.

        Returns:
            What is wrong with trials that a sweeper has chosen when others had run: they end nobody else's.

        Raises:
            ConfigError: a trial is wrong, and none has run yet.
        """
        if isinstance(self._sweeper, BasicSweeper) and self._sweeper.overrides is not None:
            batch, first = [trial for some in self._sweeper.overrides for trial in some], 0
        new = {number: list(o) for number, o in enumerate(batch, first) if number not in self._judged}
        wrong: dict[int, ConfigError] = {}
        for judge in (self._judge_values, self._judge_classes):
            for number, overrides in new.items():
                try:
                    if number not in wrong:
                        judge(number, overrides)
                except ConfigError as error:
                    if self.folder is None:
                        raise
                    wrong[number] = error
                    self._unfrozen.pop(self._judged.pop(number, ""), None)
        return wrong

    def _judge_values(self, number: int, overrides: list[str]) -> None:
        composed, subfolder = self._composed(number, overrides)
        run = self._composer.judged(composed, overrides, _called(number, overrides))
        self._refuse_launcher(run.config, _called(number, overrides))
        monitor = run.config.callbacks.get("checkpoint")
        if monitor is not None:
            self.metric = Metric.of(monitor.arguments)
        for other, taken in self._judged.items():
            if taken == subfolder:
                text = f"trials {other} and {number} would share a folder"
                raise refuse("hydra.sweep.subdir", text, subfolder, "hydra.sweep.subdir='${hydra.job.num}'")
        if self._named_by_user():
            refuse_taken(self._place / subfolder, "hydra.sweep.dir")
        self._judged[number] = subfolder
        self._unfrozen[subfolder] = run

    def _judge_classes(self, number: int, overrides: list[str]) -> None:
        run = self._unfrozen[self._judged[number]]
        run = self._composer.judge_classes(run, overrides, _called(number, overrides))
        self._unfrozen[self._judged[number]] = run
        self._dropped[number] = [each.key for each in run.dropped]
        if self.plan is not None:
            self.plan.check_class(run.config)
            self.plan.drop(self._dropped[number])

    def _refuse_launcher(self, config: Config, trial: str) -> None:
        if config.launcher == "node":
            text = "starts a run by a command on each host, and the trials of a sweep start by themselves"
            remedy = "topology.launcher=slurm, or each run by itself, without -m"
            raise refuse("topology.launcher", text, "node", remedy).located(lambda key: "", trial)
        waits = config.launcher == "slurm" or (self.plan is not None and self.plan.topology["launcher"] == "node")
        if waits and not isinstance(self._sweeper, BasicSweeper):
            text = "chooses trials by the results of others, and those that start later have none"
            remedy = "topology.launcher=local, or hydra/sweeper=basic"
            raise refuse("hydra/sweeper", text, type(self._sweeper).__name__, remedy).located(lambda key: "", trial)

    def _composed(self, number: int, overrides: list[str]) -> tuple[DictConfig, str]:
        """The composition of one trial, and its folder below the sweep's."""
        try:
            composed = self._composer.loader.load_sweep_config(self._master, overrides)
        except ConfigError as error:
            raise error.located(lambda key: "", _called(number, overrides)) from None
        with read_write(composed), open_dict(composed):
            composed.hydra.job.num = composed.hydra.job.id = number
        HydraConfig.instance().set_config(composed)
        subfolder = str(composed.hydra.sweep.subdir)
        set_output_dir(composed, self._place / subfolder)
        if self.plan is not None:
            try:
                self.plan.adapt(composed, f"trial {number}")
            except ConfigError as error:
                where = self._composer.origin([*self._overrides, *overrides]).where
                raise error.located(where, _called(number, overrides)) from None
        return composed, subfolder

    @property
    def _place(self) -> Path:
        return self.folder or self._wanted

    def _named_by_user(self) -> bool:
        return any(override.startswith("hydra.sweep.dir=") for override in self._overrides)

    def make_folder(self) -> None:
        """Make the sweep's folder, once."""
        if self.folder is None:
            self._claim = self._claimed()
            self.folder = self._claim.folder if self._claim else self._wanted
            self._master.hydra.sweep.dir = str(self.folder)
            quoted = str(self.folder).replace("'", "\\'")
            self._master.hydra.overrides.hydra.append(f"hydra.sweep.dir='{quoted}'")
            OmegaConf.save(self._master, self.folder / SWEEP)
            print(f"sweep folder: {shown(self.folder)}")
            self._until_end.enter_context(leading(self.folder))

    def freeze_trials(self) -> None:
        """Write down every trial that is known, so that those which never begin can be resumed, too."""
        assert self.folder is not None
        for line in (line for run in self._unfrozen.values() for line in notices(run.dropped)):
            if line not in self._printed:
                print(line)
            self._printed.add(line)
        for subfolder, run in self._unfrozen.items():
            folder = self.folder / subfolder
            folder.mkdir(parents=True, exist_ok=True)
            freeze(folder, self._composer.frozen_in(run, folder))
            self._composer.write_dot_hydra(run, folder)
        self._unfrozen.clear()

    def _claimed(self) -> Claim | None:
        """None: the folder that the user names is there already."""
        if self._named_by_user() and self._wanted.is_dir():
            return None
        return claim(self._wanted, self._named_by_user(), "hydra.sweep.dir")

    def _withdraw(self, folders: Sequence[Path]) -> None:
        """Remove trials that never started, and the sweep's folder where it was made for them alone."""
        assert self.folder is not None
        pipelines = {pipeline for folder in folders if (pipeline := pipeline_of(folder)) is not None}
        for folder in (*folders, *pipelines):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(self.folder / "slurm", ignore_errors=True)
        if len(folders) == len(self.trials):
            (self.folder / SWEEP).unlink(missing_ok=True)
            if self._claim is not None:
                self._claim.release()

    def note(self, number: int, overrides: Sequence[str], result: JobReturn) -> None:
        """Keep what came of a trial, and give the sweeper its metric: a failed one must not end the others."""
        code, metric = 1, math.nan
        if result.status is JobStatus.COMPLETED:
            code, metric = result.return_value
        else:
            print(f"trial {number}: {result._return_value}", file=sys.stderr)
        assert self.folder is not None
        why = stop_reason(self.folder / self._judged[number])
        self.trials.append(Trial(str(number), filter_overrides(overrides), code, metric, stop_reason=why))
        answer(self._sweeper, result, self.trials[-1])

    def note_refused(self, number: int, overrides: Sequence[str], error: ConfigError) -> JobReturn:
        """Keep that a trial was not started. Returns its result."""
        print(error.rendered(), file=sys.stderr, flush=True)
        self.trials.append(Trial(str(number), filter_overrides(overrides), 2, math.nan))
        result = refused(self.trials[-1])
        answer(self._sweeper, result, self.trials[-1])
        return result


def _swept(master: DictConfig) -> list[str]:
    """Keys with several values, in the sweep's overrides and among the parameters of its sweeper."""
    typed = parsed_overrides([str(override) for override in master.hydra.overrides.task])
    keys = [override.key_or_group for override in typed if override.is_sweep_override()]
    return list(dict.fromkeys([*keys, *map(str, OmegaConf.select(master, "hydra.sweeper.params") or ())]))


def _called(number: int, overrides: Sequence[str]) -> str:
    return f"trial {number} ({' '.join(filter_overrides(overrides))})"


@contextmanager
def _launchers_wrapped(sweep: Sweep) -> Iterator[None]:
    """Sweepers get their launcher from Hydra's registry of plugins, each in its own way; the registry wraps it."""
    plugins: Any = Plugins.instance()
    plugins.instantiate_launcher = lambda **arguments: JudgedLauncher(_launcher(plugins, sweep, **arguments), sweep)
    try:
        yield
    finally:
        del plugins.instantiate_launcher


def _launcher(plugins: Any, sweep: Sweep, **arguments: Any) -> Launcher:
    """That of the config; Hydra's registry knows packages by the name of hydra_plugins alone."""
    if sweep.plan is None:
        return Plugins.instantiate_launcher(plugins, **arguments)
    from .pipeline.launcher import PipelineLauncher

    launcher = PipelineLauncher(sweep.plan)
    launcher.setup(**arguments)
    return launcher
