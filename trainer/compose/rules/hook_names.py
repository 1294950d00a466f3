"""Rule: what a user-provided class nearly calls like a hook of Leyden's, and nothing would call."""

from collections.abc import Iterator
from typing import Any

from ...base.errors import Problem
from ...config.lightning.callbacks import is_lightning_callback
from ...config.misspelt_hooks import contract_of_class, misspelt, not_inherited, own_names
from ...config.schema import Config
from ...config.targets import find
from ...core.callback_contract import CallbackContract
from ...core.loggers.contract import LoggerContract

_OF_LEYDEN_ALONE = ("cut_after", "log_final")
"""Methods of LoggerContract whose names no other logger has; log_image may be a method for the user's own task."""


def misspelt_hooks(config: Config) -> Iterator[Problem]:
    """Hooks of loggers and callbacks that nothing would call."""
    for name, node in config.logger.items():
        if node is not None:
            yield from _logger(f"logger.{name}", find(f"logger.{name}", node))
    for name, node in config.callbacks.items():
        if node is not None:
            yield from _callback(f"callbacks.{name}", find(f"callbacks.{name}", node))


def _logger(key: str, found: Any) -> Iterator[Problem]:
    if not isinstance(found, type):
        return
    contract = contract_of_class(LoggerContract)
    for name in sorted(own_names(found)):
        if issubclass(found, LoggerContract):
            yield from misspelt(key, found, name, contract)
        elif name in _OF_LEYDEN_ALONE:
            yield not_inherited(key, found, name, contract)


def _callback(key: str, found: Any) -> Iterator[Problem]:
    if isinstance(found, type) and not is_lightning_callback(found):
        contract = contract_of_class(CallbackContract)
        for name in sorted(own_names(found)):
            yield from misspelt(key, found, name, contract)
