"""Which key of the config an exception is due to that a part of the training raised while it was built."""

import os
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .config import Target
from .errors import CannotStart, Problem
from .origin import shown
from .targets import build

_STARTS_WITH_KEY = re.compile(
    r"([a-z_]+(?:\.\w+)+|init_from|batch_size|optimizer|strategy)=(\S*?)(?::| )\s*(.*)", re.DOTALL
)
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
"""What torch's optimizers allow of an argument, and a value that they take."""


@contextmanager
def at_fault(key: str, node: Target, any_kind: bool = True) -> Iterator[None]:
    """What is raised inside is a mistake in this node of the config, or in the user's class that it names.

    Args:
        key: of the node: model, optimizer, logger.csv.
        any_kind: take every exception for one; False: ValueError and OSError alone.

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


def built(key: str, node: Target, any_kind: bool = True, **given: Any) -> Any:
    """What a node of the config describes, built as `targets.build` does.

    Raises:
        CannotStart: it cannot be; the problem says which key is at fault.
    """
    with at_fault(key, node, any_kind):
        return build(node, **given)


def fault(key: str, node: Target, error: Exception) -> Problem:
    """What to tell the user of an exception that building a node has raised."""
    text = (
        str(error) if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {error}{raised_at(error)}"
    )
    starts = _STARTS_WITH_KEY.fullmatch(text)
    if starts:
        return Problem(starts[1], starts[3], _as_typed(starts[2]))
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


def stated(message: str) -> str | Problem:
    """A message that begins with the key at fault, as KEY=VALUE, taken apart; any other as it is."""
    starts = _STARTS_WITH_KEY.fullmatch(message)
    return Problem(starts[1], starts[3], _as_typed(starts[2])) if starts else message


def _as_typed(value: Any) -> Any:
    """A path that was made absolute when the config was frozen, as it can be read from the current folder."""
    return shown(Path(value)) if isinstance(value, str) and value.startswith("/") else value


def _argument(text: str, arguments: Mapping[str, Any]) -> str:
    """The argument that a message names, or whose path it shows; "" where there is none."""
    for name, value in arguments.items():
        if isinstance(value, str) and ("/" in value or name == "name") and value in text:
            return name
    words = re.findall(r"[a-z_]\w*", text.lower())
    named = {spelling: name for name in arguments for spelling in (name.lower(), name.lower().removesuffix("s"))}
    if "learning rate" in text.lower() and "lr" in arguments:
        return "lr"
    return next((named[word] for word in words if word in named and len(word) > 2), "")


def raised_at(error: BaseException) -> str:
    """File and line of the code outside this package that raised, the innermost that is no library's."""
    if isinstance(error, SyntaxError):
        return f" ({error.filename}:{error.lineno})"
    own = os.path.dirname(__file__)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    users = [f for f in frames if os.path.dirname(f.filename) != own and "site-packages" not in f.filename]
    shown = users or frames
    return f" ({shown[-1].filename}:{shown[-1].lineno})" if shown else ""
