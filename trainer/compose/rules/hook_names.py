"""Rule: what a user-provided class nearly calls like a hook of Leyden's, and nothing would call."""

from collections.abc import Collection, Iterator
from typing import Any

from ...base.errors import Problem
from ...config.lightning.callbacks import is_lightning_callback
from ...config.misspelt_hooks import contract_of_class, find_misspelling, not_inherited, own_names
from ...config.schema import Config
from ...config.targets import find
from ...core.callback_contract import CallbackContract
from ...core.loggers.contract import LoggerContract
from ...core.task_contract import TaskContract

_OF_LOGGERS_ALONE = ("cut_after", "log_final")
"""Methods of LoggerContract whose names no other logger has; log_image may be a method for the user's own task."""

_OF_TASKS_ALONE = ("more_logged", "try_network")
"""Methods of TaskContract whose names no LightningModule has otherwise; the rest counts without the contract, too, or
may be the user's own."""


def misspelt_hooks(config: Config) -> Iterator[Problem]:
    """Hooks of the task, loggers and callbacks that nothing would call."""
    yield from _names("task", find("task", config.task), TaskContract, _OF_TASKS_ALONE)
    for name, node in config.logger.items():
        if node is not None:
            yield from _names(f"logger.{name}", find(f"logger.{name}", node), LoggerContract, _OF_LOGGERS_ALONE)
    for name, node in config.callbacks.items():
        if node is not None:
            yield from _callback(f"callbacks.{name}", find(f"callbacks.{name}", node))


def _names(key: str, found: Any, base: type, alone: Collection[str]) -> Iterator[Problem]:
    """
    Args:
        base: the contract; nothing of a class without it is called.
        alone: names that a class without it can have for its sake alone.
    """
    if not isinstance(found, type):
        return
    contract = contract_of_class(base)
    for name in sorted(own_names(found)):
        if issubclass(found, base):
            yield from find_misspelling(key, found, name, contract)
        elif name in alone:
            yield not_inherited(key, found, name, contract)


def _callback(key: str, found: Any) -> Iterator[Problem]:
    """The contract's base class may be left out."""
    if isinstance(found, type) and not is_lightning_callback(found):
        contract = contract_of_class(CallbackContract)
        for name in sorted(own_names(found)):
            yield from find_misspelling(key, found, name, contract)
