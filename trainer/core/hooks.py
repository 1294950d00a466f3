"""Hooks of LightningModules and data modules, called as Lightning's Trainer calls them; those of Leyden's contracts."""

import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from lightning.pytorch import LightningDataModule, LightningModule

from ..config.lightning.base_classes import overrides

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Hooks:
    """Calls of the hooks that a task or data module defines; undefined ones cost nothing."""

    def __init__(self, *modules: LightningModule | LightningDataModule):
        self._modules = modules
        self.observers: Any = None
        """Lightning callbacks (callbacks.lightning.Observers), called before the modules."""
        self._found: dict[str, list[tuple[Callable[..., Any], int]]] = {}

    def find(self, hook: str) -> list[Callable[..., Any]]:
        return [method for method, _ in self._taking(hook)]

    def bind_hook(self, hook: str) -> Callable[..., None] | None:
        """The call of a hook; None: no method defines it."""
        return partial(self, hook) if self._taking(hook) else None

    def observing_methods(self, hook: str) -> list[Callable[..., Any]]:
        """Only the methods of Lightning callbacks."""
        return [] if self.observers is None else self.observers.methods(hook)

    def _taking(self, hook: str) -> list[tuple[Callable[..., Any], int]]:
        """The hook's methods, and the number of arguments of each."""
        found = self._found.get(hook)
        if found is None:
            methods = [getattr(m, hook) for m in self._modules if hasattr(m, hook) and overrides(m, hook)]
            methods = [*self.observing_methods(hook), *methods]
            found = self._found[hook] = [(method, positional(method)) for method in methods]
        return found

    def __call__(self, hook: str, *arguments: Any) -> None:
        for method, taken in self._taking(hook):
            answer = method(*arguments[:taken])
            if answer is not None and hook == "on_train_batch_start" and answer == -1:
                raise NotImplementedError("on_train_batch_start returned -1: an epoch's rest cannot be skipped")


def own_hook(
    value: object, hook: Callable[Concatenate[Any, Parameters], Result]
) -> Callable[Parameters, Result] | None:
    """An object's method of a contract's hook; None: it has none, or inherits the contract's default."""
    method = getattr(value, hook.__name__, None)
    return None if getattr(method, "__func__", None) is hook else method


def positional(method: Callable[..., Any]) -> int:
    """Number of positional arguments of a method."""
    parameters = inspect.signature(method).parameters.values()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return sys.maxsize
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
