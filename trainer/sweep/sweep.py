"""Sweeps: Hydra's sweeper and launcher; all trials are validated before a folder is made, each has its own process."""

import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus, filter_overrides
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from ..base.errors import ConfigError, raise_all, refuse
from ..base.paths import absolute, shorten_path
from ..compose.composer import ComposedRun, Composer, parse_overrides, resolve_text, set_output_dir
from ..compose.hydra_compat import Callbacks, basic_sweeper, failure_of
from ..compose.hydra_node import hydra_problems
from ..compose.pinned_weights import with_pinned_weights
from ..config.schema import Config
from ..runs.folder import FROZEN, SWEEP, Claim, claim, freeze, pipeline_of, refuse_taken
from ..runs.lease import hold_lease
from . import trial_failures
from .hopping_plan import HoppingPlan, is_pipeline
from .results import QUEUED, WAITING, Metric, Trial, metric_of, print_table, stop_reason
from .slurm import submit_trials
from .study.callback import add_callback
from .study.outcome import TrialOutcome
from .study.settings import is_study, require_optuna
from .sweeper_adapter import configure_sweeper, is_adaptive, refused_result, set_result, tolerate_failures
from .trial_process import RunTrial, imports_ahead, share_imports, sigterm_as_exit
from .validating_launcher import ValidatingLauncher

if TYPE_CHECKING:
    from .study.plan import StudyPlan

_QUIET = ["hydra/hydra_logging=none", "hydra/job_logging=none"]


class Sweep:
    """One multirun from its overrides to its table.

    Args:
        composer: composes the trials.
        overrides: as typed, with several values for some keys.
        goes_on: whether they are those of a sweep by Optuna that continues in its folder, hydra.sweep.dir.
    """

    def __init__(self, composer: Composer, overrides: Sequence[str], goes_on: bool = False):
        self.trials: list[Trial] = []
        self.folder: Path | None = None
        self._claim: Claim | None = None
        self.metric = Metric()
        self._composer = composer
        self._overrides = list(overrides)
        self._master = composer.compose_with_hydra([*_QUIET, *trial_failures.add_key(overrides)], RunMode.MULTIRUN)
        # before Hydra builds its callbacks, sweeper and launcher of them; each trial is checked when it is composed
        raise_all(hydra_problems(self._master.hydra))
        OmegaConf.set_readonly(self._master.hydra, False)
        self._failures = trial_failures.TrialFailures(trial_failures.take_value(self._master))
        composer.swept = _swept_keys(self._master)
        # made after validation: until then sweepers, which write into their folder at once, have a temporary one
        self._wanted = absolute(resolve_text(self._master, "hydra.sweep.dir"))
        self.study = self._plan_study(goes_on)
        """Plan of a sweep by Optuna."""
        if self.study is not None:
            self.metric = self.study.metric
        self._added: dict[int, dict[str, Any]] = {}
        self._subfolders: dict[int, str] = {}
        """Folder of each trial, relative to the sweep's."""
        self._unfrozen: dict[str, ComposedRun] = {}
        """Validated trials without a folder, by their subfolder."""
        self._dropped: dict[int, list[str]] = {}
        self._printed: set[str] = set()
        self._lease = ExitStack()
        self._sweeper: Any = None
        self.plan = HoppingPlan(composer, self._master.hydra.launcher) if is_pipeline(self._master) else None
        """Common config of the trials under model hopping."""
        self._logs: list[Path] = []
        if self.study is not None and self.plan is not None:
            self.study.refuse_hopping()

    def _plan_study(self, goes_on: bool) -> "StudyPlan | None":
        """Plan of the study, or None; another sweeper that chooses trials by results is configured."""
        if is_study(self._master):
            require_optuna()
            from .study.plan import StudyPlan

            origin = self._composer.origin(self._overrides)
            try:
                return StudyPlan(self._master, self._wanted, goes_on, origin)
            except ConfigError as error:
                raise error.with_places(origin.where) from None
        if is_adaptive(self._master):
            configure_sweeper(self._master, self._composer.origin(self._overrides))
        return None

    def go_on(self, trials: Sequence[Trial]) -> int:
        """Continue a study, whose earlier trials have ended. Returns as `run`."""
        assert self.study is not None
        self.trials = list(trials)
        for number, point in self.study.failed_or_open().items():
            _, subfolder = self._compose_trial(number, point)
            if (self._target / subfolder / FROZEN).exists():
                self.study.tell(number, TrialOutcome.of_run(self._target / subfolder, self.study.metric.name))
        return self.run()

    def run(self) -> int:
        """Run all trials. Returns 0; 1 if one failed; or the code of a trial stopped by a signal.

        Raises:
            ConfigError: a trial cannot start; no folder was made.
        """
        with tempfile.TemporaryDirectory(prefix="leyden-") as waiting, sigterm_as_exit(), share_imports(), self._lease:
            self._master.hydra.sweep.dir = waiting
            try:
                self._run_sweeper()
                self._submit()
            except KeyboardInterrupt:
                return self._stopped(130)
            except SystemExit as stop:
                return self._stopped(int(stop.code or 0))
            except HydraException as error:
                remedy = "hydra/sweeper=optuna" if "does not support sweep type" in str(error) else ""
                raise refuse("-m", str(error), remedy=remedy) from None
        print_table(self.trials, self.metric, self._target, self._logs)
        return 1 if any(trial.code not in (0, QUEUED, WAITING) for trial in self.trials) else 0

    def _stopped(self, code: int) -> int:
        if self.folder is not None:
            print(f"stopped; continue with: leyden resume {shorten_path(self.folder)}", flush=True)
        return code

    def _run_sweeper(self) -> None:
        context = HydraContext(config_loader=self._composer.loader, callbacks=Callbacks(self._master))
        task = RunTrial(
            self._composer.python_path, list(self._composer.swept), self._dropped, self._added, self._failures
        )
        with _launchers_wrapped(self):
            self._sweeper = _sweeper(self, config=self._master, hydra_context=context, task_function=task)
        # `validate` composes each trial, too
        self._sweeper.validate_batch_is_legal = lambda batch: None
        context.callbacks.on_multirun_start(config=self._master, config_name=self._composer.config_name)
        with tolerate_failures(self.trials):
            self._sweeper.sweep(arguments=list(self._master.hydra.overrides.task))
        context.callbacks.on_multirun_end(config=self._master, config_name=self._composer.config_name)

    def _submit(self) -> None:
        """Submit the trials that Slurm starts, all at once.

        Raises:
            ConfigError: Slurm rejects one of them; the folders of all are removed.
        """
        if self.folder is None:
            return
        numbers = [int(trial.name) for trial in self.trials if trial.code == QUEUED]
        folders = {number: self.folder / self._subfolders[number] for number in numbers}
        try:
            submitted = submit_trials(self.folder, folders, "train")
        except ConfigError:
            self._withdraw(list(folders.values()))
            raise
        jobs = {number: submitted.jobs[folder] for number, folder in folders.items()}
        self.trials = [replace(trial, job=jobs.get(int(trial.name), "")) for trial in self.trials]
        self._logs = submitted.logs

    def validate(self, batch: Sequence[Sequence[str]], first: int) -> dict[int, ConfigError]:
        """Validate the trials of a batch; of the whole sweep, if the sweeper knows its trials from the start.

        Returns:
            Errors of invalid trials by number, if other trials have run already, which they must not end.

        Raises:
            ConfigError: a trial is invalid, and none has run yet.
        """
        if isinstance(self._sweeper, basic_sweeper()) and self._sweeper.overrides is not None:
            batch, first = [trial for some in self._sweeper.overrides for trial in some], 0
        new = {number: list(o) for number, o in enumerate(batch, first) if number not in self._subfolders}
        invalid: dict[int, ConfigError] = {}
        self._validate_each(self._validate_values, new, invalid)
        with imports_ahead([run.config for run in self._unfrozen.values()] if self._runs_trials() else []):
            self._validate_each(self._validate_classes, new, invalid)
        return invalid

    def _validate_each(
        self, validate: Callable[[int, list[str]], None], new: Mapping[int, list[str]], invalid: dict[int, ConfigError]
    ) -> None:
        for number, overrides in new.items():
            try:
                if number not in invalid:
                    validate(number, overrides)
            except ConfigError as error:
                if self.folder is None:
                    raise self._composer.with_remedies(error, overrides) from None
                invalid[number] = error
                self._unfrozen.pop(self._subfolders.pop(number, ""), None)

    def _runs_trials(self) -> bool:
        """Whether this process starts the trials, and not another's launcher."""
        return str(self._master.hydra.launcher.get("_target_")).endswith(".BasicLauncher")

    def _validate_values(self, number: int, overrides: list[str]) -> None:
        composed, subfolder = self._compose_trial(number, overrides)
        run = self._composer.validate_run(composed, overrides, _title(number, overrides))
        self._refuse_launcher(run.config, _title(number, overrides))
        monitor = run.config.callbacks.get("checkpoint")
        if monitor is not None and self.study is None:
            self.metric = Metric.of(monitor.arguments)
        for other, taken in self._subfolders.items():
            if taken == subfolder:
                text = f"trials {other} and {number} would share a folder"
                raise refuse("hydra.sweep.subdir", text, subfolder, "hydra.sweep.subdir='${hydra.job.num}'")
        if self._named_by_user():
            refuse_taken(self._target / subfolder, "hydra.sweep.dir")
        self._subfolders[number] = subfolder
        self._unfrozen[subfolder] = run

    def _validate_classes(self, number: int, overrides: list[str]) -> None:
        run = self._unfrozen[self._subfolders[number]]
        run = self._composer.validate_classes(run, overrides, _title(number, overrides))
        self._unfrozen[self._subfolders[number]] = run
        if self.study is not None:
            self.study.check_metric(run.config)
        with_pinned_weights(run.values)  # what cannot be fetched leaves no folder
        self._dropped[number] = [each.key for each in run.dropped]
        if self.plan is not None:
            self.plan.check_class(run.config)
            self.plan.drop(self._dropped[number])

    def _refuse_launcher(self, config: Config, trial: str) -> None:
        if self._failures.fail_fast and (config.launcher == "slurm" or not self._runs_trials()):
            raise trial_failures.needs_a_sequence().with_places(lambda key: "", trial)
        if config.launcher in ("node", "external"):
            text = "starts a run by a command for each of its parts, and the trials of a sweep start by themselves"
            remedy = "topology.launcher=slurm, or each run by itself, without -m"
            raise refuse("topology.launcher", text, config.launcher, remedy).with_places(lambda key: "", trial)
        if config.launcher == "slurm" and str(self._master.hydra.launcher.get("_target_")).endswith(".SlurmLauncher"):
            text = "submits a job for each trial, which would submit one more for topology.launcher=slurm"
            remedy = "hydra/launcher=basic, or topology=local"
            raise refuse("hydra/launcher", text, "submitit_slurm", remedy).with_places(lambda key: "", trial)
        waits = config.launcher == "slurm" or (self.plan is not None and self.plan.topology["launcher"] == "node")
        if waits and not isinstance(self._sweeper, basic_sweeper()):
            text = "chooses trials by the results of others, and those that start later have none"
            remedy = "topology.launcher=local, or hydra/sweeper=basic"
            raise refuse("hydra/sweeper", text, type(self._sweeper).__name__, remedy).with_places(lambda key: "", trial)

    def _compose_trial(self, number: int, overrides: list[str]) -> tuple[DictConfig, str]:
        """Composition of one trial, and its subfolder."""
        try:
            composed = self._composer.loader.load_sweep_config(self._master, overrides)
        except ConfigError as error:
            raise error.with_places(lambda key: "", _title(number, overrides)) from None
        with read_write(composed), open_dict(composed):
            composed.hydra.job.num = composed.hydra.job.id = number
        HydraConfig.instance().set_config(composed)
        subfolder = resolve_text(composed, "hydra.sweep.subdir")
        set_output_dir(composed, self._target / subfolder)
        callback = self.study.callback(number, subfolder) if self.study is not None else None
        if callback is not None:
            self._added[number] = callback
            add_callback(composed, callback)
        if self.plan is not None:
            try:
                self.plan.adapt(composed, f"trial {number}")
            except ConfigError as error:
                where = self._composer.origin([*self._overrides, *overrides]).where
                raise error.with_places(where, _title(number, overrides)) from None
        return composed, subfolder

    @property
    def _target(self) -> Path:
        return self.folder or self._wanted

    def _named_by_user(self) -> bool:
        return any(override.startswith("hydra.sweep.dir=") for override in self._overrides)

    def make_folder(self) -> None:
        """Make the sweep's folder, if it is not made yet."""
        if self.folder is None:
            self._claim = self._claim_folder()
            self.folder = self._claim.folder if self._claim else self._wanted
            self._master.hydra.sweep.dir = str(self.folder)
            quoted = str(self.folder).replace("'", "\\'")
            self._master.hydra.overrides.hydra.append(f"hydra.sweep.dir='{quoted}'")
            self._lease.enter_context(hold_lease(self.folder))
            OmegaConf.save(self._master, self.folder / SWEEP)
            if self.study is not None:
                self.study.settle(self.folder)
            print(f"sweep folder: {shorten_path(self.folder)}")

    def freeze_trials(self) -> None:
        """Freeze every known trial, so that `leyden resume` finds those that never begin."""
        assert self.folder is not None
        for line in (line for run in self._unfrozen.values() for line in run.notices()):
            if line not in self._printed:
                print(line)
            self._printed.add(line)
        for subfolder, run in self._unfrozen.items():
            folder = self.folder / subfolder
            folder.mkdir(parents=True, exist_ok=True)
            freeze(folder, self._composer.freeze_in(run, folder))
            self._composer.write_dot_hydra(run, folder)
        self._unfrozen.clear()

    def _claim_folder(self) -> Claim | None:
        """Claim the sweep's folder; None: the user names one that exists."""
        if self._named_by_user() and self._wanted.is_dir():
            return None
        return claim(self._wanted, self._named_by_user(), "hydra.sweep.dir")

    def _withdraw(self, folders: Sequence[Path]) -> None:
        """Remove trials that never started, and the sweep's folder if it has no others."""
        assert self.folder is not None
        pipelines = {pipeline for folder in folders if (pipeline := pipeline_of(folder)) is not None}
        for folder in (*folders, *pipelines):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(self.folder / "slurm", ignore_errors=True)
        if len(folders) == len(self.trials):
            (self.folder / SWEEP).unlink(missing_ok=True)
            if self._claim is not None:
                self._claim.release()

    def add_result(self, number: int, overrides: Sequence[str], result: JobReturn) -> None:
        """Record a trial's result, and set the sweeper's: a failed trial must not end the others."""
        code, metric = 1, math.nan
        if result.status is JobStatus.COMPLETED:
            code, metric = result.return_value
        else:
            print(f"trial {number}: {failure_of(result)}", file=sys.stderr)
        folder = self.folder_of(number)
        if self.study is not None and code != QUEUED:
            metric = metric_of(folder, self.metric.name)
        reason = stop_reason(folder)
        self.trials.append(Trial(str(number), filter_overrides(overrides), code, metric, stop_reason=reason))
        set_result(self._sweeper, result, self.trials[-1])

    def folder_of(self, number: int) -> Path:
        """Run folder of a trial that has been validated."""
        assert self.folder is not None
        return self.folder / self._subfolders[number]

    def add_refused(self, number: int, overrides: Sequence[str], error: ConfigError) -> JobReturn:
        """Record a trial that was not started. Returns its result."""
        print(error.render(), file=sys.stderr, flush=True)
        self.trials.append(Trial(str(number), filter_overrides(overrides), 2, math.nan))
        result = refused_result(self.trials[-1])
        set_result(self._sweeper, result, self.trials[-1])
        self._failures.refuse_trial(str(number))
        return result


def _swept_keys(master: DictConfig) -> list[str]:
    """Swept keys, of the overrides and of the sweeper's parameters."""
    typed = parse_overrides([str(override) for override in master.hydra.overrides.task])
    keys = [override.key_or_group for override in typed if override.is_sweep_override()]
    return list(dict.fromkeys([*keys, *map(str, OmegaConf.select(master, "hydra.sweeper.params") or ())]))


def _title(number: int, overrides: Sequence[str]) -> str:
    return f"trial {number} ({' '.join(filter_overrides(overrides))})"


@contextmanager
def _launchers_wrapped(sweep: Sweep) -> Iterator[None]:
    """Have Hydra's plugin registry wrap launchers: each sweeper gets its launcher from there in its own way."""
    plugins: Any = Plugins.instance()
    plugins.instantiate_launcher = lambda **arguments: ValidatingLauncher(_launcher(plugins, sweep, **arguments), sweep)
    try:
        yield
    finally:
        del plugins.instantiate_launcher


def _sweeper(sweep: Sweep, **arguments: Any) -> Any:
    """Sweeper of the config; see `_launcher`."""
    if sweep.study is None:
        return Plugins.instance().instantiate_sweeper(**arguments)
    from .study.sweeper import OptunaSweeper

    sweeper = OptunaSweeper(sweep.study, sweep)
    sweeper.setup(**arguments)
    return sweeper


def _launcher(plugins: Any, sweep: Sweep, **arguments: Any) -> Launcher:
    """Launcher of the config; Hydra's registry finds those of its own packages and of hydra_plugins only."""
    if sweep.plan is None:
        return Plugins.instantiate_launcher(plugins, **arguments)
    from .hopping_launcher import HoppingLauncher

    launcher = HoppingLauncher(sweep.plan)
    launcher.setup(**arguments)
    return launcher
