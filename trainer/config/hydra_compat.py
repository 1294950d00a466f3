# pyright: reportPrivateUsage=false
"""Private names of Hydra, read in hydra-core 1.3.8, and of its OmegaConf: all that Leyden uses outside their APIs.

hydra.main composes under error handling of its own: it exits with 1 on every error and makes folders before a config is
validated. So Leyden drives Hydra's loader, sweepers and callbacks itself. tests/test_compat.py checks these names.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from copy import copy, deepcopy
from functools import wraps
from importlib import resources
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository, IConfigRepository
from hydra._internal.defaults_list import create_defaults_list
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import Container, Node

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
    "observe_references",
    "raw_value",
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
    """

    def __init__(self, search_path: Any, check: Callable[[Path], None]):
        super().__init__(search_path)
        self.repository = _CheckedRepository(search_path, check)

    def parsed(self, config_name: str | None, overrides: list[str]) -> tuple[list[Override], CachingConfigRepository]:
        """Overrides as every composition of this loader takes them, and the repository of its YAML files."""
        return super()._parse_overrides_and_create_caching_repo(config_name, overrides)

    def loaded(self, config_name: str | None, overrides: list[str]) -> tuple[list[Override], list[_Loaded]]:
        """Overrides as a composition takes them, and the YAML files that it merges, in this order."""
        parsed, repository = self.parsed(config_name, overrides)
        merged = create_defaults_list(repository, config_name, parsed, prepend_hydra=True, skip_missing=True).defaults
        named = [(default.config_path, default.package or "") for default in merged if default.config_path]
        found = [(yaml_file(repository.delegate, path), package) for path, package in named]
        return parsed, [(file, package) for file, package in found if file is not None]

    def _parse_overrides_and_create_caching_repo(
        self, config_name: str | None, overrides: list[str], *_parsed: Any
    ) -> tuple[list[Override], CachingConfigRepository]:
        # 1.4 passes overrides that it has parsed already, its own way
        return self.parsed(config_name, overrides)


class _CheckedRepository(ConfigRepository):
    """The YAML files of a search path, each checked before it is read, and read again only if it has changed.

    An error composes the same files several times: for the place of the mistake, and for each remedy that is tried.
    """

    def __init__(self, search_path: Any, check: Callable[[Path], None]):
        super().__init__(search_path)
        self._check = check
        self._read: dict[str, tuple[_Version, ConfigResult | None]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "_CheckedRepository":
        # of Hydra's for each composition, which may add folders to its own search path
        copied = copy(self)
        copied.sources = list(self.sources)
        return copied

    def initialize_sources(self, config_search_path: ConfigSearchPath) -> None:
        super().initialize_sources(config_search_path)
        self._read = {}

    def load_config(self, config_path: str) -> ConfigResult | None:
        file = yaml_file(self, config_path)
        version = None if file is None else _version(file)
        if file is None or version is None:
            return super().load_config(config_path)
        known, result = self._read.get(config_path, (None, None))
        if known != version:
            self._check(file)
            result = super().load_config(config_path)
            self._read[config_path] = (version, deepcopy(result))
            return result
        return deepcopy(result)


_Version = tuple[Path, int, int, int]


def _version(file: Path) -> _Version | None:
    """File, inode, time of change and size; None for one that cannot be read or is no regular file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return (file, status.st_ino, status.st_mtime_ns, status.st_size) if S_ISREG(status.st_mode) else None


def yaml_file(repository: IConfigRepository, config_path: str) -> Path | None:
    """The file behind a config path of Hydra; None for a config that is not a file."""
    find: Any = repository
    source = find._find_object_source(config_path, ObjectType.CONFIG)
    name = ConfigSource._normalize_file_name(config_path)
    if source is None or source.scheme() not in ("file", "pkg"):
        return None
    file = Path(source.path) / name if source.scheme() == "file" else resources.files(source.path).joinpath(name)
    return Path(str(file))


def failure_of(result: JobReturn) -> Any:
    """The exception of a failed job; JobReturn.return_value would raise it."""
    return result._return_value


Around = Callable[[bool], AbstractContextManager[Callable[[Any], None]]]


def observe_references(around: Around) -> None:
    """Resolve each reference from now on within a context, whose value is called with what the reference stands for.

    Args:
        around: called with whether it is that of a resolver, `${name:...}`, and not of a key.
    """
    methods: Any = Container  # of each node that holds others
    for name, is_resolver in (("_resolve_node_interpolation", False), ("_evaluate_custom_resolver", True)):
        setattr(methods, name, _observed(getattr(methods, name), around, is_resolver))


def _observed(resolve: Any, around: Around, is_resolver: bool) -> Any:
    @wraps(resolve)
    def observed(*arguments: Any, **named: Any) -> Any:
        with around(is_resolver) as record:
            value = resolve(*arguments, **named)
            record(value)
            return value

    return observed


def raw_value(node: Any) -> Any:
    """What is in a node of OmegaConf, unresolved: a value, or nodes; of anything else, itself."""
    return node._value() if isinstance(node, Node) else node
