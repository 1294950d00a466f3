"""User errors: key, value, remedy; and several of them shown on one screen."""

import os
import re
import textwrap
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from .printable import printable
from .remedy import remedy_lines

WIDTH = 110
LINES = 20


@dataclass(frozen=True)
class Problem:
    """One mistake: `text` names the fault and the allowed values, `remedy` the text to type instead.

    A remedy that can be pasted as it stands is shown as `try:`, one that leaves something to the user as `needs:`.
    """

    key: str
    text: str
    value: Any = ...
    """The key's value; `...` without one."""
    remedy: str = ""
    where: str = ""
    """File and line, or the override; empty until `ConfigError.located`."""
    executed: bool = False
    """Whether it was found by running code that the config names."""

    def sentence(self) -> str:
        """The problem in one sentence, without its remedy."""
        return (
            f"{self.key}: {self.text}" if self.value is ... else f"{self.key}={shorten_value(self.value)}: {self.text}"
        )

    def as_data(self) -> dict[str, Any]:
        """The problem as JSON values, of which another process can make it again."""
        return {name: value for name, value in asdict(self).items() if value is not ...}

    def lines(self) -> list[str]:
        """The problem as indented lines of text."""
        shown = f"  {self.key}" if self.value is ... else f"  {self.key} = {shorten_value(self.value)}"
        details = [self.text]
        if self.where:
            details.append(f"set by {self.where}")
        if self.remedy:
            details += remedy_lines(self.remedy)
        return [shown, *(line for detail in details for line in _wrap_lines(detail))]


class ConfigError(ValueError):
    """A config or command that cannot be run; no run was started."""

    def __init__(self, *problems: Problem, context: str = ""):
        self.problems = problems
        self.context = context
        """The config with the mistake, such as one trial of a sweep."""
        super().__init__(self.render())

    def with_places(self, where: Callable[[str], str], context: str = "") -> "ConfigError":
        """The same error with the place where each key was set."""
        found = [replace(problem, where=problem.where or where(problem.key)) for problem in self.problems]
        return ConfigError(*found, context=context or self.context)

    def render(self) -> str:
        """All of it on one screen."""
        count = len(self.problems)
        mistakes = "there is a mistake" if count == 1 else f"there are {count} mistakes"
        started = "no run was" if any(problem.executed for problem in self.problems) else "nothing was"
        head = f"leyden: {started} started, {mistakes}" + (f" in {self.context}" if self.context else "")
        return printable(_on_one_screen(head, self.problems))


class CannotStart(ValueError):
    """A user error found only when the parts were built. Nothing was trained."""

    def __init__(self, message: str | Problem):
        self.problem = message if isinstance(message, Problem) else None
        """The problem with the key at fault, if known."""
        super().__init__(message if isinstance(message, str) else message.sentence())

    def as_config_error(self, where: Callable[[str], str] = lambda key: "") -> ConfigError | None:
        """The same mistake as a config error; None if the key at fault is unknown.

        Args:
            where: the place where a key was set.
        """
        return None if self.problem is None else ConfigError(replace(self.problem, executed=True)).with_places(where)


@contextmanager
def as_config_errors(key: str) -> Generator[None, None, None]:
    """Context in which a mistake that is found while parts are built becomes an error of the config.

    Args:
        key: that is named where the key at fault is unknown.
    """
    try:
        yield
    except ConfigError:
        raise
    except CannotStart as error:
        raise error.as_config_error() or refuse(key, str(error), executed=True) from error
    except (ValueError, OSError) as error:
        raise refuse(key, str(error), executed=True) from error


class Explained(Exception):
    """A failure of a running training whose message says it all: a traceback would add nothing."""


class NotFiniteValue(Explained, FloatingPointError):
    """A loss, a weight or an update that is NaN or infinite: the training has diverged."""


class SystemFailure(Explained, OSError):
    """A failure of the host under a run: of its storage, or a lack of file descriptors or memory."""


class NotLogged(Explained, ValueError):
    """A monitored metric that the task has not logged: a user error found only by training.

    The message has the key and the logged metrics.
    """

    def __init__(self, key: str, monitor: str, logged: Iterable[str]):
        super().__init__(f"{key}={monitor} was not logged; logged so far: {', '.join(sorted(logged)) or 'nothing'}")


class Refused(CannotStart):
    """A run refused by the preflight: the machines lack what it needs. Nothing was trained."""

    def __init__(self, *problems: Problem):
        super().__init__(_on_one_screen("leyden: refused by the preflight, no step was made", problems))


def _on_one_screen(head: str, problems: Sequence[Problem]) -> str:
    lines = [head]
    for index, problem in enumerate(problems):
        block = problem.lines()
        if index and len(lines) + len(block) > LINES:
            keys = join_names([problem.key for problem in problems[index:]], 8)
            lines.append(f"  ... and {len(problems) - index} more: {keys}")
            break
        lines += block[:LINES]
    return "\n".join(lines)


def refuse(
    key: str, text: str, value: Any = ..., remedy: str = "", where: str = "", executed: bool = False
) -> ConfigError:
    """A ConfigError of one problem, to be raised by the caller."""
    return ConfigError(Problem(key, text, value, remedy, where, executed))


def raise_all(problems: Iterable[Problem]) -> None:
    """Raise one ConfigError with all problems, if there are any."""
    found = list(problems)
    if found:
        raise ConfigError(*found)


def nearest(name: str, allowed: Iterable[str], cutoff: float = 0.77) -> str | None:
    """The allowed name that the user probably meant: one with this prefix, these letters, or a similar spelling.

    Args:
        cutoff: the smallest ratio of common characters (difflib's), between 0 and 1.
    """
    names = {known.lower(): known for known in allowed}
    close = [known for known in names if len(name) > 2 and known.startswith(name.lower())]
    close += [known for known in names if len(name) > 2 and sorted(known) == sorted(name.lower())]  # dpd: ddp
    close += get_close_matches(name.lower(), names, n=1, cutoff=cutoff)
    return names[close[0]] if close else None


def join_names(names: Sequence[str], most: int = 16) -> str:
    """Names joined for a sentence, at most `most` of them."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown}, ... ({len(names)} in all)"


def shorten_value(value: Any, length: int = 70) -> str:
    """A value as spelled on the command line, shortened."""
    spelled = {None: "null", True: "true", False: "false"}
    text = spelled[value] if value is None or isinstance(value, bool) else str(value)
    return text if len(text) <= length else text[: length - 3] + "..."


def spell_value(value: Any) -> str | None:
    """A value as spelled in an override; None if it does not fit on a command line (mappings)."""
    if isinstance(value, dict) or value is ...:
        return None
    if isinstance(value, list | tuple):
        items = [spell_value(item) for item in value]
        return None if None in items else f"[{','.join(item for item in items if item is not None)}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = str(value)
    return text if re.fullmatch(r"[\w./@:$%+-]+", text) else "'" + text.replace("'", "\\'") + "'"


def _wrap_lines(text: str) -> list[str]:
    return [
        line
        for paragraph in text.splitlines()
        for line in textwrap.wrap(
            paragraph, WIDTH, initial_indent="    ", subsequent_indent="      ", break_long_words=False,
            break_on_hyphens=False,
        )
    ]  # fmt: skip


def raised_at(error: BaseException) -> str:
    """File and line of the code outside this package that raised, the innermost frame outside installed packages."""
    if isinstance(error, SyntaxError):
        return f" ({error.filename}:{error.lineno})"
    own = f"{Path(__file__).parents[1]}{os.sep}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    users = [f for f in frames if not f.filename.startswith(own) and "site-packages" not in f.filename]
    shown = users or frames
    return f" ({shown[-1].filename}:{shown[-1].lineno})" if shown else ""
