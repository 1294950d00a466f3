"""Files of weights that a config names, resolved once by the host that submits, before the config is frozen."""

from collections.abc import Mapping
from typing import Any

from ..config.hub_weights import with_hub_weights
from ..config.teacher import with_pinned_teacher


def with_pinned_weights(values: Mapping[str, Any]) -> dict[str, Any]:
    """A run's plain values: the weights of a hub fetched and pinned, and a teacher pinned.

    Raises:
        ConfigError: they cannot be fetched or read.
    """
    return with_pinned_teacher(with_hub_weights(values))
