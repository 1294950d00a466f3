"""Names in user-provided classes that look like hooks and would never be called."""

from collections.abc import Collection, Iterator
from difflib import get_close_matches
from typing import NamedTuple

from ..base.errors import Problem

_LIBRARIES = ("builtins", "torch", "lightning", "lightning_fabric", "pytorch_lightning", "leyden")
_NEARLY = 0.85
"""Similarity (difflib's ratio) above which a name is a misspelt hook: evaluation_weights is another word, eval_weight
is not."""
_NEARLY_EVENT = 0.7
"""The same for on_...: names of events are the frameworks', such as Lightning's on_train_epoch_end for on_epoch_end."""


class Contract(NamedTuple):
    """A base class with hooks."""

    name: str
    module: str
    hooks: Collection[str]


def contract_of_class(cls: type) -> Contract:
    """The contract that a base class states: its public names are the hooks."""
    return Contract(cls.__name__, cls.__module__, [name for name in vars(cls) if not name.startswith("_")])


def own_names(found: type) -> set[str]:
    """Public names that a class and its user-provided bases define, and no base of a library."""
    own = [base for base in found.__mro__ if base.__module__.partition(".")[0] not in _LIBRARIES]
    known = {name for base in found.__mro__ if base not in own for name in vars(base)}
    return {name for base in own for name in vars(base) if not name.startswith("_")} - known


def not_inherited(key: str, found: type, name: str, contract: Contract) -> Problem:
    """The problem of a hook in a class that does not inherit the contract."""
    base, cls = found.__bases__[0].__name__, found.__name__
    text = f"{cls} defines {name}, a hook of Leyden's {contract.name}, and does not inherit it"
    remedy = f"class {cls}({contract.name}{'' if base == 'object' else f', {base}'}), from {contract.module}"
    return Problem(f"{key}._target_", text, cls, remedy)


def find_misspelling(key: str, found: type, name: str, contract: Contract) -> Iterator[Problem]:
    """The problem of a name that is nearly a hook's."""
    nearly = _NEARLY_EVENT if name.startswith("on_") else _NEARLY
    if name not in contract.hooks and (close := get_close_matches(name, contract.hooks, 1, nearly)):
        text = f"{found.__name__} defines {name}, which nothing calls; the hook of {contract.name} is {close[0]}"
        remedy = f"def {close[0]}, or _{name} if it is not a hook"
        yield Problem(f"{key}._target_", text, found.__name__, remedy)
