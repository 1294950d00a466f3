"""Cells of `leyden plan -m`: every combination of the values of some keys."""

from collections.abc import Sequence

from ...base.errors import refuse
from ...compose.composer import parse_overrides
from ...compose.hydra_compat import basic_sweeper


def cells(overrides: Sequence[str]) -> list[tuple[list[str], list[str]]]:
    """(all overrides, those that vary) of each cell.

    Raises:
        ConfigError: no key has several values, or one of the overrides cannot be parsed.
    """
    parsed = parse_overrides(overrides)
    varied = {override.get_key_element() for override in parsed if override.is_sweep_override()}
    if not varied:
        raise refuse("-m", "needs a key with several values", remedy="leyden plan -m strategy=ddp,butterfly ...")
    batches = basic_sweeper().split_arguments(parsed, None)
    return [(words, [w for w in words if w.partition("=")[0] in varied]) for words in batches[0]]
