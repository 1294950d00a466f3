"""Loader of YAML and overrides: Hydra's, with overrides as Leyden documents them and limits of what is read."""

import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override, OverrideType
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from ...base import limited_yaml
from ...base.errors import Problem, raise_all, refuse
from ...base.paths import shorten_path
from ...config.allowed_targets import origin_of
from ..hydra_compat import CachingConfigRepository, ConfigLoader
from ..limits import limit_composition
from .hydra_errors import explain_error
from .request import CompositionRequest
from .resolved_values import without_hydra
from .several_values import refuse_several
from .written_values import base_60

SHIPPED = Path(str(resources.files("leyden.conf")))
"""The folder of Leyden's own YAML."""
MAX_DEPTH = 24
"""References that stand inside of each other: the parser of OmegaConf is recursive."""
BUILT_GROUPS = ("dataset", "augment", "model", "task", "strategy", "optimizer", "schedule", "callbacks", "logger")
"""Groups whose nodes are classes: keys below them may be constructor arguments that no YAML names."""


class Loader(ConfigLoader):
    """Hydra's loader with three extensions of overrides: `data=` for `dataset=`, `GROUP=null`, no `+` for arguments."""

    def __init__(self, search_path: Any):
        super().__init__(search_path, _refuse_too_large, _refuse_place)
        self._plain: dict[tuple[str | None, ...], Any] = {}
        self._explains = False
        """Whether a message is being made, which composes too: its own mistakes are not of interest."""

    def parse_typed(
        self, config_name: str | None, overrides: list[str]
    ) -> tuple[list[Override], CachingConfigRepository]:
        for override in overrides:
            if nested_references(override) > MAX_DEPTH:
                key, _, value = override.partition("=")
                raise refuse(key, f"interpolations are nested more than {MAX_DEPTH} deep", value)
        spelled = [dataset_spelled(override) for override in overrides]
        parsed, repository = super().parse_typed(config_name, spelled)
        for override in parsed:
            _relax(override, repository)
            refuse_several(override, overrides)
        return parsed, repository

    @limit_composition()
    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        problems: list[Problem] = []
        found: DictConfig | None = None
        while True:
            try:
                found = super().load_configuration(
                    config_name, overrides, run_mode, from_shell, validate_sweep_overrides
                )
            except Exception as error:  # For some mistakes Hydra and OmegaConf raise AttributeError and the like.
                mistakes = self._explain_mistakes(error, CompositionRequest(self, config_name, overrides))
            else:
                mistakes = ()
            problems += mistakes
            others = without(overrides, mistakes)
            if self._explains or len(others) == len(overrides):
                break
            overrides = others
        raise_all(problems)
        assert found is not None
        return found

    def _explain_mistakes(self, error: Exception, request: CompositionRequest) -> Sequence[Problem]:
        before, self._explains = self._explains, True
        try:
            return explain_error(error, request).problems
        finally:
            self._explains = before

    def plain_values(self, config_name: str | None, overrides: Sequence[str]) -> dict[str, Any]:
        """The user's keys of a composition, unresolved, for look-ups of names."""
        wanted = (config_name, *overrides)
        if wanted not in self._plain:
            composed = self.load_configuration(config_name, list(overrides), RunMode.MULTIRUN)
            self._plain[wanted] = OmegaConf.to_container(without_hydra(composed), resolve=False)
        return self._plain[wanted]


def without(overrides: Sequence[str], problems: Sequence[Problem]) -> list[str]:
    """The overrides that make none of these mistakes."""
    typed = [problem.where.removeprefix("override '").removesuffix("'") for problem in problems]
    mistakes = {*typed, *(word for each in typed for word in each.split())}  # words of one value that a space cuts
    return [override for override in overrides if override not in mistakes]


def nested_references(text: str) -> int:
    """How many references stand inside each other in a text: `${a.${b}}` has two. Nothing is parsed."""
    depth = deepest = 0
    for brace in re.finditer(r"\$\{|\}", text):
        depth = depth + 1 if brace[0] == "${" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


def _refuse_place(place: str) -> None:
    """Refuse a package of `hydra.searchpath` that no config may name: it is imported."""
    scheme, _, package = place.rpartition("://")
    if scheme == "pkg" and (origin_of(package) == "stdlib" or "__" in package):
        text = "is Python's own: a package with YAML files is wanted"
        raise refuse("hydra.searchpath", text, place, "file://FOLDER")


def _refuse_too_large(file: Path) -> None:
    """Refuse a YAML file beyond the limits before Hydra, whose parser is recursive, reads it."""
    if file.is_relative_to(SHIPPED):
        return
    try:
        text = limited_yaml.read(file)
        limited_yaml.check(text)
        misread = base_60(text, file)
    except limited_yaml.YAMLTooLarge as error:
        raise refuse(shorten_path(file), f"is refused: {error}", remedy="a smaller file, without aliases") from None
    except (OSError, ValueError) as error:
        raise refuse(shorten_path(file), f"cannot be read: {error}", remedy="a file of UTF-8 text") from None
    except YAMLError:
        return  # of Hydra's parser, whose message has the place
    if misread is not None:
        raise misread
    if nested_references(text) > MAX_DEPTH:
        raise refuse(shorten_path(file), f"is refused: interpolations are nested more than {MAX_DEPTH} deep")


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
