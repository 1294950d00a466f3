"""Composition of YAML and overrides to one plain config by Hydra, whose errors are translated to Leyden's."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from hydra import version
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from ..base.errors import ConfigError, Problem, raise_all, refuse
from ..base.paths import absolute
from ..config.schema import DATA_FOLDERS, Config, with_processes_node
from ..config.targets import make_importable
from ..runs.folder import Claim, claim
from .checks import check_classes, check_values
from .composition.hydra_errors import explain_error
from .composition.loader import SHIPPED, Loader, dataset_spelled, without
from .composition.remedies import key_of, with_working_remedies
from .composition.request import CompositionRequest
from .composition.resolved_values import freeze_composition, resolve_text, without_hydra
from .composition.written_values import read_as_typed
from .hydra_compat import Hydra, create_config_search_path
from .hydra_node import hydra_problems
from .leftover_keys import Leftover, drop_from_composition, leftovers, not_taken, notices
from .pinned_weights import with_pinned_weights
from .provenance import Given, Origin
from .signatures import signature_problems
from .validation import dotted_keys, validate_values

MAIN = "pkg://leyden.conf"
Checked = TypeVar("Checked")


@dataclass(frozen=True)
class ComposedRun:
    """A composed, validated config."""

    config: Config
    values: dict[str, Any]
    """Plain and resolved, for freezing."""
    composed: DictConfig
    """Hydra's composition, with its `hydra` node."""
    dropped: list[Leftover] = field(default_factory=list)
    """Keys of Leyden's YAML for a class that the user has replaced."""

    @property
    def is_sweep(self) -> bool:
        """Whether the YAML sets hydra.mode=MULTIRUN."""
        return self.composed.hydra.mode is RunMode.MULTIRUN

    def notices(self) -> list[str]:
        """Changes that the composition made to the user's keys, one line each."""
        return list(notices(self.dropped))


class Composer:
    """Composes and validates configs of one search path.

    Args:
        config_dir: the user's folder of YAML files, searched before ours.
        config_name: the root file.
        plans: the runs are not to be started: this machine need have neither their devices nor their data.

    Raises:
        ConfigError: there is no such folder.
    """

    def __init__(self, config_dir: str | None = None, config_name: str | None = None, plans: bool = False):
        version.setbase("1.3")
        self.plans = plans
        self.config_name = (config_name or "train").removesuffix(".yaml")
        self.config_dir = absolute(config_dir) if config_dir else None
        search_path = create_config_search_path(MAIN)
        if self.config_dir is not None:
            if not self.config_dir.is_dir():
                raise refuse("--config-dir", "there is no such folder", config_dir, "--config-dir FOLDER")
            search_path.prepend("command-line", f"file://{self.config_dir}", SearchPathQuery("main", None))
        self.loader = Loader(search_path)
        self.hydra = Hydra("leyden", self.loader)
        self.swept: Sequence[str] = ()
        """Keys varied by the sweep whose trials are composed."""
        self._built: dict[str, tuple[Problem, ...]] = {}

    @property
    def python_path(self) -> list[str]:
        """Folders that are searched for user-provided classes."""
        folders = [Path.cwd(), self.config_dir] if self.config_dir else [Path.cwd()]
        return list(dict.fromkeys(map(str, folders)))

    def compose_with_hydra(self, overrides: Sequence[str], mode: RunMode = RunMode.RUN) -> DictConfig:
        """Hydra's composition with its own node, set as the source of the resolver `hydra:`."""
        composed = self.loader.load_configuration(self.config_name, list(overrides), mode)
        HydraConfig.instance().set_config(composed)
        if self.plans:
            name_missing_data(composed)
        if mode is RunMode.RUN:
            set_output_dir(composed, run_dir_of(composed))
        return composed

    def run(self, overrides: Sequence[str], before_classes: Callable[[Config], None] | None = None) -> ComposedRun:
        """Compose, resolve and validate one run.

        Args:
            before_classes: called once every check has passed that needs no class.

        Raises:
            ConfigError: with every mistake found, each with its place.
        """
        try:
            run = self.validate_run(self.compose_with_hydra(overrides), overrides)
            if before_classes is not None and not run.is_sweep:
                before_classes(run.config)
            return self.validate_classes(run, overrides)
        except ConfigError as error:
            raise self.with_remedies(self._with_wrong_values(error, overrides), overrides) from None

    def _with_wrong_values(self, error: ConfigError, overrides: Sequence[str]) -> ConfigError:
        """The error, with the wrong values of the overrides that have no part in it."""
        others = without(overrides, error.problems)
        typed = {key_of(override) for override in others}
        without_data = any(problem.key.removeprefix("dataset.") in DATA_FOLDERS for problem in error.problems)
        if not others or (len(others) == len(overrides) and not without_data):
            return error
        try:
            composed = self.compose_with_hydra(others)
            name_missing_data(composed)
            self._check_values_alone(composed, typed if without_data else ())
        except ConfigError as further:
            more = further.with_places(self.origin(others).where).problems
            keys = {problem.key for problem in error.problems}
            own = [problem for problem in more if problem.key in typed - keys]
            if own:
                return self._with_wrong_values(ConfigError(*error.problems, *own, context=error.context), overrides)
        return error

    def _check_values_alone(self, composed: DictConfig, arguments: Collection[str]) -> None:
        """Check the values, and those arguments of classes, without the rules between keys."""

        def check(values: dict[str, Any]) -> None:
            config = validate_values(values)
            if arguments:  # no class is imported before all values are right
                make_importable(config)
                raise_all(signature_problems(config, given=arguments))

        self._check_typed(composed, check)

    def with_remedies(self, error: ConfigError, overrides: Sequence[str]) -> ConfigError:
        """The error with only the remedies that work."""
        return with_working_remedies(error, overrides, self.problems_of, self._keys_of)

    def _keys_of(self, overrides: Sequence[str]) -> Collection[str]:
        try:
            return set(dotted_keys(self.loader.plain_values(self.config_name, overrides)))
        except ConfigError:
            return ()

    def problems_of(self, overrides: Sequence[str]) -> Sequence[Problem]:
        """Mistakes in overrides, as far as the values show them."""
        try:
            self._check_run(self.compose_with_hydra(overrides))
        except ConfigError as error:
            others = without(overrides, error.problems)
            return [*error.problems, *(self.problems_of(others) if len(others) < len(overrides) else ())]
        return ()

    def validate_run(self, composed: DictConfig, overrides: Sequence[str], context: str = "") -> ComposedRun:
        """The run of a composition whose values are valid. `context` names it in the error."""
        try:
            return self._check_run(composed)
        except ConfigError as error:
            raise error.with_places(self.origin(overrides).where, context) from None

    def _check_run(self, composed: DictConfig) -> ComposedRun:
        raise_all(hydra_problems(composed.hydra))

        def check(values: dict[str, Any]) -> ComposedRun:
            config = validate_values(values)
            check_values(config, planned=self.plans)
            return ComposedRun(config, values, composed)

        return self._check_typed(composed, check)

    def _check_typed(self, composed: DictConfig, check: Callable[[dict[str, Any]], Checked]) -> Checked:
        """What a check of the values returns, if need be after texts were read as values of the type that is wanted."""
        values = self.freeze_values(composed)
        try:
            return check(values)
        except ConfigError as error:
            if not read_as_typed(composed, [problem.key for problem in error.problems]):
                raise
            return self._check_typed(composed, check)

    def validate_classes(self, run: ComposedRun, overrides: Sequence[str], context: str = "") -> ComposedRun:
        """Import the classes that a run names and validate its values against them.

        Returns:
            The run without the keys of Leyden's YAML that a user-provided class does not take.
        """
        make_importable(run.config)
        found = not_taken(run.config)
        dropped = leftovers(found, self.origin(overrides)) if found else []
        if dropped:
            drop_from_composition(run.composed, [each.key for each in dropped])
            run = replace(self.validate_run(run.composed, overrides, context), dropped=dropped)
        try:
            run = replace(run, config=check_classes(run.config, self.plans))
            # after every check that needs no building: this one imports PyTorch
            from .trial_build import problems_of_building

            raise_all(problems_of_building(run.config, self._built))
        except ConfigError as error:
            if read_as_typed(run.composed, [problem.key for problem in error.problems]):
                return self.validate_classes(self.validate_run(run.composed, overrides, context), overrides, context)
            raise error.with_places(self.origin(overrides).where, context) from None
        return run

    def origin(self, overrides: Sequence[str]) -> Origin:
        """The place where each key of this composition was set."""
        parsed, files = self.loader.list_merged_files(self.config_name, list(overrides))
        given = [Given(o.key_or_group, typed) for o, typed in zip(parsed, overrides, strict=True)]
        origin = Origin(given)
        for file, package in files:
            origin.read(file, package, shipped=file.is_relative_to(SHIPPED))
        return origin

    def claim(self, run: ComposedRun, overrides: Sequence[str]) -> Claim:
        """Create the run folder hydra.run.dir.

        Raises:
            ConfigError: it holds a run already, or is not writable.
        """
        named = any(override.startswith("hydra.run.dir=") for override in overrides)
        return claim(run_dir_of(run.composed), named)

    def freeze_in(self, run: ComposedRun, folder: Path) -> dict[str, Any]:
        """The run's plain values with `hydra:runtime.output_dir` set; weights that it names are pinned."""
        set_output_dir(run.composed, folder)
        return with_processes_node(with_pinned_weights(self.freeze_values(run.composed)))

    def freeze_values(self, composed: DictConfig) -> dict[str, Any]:
        """The plain values of a composition, without Hydra's own node."""
        return freeze_composition(without_hydra(composed), composed.hydra, self.python_path, self.swept)

    def write_dot_hydra(self, run: ComposedRun, folder: Path) -> None:
        """Write config.yaml, hydra.yaml and overrides.yaml in .hydra/, as Hydra does."""
        if run.composed.hydra.output_subdir is None:
            return
        kept = folder / run.composed.hydra.output_subdir
        kept.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(without_hydra(run.composed), kept / "config.yaml")
        OmegaConf.save(OmegaConf.masked_copy(run.composed, "hydra"), kept / "hydra.yaml")
        OmegaConf.save(run.composed.hydra.overrides.task, kept / "overrides.yaml")


def name_missing_data(composed: DictConfig) -> None:
    """Give a folder of data that must be named, and is not, the name of a folder that nothing reads."""
    dataset = composed.get("dataset")
    for name in DATA_FOLDERS if isinstance(dataset, DictConfig) else ():
        if OmegaConf.is_missing(dataset, name):
            with read_write(composed):
                dataset[name] = "DATA"


def set_output_dir(composed: DictConfig, folder: Path) -> None:
    """Set `hydra:runtime.output_dir`, for interpolations."""
    with read_write(composed.hydra.runtime), open_dict(composed.hydra.runtime):
        composed.hydra.runtime.output_dir = str(folder)
    HydraConfig.instance().set_config(composed)


def run_dir_of(composed: DictConfig) -> Path:
    """hydra.run.dir."""
    return absolute(resolve_text(composed, "hydra.run.dir"))


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Overrides parsed by Hydra's grammar.

    Raises:
        ConfigError: one of them cannot be parsed.
    """
    try:
        return OverridesParser.create().parse_overrides([dataset_spelled(override) for override in overrides])
    except HydraException as error:
        raise explain_error(error, CompositionRequest(Composer().loader, None, list(overrides))) from None
