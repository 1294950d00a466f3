"""Exceptions of building models, data and optimizers, attributed to the config key at fault."""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..base.errors import CannotStart, Problem, raised_at
from ..base.paths import shorten_path
from .allowed_targets import RefusedTarget
from .schema import Target
from .target_policy.group_types import wrong_object
from .targets import build

_STARTS_WITH_KEY = re.compile(r"([a-z_]+(?:\.\w+)+|init_from|batch_size|optimizer|strategy)=(\S*?):?\s+(.*)", re.DOTALL)
_INSTALL = re.compile(r"[;:,]? *(pip install [^;)]+)")
_PIXELS = re.compile(r"at least (\d+) x \d+ pixels")
_OURS = (AssertionError, MemoryError, CannotStart)
_ALLOWED: Mapping[str, tuple[str, str]] = {
    "weight_decay": ("must be at least 0", "0.0"),
    "momentum": ("must be at least 0 and less than 1", "0.9"),
    "betas": ("must be two numbers, each at least 0 and less than 1", "[0.9,0.999]"),
    "eps": ("must be at least 0", "1e-8"),
    "nesterov": (
        "needs momentum greater than 0 and dampening 0",
        "optimizer.nesterov=true optimizer.momentum=0.9 optimizer.dampening=0",
    ),
}
"""Range of an argument in torch's optimizers, and a valid value."""


@contextmanager
def at_fault(key: str, node: Target, any_kind: bool = True) -> Generator[None, None, None]:
    """Attribute exceptions raised inside to a node of the config, or to the user-provided class that it names.

    Args:
        key: of the node: model, optimizer, logger.csv.
        any_kind: attribute every exception; False: only ValueError and OSError.

    Raises:
        CannotStart: with the key, for the user.
    """
    try:
        yield
    except _OURS:
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError" or not (any_kind or isinstance(error, ValueError | OSError)):
            raise
        raise CannotStart(fault(key, node, error)) from error


def build_checked(key: str, node: Target, any_kind: bool = True, **supplied: Any) -> Any:
    """The object that a node of the config describes, built by `targets.build`.

    Raises:
        CannotStart: building failed, or gave something of another kind; the problem names the key at fault.
    """
    with at_fault(key, node, any_kind):
        made = build(node, **supplied)
    return check_built(key, node, made)


def check_built(key: str, node: Target, made: Any) -> Any:
    """The object that a node has made, if it is one of its group.

    Raises:
        CannotStart: it is not.
    """
    wrong = wrong_object(key, node.target, made)
    if wrong is not None:
        raise CannotStart(wrong)
    return made


def fault(key: str, node: Target, error: Exception) -> Problem:
    """The problem to show for an exception raised while a node was built."""
    return replace(_fault(key, node, error), executed=not isinstance(error, RefusedTarget))


def _fault(key: str, node: Target, error: Exception) -> Problem:
    text = (
        str(error) if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {error}{raised_at(error)}"
    )
    starts = _STARTS_WITH_KEY.fullmatch(text)
    if starts:
        of_node = starts[1].partition(".")[0] in node.arguments
        return Problem(f"{key}.{starts[1]}" if of_node else starts[1], starts[3], _as_typed(starts[2]))
    name = _argument(text, node.arguments)
    where = f"{key}.{name}" if name else key
    value = _as_typed(node.arguments[name]) if name else node.target.rpartition(".")[2]
    if key == "optimizer" and name in _ALLOWED and isinstance(error, ValueError):
        allowed, example = _ALLOWED[name]
        return Problem(where, allowed, value, example if "=" in example else f"{where}={example}")
    text = text.removeprefix(f"{name}={value} ") if name else text
    install = _INSTALL.search(text)
    if install:
        return Problem(where, text.replace(install[0], ""), value, install[1])
    pixels = _PIXELS.search(text)
    return Problem(where, text, value, f"dataset.image_size={pixels[1]}" if pixels else "")


def as_problem(message: str) -> str | Problem:
    """A message that begins with the key at fault, as KEY=VALUE, taken apart; any other as it is."""
    starts = _STARTS_WITH_KEY.fullmatch(message)
    return Problem(starts[1], starts[3], _as_typed(starts[2])) if starts else message


def _as_typed(value: Any) -> Any:
    """A value as the user typed it: a path that freezing made absolute is shown relative to the current folder."""
    return shorten_path(Path(value)) if isinstance(value, str) and value.startswith("/") else value


def _argument(text: str, arguments: Mapping[str, Any]) -> str:
    """The argument that a message names, or whose path it contains; "" if none."""
    texts = {name: value for name, value in arguments.items() if isinstance(value, str)}
    named = [name for name, value in texts.items() if ("/" in value or name == "name") and value in text]
    if named:
        return max(named, key=lambda name: len(texts[name]))  # a file is often below another argument's folder
    words = re.findall(r"[a-z_]\w*", text.lower())
    spelled = {spelling: name for name in arguments for spelling in (name.lower(), name.lower().removesuffix("s"))}
    if "learning rate" in text.lower() and "lr" in arguments:
        return "lr"
    return next((spelled[word] for word in words if word in spelled and len(word) > 2), "")
