# pyright: reportPrivateUsage=false
"""Private names of Hydra, read in hydra-core 1.3.8, and of its OmegaConf: all that Leyden uses outside their APIs.

hydra.main composes under error handling of its own: it exits with 1 on every error and makes folders before a config is
validated. So Leyden drives Hydra's loader, sweepers and callbacks itself.
tests/integration/test_compat.py checks these names.
"""

from collections import defaultdict
from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from importlib import resources
from operator import is_not
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

from hydra._internal import defaults_list
from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository, IConfigRepository
from hydra._internal.defaults_list import Overrides, _create_interpolation_map, create_defaults_list
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.default_element import InputDefault, ResultDefault
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import Container, DictConfig
from omegaconf.base import Metadata
from omegaconf.nodes import ValueNode

if TYPE_CHECKING:
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

__all__ = [
    "READ_IN",
    "CachingConfigRepository",
    "Callbacks",
    "ConfigLoader",
    "Hydra",
    "basic_sweeper",
    "create_config_search_path",
    "failure_of",
    "yaml_file",
]

READ_IN = "1.3.8"


def basic_sweeper() -> "type[BasicSweeper]":
    """Class of Hydra's basic sweeper."""
    # not above: Hydra's scan for plugins executes the module again, and sweepers are of the class that this makes
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    return BasicSweeper


_Loaded = tuple[Path, str]
"""A YAML file, and the package of its keys."""


class ConfigLoader(ConfigLoaderImpl):
    """Hydra's config loader, its parsing of overrides open to subclasses and callers.

    Args:
        check: called with every YAML file before Hydra reads it.
        check_place: called with every place of `hydra.searchpath` before Hydra imports it.
    """

    def __init__(self, search_path: Any, check: Callable[[Path], None], check_place: Callable[[str], None]):
        super().__init__(search_path)
        self.repository = _CheckedRepository(search_path, check, check_place)

    def parse_typed(
        self, config_name: str | None, overrides: list[str]
    ) -> tuple[list[Override], CachingConfigRepository]:
        """Overrides as every composition of this loader takes them, and the repository of its YAML files."""
        return super()._parse_overrides_and_create_caching_repo(config_name, overrides)

    def list_merged_files(self, config_name: str | None, overrides: list[str]) -> tuple[list[Override], list[_Loaded]]:
        """Overrides as a composition takes them, and the YAML files that it merges, in this order."""
        parsed, repository = self.parse_typed(config_name, overrides)
        merged = create_defaults_list(repository, config_name, parsed, prepend_hydra=True, skip_missing=True).defaults
        named = [(default.config_path, default.package or "") for default in merged if default.config_path]
        found = [(yaml_file(repository.delegate, path), package) for path, package in named]
        return parsed, [(file, package) for file, package in found if file is not None]

    def _compose_config_from_defaults_list(self, defaults: list[ResultDefault], repo: IConfigRepository) -> DictConfig:
        merged = tuple((default.config_path, default.package, default.primary) for default in defaults)
        files = [loaded.config for path, *_ in merged if path and (loaded := repo.load_config(path))]
        known, composed = _composed.get(merged, ([], None))
        if composed is None or len(known) != len(files) or any(map(is_not, known, files)):
            composed = super()._compose_config_from_defaults_list(defaults, repo)
            _composed[merged] = files, composed
            if len(_composed) > _MOST_COMPOSED:
                del _composed[next(iter(_composed))]
        return deepcopy(composed)

    def _load_single_config(self, default: ResultDefault, repo: IConfigRepository) -> ConfigResult:
        loaded = super()._load_single_config(default, repo)
        if default.package:
            return loaded  # placed in the package as a copy
        return replace(loaded, config=deepcopy(loaded.config))

    def _parse_overrides_and_create_caching_repo(
        self, config_name: str | None, overrides: list[str], *_parsed: Any
    ) -> tuple[list[Override], CachingConfigRepository]:
        # 1.4 passes overrides that it has parsed already, its own way
        return self.parse_typed(config_name, overrides)


class _CheckedRepository(ConfigRepository):
    """The YAML files of a search path, each checked before it is read, and read again only if it has changed.

    A sweep composes the same files for each trial, and an error does for the place of the mistake and for each remedy
    that is tried.
    """

    def __init__(self, search_path: Any, check: Callable[[Path], None], check_place: Callable[[str], None]):
        self._check, self._check_place = check, check_place
        super().__init__(search_path)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_CheckedRepository":
        # of Hydra's for each composition, which may add folders to its own search path
        copied = copy(self)
        copied.sources = list(self.sources)
        return copied

    def initialize_sources(self, config_search_path: ConfigSearchPath) -> None:
        for place in config_search_path.get_path():
            if str(place.provider).startswith("hydra.searchpath"):
                self._check_place(str(place.path))
        super().initialize_sources(config_search_path)

    def load_config(self, config_path: str) -> ConfigResult | None:
        source = _source_of(self, config_path)
        version = None if source is None else _version(source, config_path)
        if source is None or version is None:
            return super().load_config(config_path)
        place = (source.provider, source.scheme(), source.path, config_path)
        known, result = _read.get(place, (None, None))
        if known != version or result is None:
            if isinstance(version, FileVersion):
                self._check(version.file)
            result = super().load_config(config_path)
            assert result is not None
            _read[place] = (version, result)
        # the keys are copied by what merges them, and the defaults list is changed by what composes it
        return replace(result, defaults_list=deepcopy(result.defaults_list))


@dataclass(frozen=True)
class FileVersion:
    """State of a YAML file: another one is read again."""

    file: Path
    inode: int
    changed_ns: int
    size: int


_read: dict[tuple[str, ...], tuple[FileVersion | ConfigNode, ConfigResult]] = {}
"""What this process has read, by where it was found."""
_composed: dict[tuple[Any, ...], tuple[list[Container], DictConfig]] = {}
"""What this process has composed of them, before overrides of keys: all trials of a sweep are of a few such."""
_MOST_COMPOSED = 32


def _source_of(repository: IConfigRepository, config_path: str) -> ConfigSource | None:
    find: Any = repository
    return find._find_object_source(config_path, ObjectType.CONFIG)


def _version(source: ConfigSource, config_path: str) -> FileVersion | ConfigNode | None:
    """State of a config; None for one that cannot be read or is no regular file."""
    if source.scheme() == "structured":
        return ConfigStore.instance()._load(ConfigSource._normalize_file_name(config_path))
    file = _file_in(source, config_path)
    try:
        status = None if file is None else file.stat()
    except OSError:
        return None
    if file is None or status is None or not S_ISREG(status.st_mode):
        return None
    return FileVersion(file, status.st_ino, status.st_mtime_ns, status.st_size)


def yaml_file(repository: IConfigRepository, config_path: str) -> Path | None:
    """The file behind a config path of Hydra; None for a config that is not a file."""
    source = _source_of(repository, config_path)
    return None if source is None else _file_in(source, config_path)


def _file_in(source: ConfigSource, config_path: str) -> Path | None:
    name = ConfigSource._normalize_file_name(config_path)
    if source.scheme() not in ("file", "pkg"):
        return None
    file = Path(source.path) / name if source.scheme() == "file" else resources.files(source.path).joinpath(name)
    return Path(str(file))


def _choices_for_interpolations(overrides: Overrides, defaults: list[InputDefault], self_added: bool) -> DictConfig:
    """Hydra's, which makes a config of all choices at each file, for the few whose defaults list interpolates them."""
    if any(default.is_interpolation() for default in defaults if not default.is_self()):
        return _create_interpolation_map(overrides, defaults, self_added)
    return DictConfig({})


defaults_list._create_interpolation_map = _choices_for_interpolations


def _copy_metadata(metadata: Metadata, memo: dict[int, Any]) -> Metadata:
    """A copy with flags and resolved values of its own; types and names, which never change, are the same objects."""
    copied = object.__new__(type(metadata))
    vars(copied).update(vars(metadata))
    copied.flags = dict(metadata.flags or {})
    known = metadata.resolver_cache
    copied.resolver_cache = deepcopy(known, memo) if known else defaultdict(dict)
    return copied


def _copy_value(node: ValueNode, memo: dict[int, Any]) -> ValueNode:
    """A copy of a node that has no nodes below it, with the same parent: as OmegaConf's, without validating again."""
    copied = object.__new__(type(node))
    vars(copied).update(vars(node), _metadata=_copy_metadata(node._metadata, memo), _flags_cache=None)
    return copied


# Hydra and OmegaConf copy a composition several times, by the general deepcopy: half of the time of every composition
Metadata.__deepcopy__ = _copy_metadata  # pyright: ignore[reportAttributeAccessIssue]
for _kind in ValueNode.__subclasses__():
    _kind.__deepcopy__ = _copy_value  # pyright: ignore[reportAttributeAccessIssue]


def failure_of(result: JobReturn) -> Any:
    """The exception of a failed job; JobReturn.return_value would raise it."""
    return result._return_value
