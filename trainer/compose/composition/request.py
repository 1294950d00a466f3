"""A composition that failed, as the messages about it need it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from ...base.errors import ConfigError


class Groups(Protocol):
    """The part of Hydra's loader that messages need."""

    repository: Any

    def list_groups(self, parent_name: str) -> list[str]: ...

    def get_group_options(self, group_name: str) -> list[str]: ...

    def plain_values(self, config_name: str | None, overrides: Sequence[str]) -> dict[str, Any]: ...

    def load_configuration(self, config_name: str | None, overrides: list[str], run_mode: RunMode) -> DictConfig: ...


@dataclass(frozen=True)
class CompositionRequest:
    """The composition that failed: loader, root config and overrides."""

    loader: Groups
    config_name: str | None
    overrides: list[str]

    def override_of(self, key: str) -> str:
        """The override that sets this key, as typed; "" if none does."""
        sets_it = [o for o in self.overrides if self.key_of(o) in spellings(key)]
        return f"override '{sets_it[-1]}'" if sets_it else ""

    def parse_request(self) -> list[Override]:
        return OverridesParser.create().parse_overrides(self.overrides)

    def groups(self) -> list[str]:
        """Names of the config groups."""
        return self.loader.list_groups("")

    def values_without(self, key: str) -> dict[str, Any]:
        """Composed values without the override of a key; without any override if that fails too."""
        others = [o for o in self.overrides if self.key_of(o) not in spellings(key)]
        try:
            return self.loader.plain_values(self.config_name, others)
        except ConfigError:
            return self.loader.plain_values(self.config_name, [])

    def value_without(self, key: str) -> Any:
        """The value that a key has without its override; None if it has none."""
        return OmegaConf.select(OmegaConf.create(self.values_without(key)), key, throw_on_missing=False)

    @staticmethod
    def key_of(override: str) -> str:
        return re.sub(r"^[+~]+", "", override.split("=")[0])


def parse_override(text: str) -> Override | None:
    """The override; None if Hydra cannot parse it."""
    try:
        return OverridesParser.create().parse_override(text)
    except (HydraException, ValueError):
        return None


def spellings(key: str) -> tuple[str, ...]:
    return (key, key.replace("dataset", "data", 1)) if key.startswith("dataset") else (key,)
