"""Composition of YAML and overrides to one plain config by Hydra, whose errors are translated to Leyden's."""

import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from hydra import version
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, flag_override, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from ..base import limited_yaml
from ..base.errors import ConfigError, Problem, raise_all, refuse
from ..base.paths import absolute, shown
from ..hardware.topology import resolve_device_kind
from ..runs.folder import Claim, claim
from ..runs.renamed import renamed_in, with_new_names
from .checks import check_classes, check_values
from .hydra_compat import CachingConfigRepository, ConfigLoader, Hydra, create_config_search_path
from .hydra_errors import CompositionRequest, explained
from .interpolation_limits import MAX_DEPTH, limited_references, limits_renewed, nested_references
from .leftover_keys import Leftover, drop_from_composition, leftovers, not_taken, notices
from .provenance import Given, Origin
from .remedies import with_working_remedies
from .schema import TASK_LOADERS, Config, with_processes_node
from .target_policy.hydra_targets import hydra_problems
from .targets import make_importable
from .validation import validated

MAIN = "pkg://leyden.conf"
_SHIPPED = Path(str(resources.files("leyden.conf")))
BUILT_GROUPS = ("dataset", "augment", "model", "task", "strategy", "optimizer", "schedule", "callbacks", "logger")
"""Groups whose nodes are classes: keys below them may be constructor arguments that no YAML names."""


class Loader(ConfigLoader):
    """Hydra's loader with three extensions of overrides: `data=` for `dataset=`, `GROUP=null`, no `+` for arguments."""

    def __init__(self, search_path: Any):
        super().__init__(search_path, _refuse_too_large)
        self._plain: dict[tuple[str | None, ...], Any] = {}

    def parsed(self, config_name: str | None, overrides: list[str]) -> tuple[list[Override], CachingConfigRepository]:
        for override in overrides:
            if nested_references(override) > MAX_DEPTH:
                key, _, value = override.partition("=")
                raise refuse(key, f"interpolations are nested more than {MAX_DEPTH} deep", value)
        spelled = [dataset_spelled(override) for override in overrides]
        parsed, repository = super().parsed(config_name, spelled)
        for override in parsed:
            _relax(override, repository)
        return parsed, repository

    @limited_references()
    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        limits_renewed()
        try:
            return super().load_configuration(config_name, overrides, run_mode, from_shell, validate_sweep_overrides)
        except Exception as error:  # For some mistakes Hydra and OmegaConf raise AttributeError and the like.
            raise explained(error, CompositionRequest(self, config_name, overrides)) from None

    def plain_values(self, config_name: str | None, overrides: Sequence[str]) -> dict[str, Any]:
        """The user's keys of a composition, unresolved, for look-ups of names."""
        wanted = (config_name, *overrides)
        if wanted not in self._plain:
            composed = self.load_configuration(config_name, list(overrides), RunMode.MULTIRUN)
            self._plain[wanted] = OmegaConf.to_container(without_hydra(composed), resolve=False)
        return self._plain[wanted]


def _refuse_too_large(file: Path) -> None:
    """Refuse a YAML file beyond the limits before Hydra, whose parser is recursive, reads it."""
    if file.is_relative_to(_SHIPPED):
        return
    try:
        text = limited_yaml.read(file)
        limited_yaml.check(text)
    except limited_yaml.YAMLTooLarge as error:
        raise refuse(shown(file), f"is refused: {error}", remedy="a smaller file, without aliases") from None
    except (OSError, ValueError) as error:
        raise refuse(shown(file), f"cannot be read: {error}", remedy="a file of UTF-8 text") from None
    except YAMLError:
        return  # of Hydra's parser, whose message has the place
    if nested_references(text) > MAX_DEPTH:
        raise refuse(shown(file), f"is refused: interpolations are nested more than {MAX_DEPTH} deep")


def _relax(override: Override, repository: CachingConfigRepository) -> None:
    if override.type is not OverrideType.CHANGE:
        return
    if repository.group_exists(override.key_or_group):
        if override.value() is None:
            override.type = OverrideType.DEL
    elif override.key_or_group.split(".")[0] in BUILT_GROUPS and "." in override.key_or_group:
        override.type = OverrideType.FORCE_ADD


def dataset_spelled(override: str) -> str:
    """The override, `data` spelled `dataset`."""
    return re.sub(r"^([+~]*)data(?=[=.@]|$)", r"\1dataset", override)


@dataclass(frozen=True)
class Run:
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
        composed = OmegaConf.to_container(self.composed)
        assert isinstance(composed, dict)
        return [*notices(self.dropped), *renamed_in({str(key): value for key, value in composed.items()})]


class Composer:
    """Composes and validates configs of one search path.

    Args:
        config_dir: the user's folder of YAML files, searched before ours.
        config_name: the root file.

    Raises:
        ConfigError: there is no such folder.
    """

    def __init__(self, config_dir: str | None = None, config_name: str | None = None):
        version.setbase("1.3")
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

    @limited_references()
    def composed(self, overrides: Sequence[str], mode: RunMode = RunMode.RUN) -> DictConfig:
        """Hydra's composition with its own node, set as the source of the resolver `hydra:`."""
        composed = self.loader.load_configuration(self.config_name, list(overrides), mode)
        HydraConfig.instance().set_config(composed)
        if mode is RunMode.RUN:
            set_output_dir(composed, _run_dir(composed))
        return composed

    @limited_references()
    def run(self, overrides: Sequence[str]) -> Run:
        """Compose, resolve and validate one run.

        Raises:
            ConfigError: with every mistake found, each with its place.
        """
        try:
            return self.validate_classes(self.validated(self.composed(overrides), overrides), overrides)
        except ConfigError as error:
            raise self.with_remedies(error, overrides) from None

    def with_remedies(self, error: ConfigError, overrides: Sequence[str]) -> ConfigError:
        """The error with only the remedies that work."""
        return with_working_remedies(error, overrides, self._problems_of)

    def _problems_of(self, overrides: Sequence[str]) -> Sequence[Problem]:
        try:
            self._checked(self.composed(overrides))
        except ConfigError as error:
            return error.problems
        return ()

    @limited_references()
    def validated(self, composed: DictConfig, overrides: Sequence[str], context: str = "") -> Run:
        """The run of a composition whose values are valid. `context` names it in the error."""
        try:
            return self._checked(composed)
        except ConfigError as error:
            raise error.located(self.origin(overrides).where, context) from None

    def _checked(self, composed: DictConfig) -> Run:
        raise_all(hydra_problems(composed.hydra))
        values = self.frozen(composed)
        config = validated(values)
        check_values(config)
        return Run(config, values, composed)

    @limited_references()
    def validate_classes(self, run: Run, overrides: Sequence[str], context: str = "") -> Run:
        """Import the classes that a run names and validate its values against them.

        Returns:
            The run without the keys of Leyden's YAML that a user-provided class does not take.
        """
        make_importable(run.config)
        found = not_taken(run.config)
        dropped = leftovers(found, self.origin(overrides)) if found else []
        if dropped:
            drop_from_composition(run.composed, [each.key for each in dropped])
            run = replace(self.validated(run.composed, overrides, context), dropped=dropped)
        try:
            run = replace(run, config=check_classes(run.config))
            # after every check that needs no building: this one imports PyTorch
            from .trial_build import problems_of_building

            raise_all(problems_of_building(run.config, self._built))
        except ConfigError as error:
            raise error.located(self.origin(overrides).where, context) from None
        return run

    def origin(self, overrides: Sequence[str]) -> Origin:
        """The place where each key of this composition was set."""
        parsed, files = self.loader.loaded(self.config_name, list(overrides))
        given = [Given(o.key_or_group, typed) for o, typed in zip(parsed, overrides, strict=True)]
        origin = Origin(given)
        for file, package in files:
            origin.read(file, package, shipped=file.is_relative_to(_SHIPPED))
        return origin

    def claim(self, run: Run, overrides: Sequence[str]) -> Claim:
        """Create the run folder hydra.run.dir.

        Raises:
            ConfigError: it holds a run already, or is not writable.
        """
        named = any(override.startswith("hydra.run.dir=") for override in overrides)
        return claim(_run_dir(run.composed), named)

    @limited_references()
    def frozen_in(self, run: Run, folder: Path) -> dict[str, Any]:
        """The run's plain values with `hydra:runtime.output_dir` set to the folder."""
        set_output_dir(run.composed, folder)
        return with_processes_node(self.frozen(run.composed))

    def frozen(self, composed: DictConfig) -> dict[str, Any]:
        """The plain values of a composition, without Hydra's own node."""
        return frozen(without_hydra(composed), composed.hydra, self.python_path, self.swept)

    @limited_references()
    def write_dot_hydra(self, run: Run, folder: Path) -> None:
        """Write config.yaml, hydra.yaml and overrides.yaml in .hydra/, as Hydra does."""
        if run.composed.hydra.output_subdir is None:
            return
        kept = folder / run.composed.hydra.output_subdir
        kept.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(without_hydra(run.composed), kept / "config.yaml")
        OmegaConf.save(OmegaConf.masked_copy(run.composed, "hydra"), kept / "hydra.yaml")
        OmegaConf.save(run.composed.hydra.overrides.task, kept / "overrides.yaml")


def set_output_dir(composed: DictConfig, folder: Path) -> None:
    """Set `hydra:runtime.output_dir`, for interpolations."""
    with read_write(composed.hydra.runtime), open_dict(composed.hydra.runtime):
        composed.hydra.runtime.output_dir = str(folder)
    HydraConfig.instance().set_config(composed)


def _run_dir(composed: DictConfig) -> Path:
    return absolute(resolved_text(composed, "hydra.run.dir"))


def resolved_text(composed: DictConfig, key: str) -> str:
    """The value of a key that names a folder.

    Raises:
        ConfigError: an interpolation in it has no value.
    """
    try:
        return str(OmegaConf.select(composed, key, throw_on_missing=True, throw_on_resolution_failure=True))
    except OmegaConfBaseException as error:
        raise refuse(key, str(error).splitlines()[0], remedy=f"{key}=FOLDER") from None


def without_hydra(composed: DictConfig) -> DictConfig:
    """A copy of the composition without Hydra's node."""
    user = deepcopy(composed)
    with flag_override(user, ["struct", "readonly"], False):
        if "hydra" in user:
            del user["hydra"]
    return user


@limited_references()
def plain(composed: DictConfig) -> dict[str, Any]:
    """Resolved plain values.

    Raises:
        ConfigError: a mandatory value is missing, or an interpolation has no target or is circular.
    """
    try:
        missing = sorted(OmegaConf.missing_keys(composed))
        if missing:
            raise ConfigError(*[_mandatory(key) for key in missing])
        resolved = OmegaConf.to_container(composed, resolve=True)
    except OmegaConfBaseException as error:
        raise unresolved(error, composed) from None
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def frozen(composed: DictConfig, hydra: Any, python_path: Sequence[str], swept: Sequence[str] = ()) -> dict[str, Any]:
    """The plain values of a run, from its composition without Hydra's own node.

    Args:
        composed: the user's keys.
        hydra: Hydra's own node (a HydraConf, or the same as a DictConfig).
        python_path: folders of user-provided classes.
        swept: keys that the run's sweep varies.
    """
    values = with_new_names(plain(composed))
    choices = hydra.runtime.choices
    for group in ("optimizer", "schedule"):
        # train.yaml has keys for these groups, meaningless if the group is null.
        if choices.get(group) is None and "_target_" not in (values.get(group) or {}):
            values[group] = None
    values["composition"] = {
        "choices": {g: choice for g, choice in choices.items() if not g.startswith("hydra/")},
        "overrides": [str(override) for override in hydra.overrides.task],
        "swept": list(swept),
    }
    dataset = values.get("dataset")
    if choices.get("dataset") is None and isinstance(dataset, dict) and "_target_" not in dataset:
        values["dataset"] = {"_target_": TASK_LOADERS, **dataset}
    given = values.get("python_path", [])
    if isinstance(given, list):
        values["python_path"] = list(dict.fromkeys([*given, *python_path]))
    resolve_device_kind(values)
    return values


def _mandatory(key: str) -> Problem:
    return Problem(key, "must be given, there is no value for it yet (???)", remedy=f"{key}=VALUE")


def unresolved(error: OmegaConfBaseException, composed: DictConfig) -> ConfigError:
    """What to say of an interpolation that gives no value."""
    key = re.sub(r"\[(\d+)\]", r".\1", str(error.full_key or ""))
    first = str(error).splitlines()[0]
    text = first[0].lower() + first[1:]
    if "Recursive interpolation" in first:
        text = "the interpolation leads back to itself"
    elif first.startswith("RecursionError"):
        text = "the interpolation is nested too deeply"
    elif first.startswith("Interpolation key"):
        text = f"there is no key {first.split(chr(39))[1]!r} to take the value from"
    return refuse(key, text, _raw(composed, key), f"{key}=VALUE")


def _raw(composed: DictConfig, key: str) -> Any:
    """The text of an unresolvable value."""
    node: Any = OmegaConf.to_container(composed, resolve=False)
    for part in key.split("."):
        node = node[int(part)] if isinstance(node, list) else node.get(part) if isinstance(node, dict) else ...
    return node


def parsed_overrides(overrides: Sequence[str]) -> list[Override]:
    """Overrides parsed by Hydra's grammar.

    Raises:
        ConfigError: one of them cannot be parsed.
    """
    try:
        return OverridesParser.create().parse_overrides([dataset_spelled(override) for override in overrides])
    except HydraException as error:
        raise explained(error, CompositionRequest(Composer().loader, None, list(overrides))) from None
