"""Mistakes in what the user asked for: what one says, and how several are shown on one screen."""

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

WIDTH = 110
LINES = 20


@dataclass(frozen=True)
class Problem:
    """One mistake. `text` says what is wrong and what is allowed, `remedy` what to type instead."""

    key: str
    text: str
    value: Any = ...
    """What the key was set to; `...` where there is no value."""
    remedy: str = ""
    where: str = ""
    """File and line, or the override; empty until `ConfigError.located`."""

    def sentence(self) -> str:
        """The problem in one sentence, without its remedy."""
        return f"{self.key}: {self.text}" if self.value is ... else f"{self.key}={shortened(self.value)}: {self.text}"

    def lines(self) -> list[str]:
        """The problem as indented lines of text."""
        shown = f"  {self.key}" if self.value is ... else f"  {self.key} = {shortened(self.value)}"
        details = [self.text]
        if self.where:
            details.append(f"set by {self.where}")
        if self.remedy:
            details.append(f"try: {self.remedy}")
        return [shown, *(line for detail in details for line in _wrapped(detail))]


class ConfigError(ValueError):
    """What the user asked for cannot be done; nothing was started."""

    def __init__(self, *problems: Problem, context: str = ""):
        self.problems = problems
        self.context = context
        """Which of several configs is wrong: the trial of a sweep."""
        super().__init__(self.rendered())

    def located(self, where: Callable[[str], str], context: str = "") -> "ConfigError":
        """The same error, saying of each key where it was set."""
        found = [replace(problem, where=problem.where or where(problem.key)) for problem in self.problems]
        return ConfigError(*found, context=context or self.context)

    def rendered(self) -> str:
        """All of it on one screen."""
        count = len(self.problems)
        mistakes = "there is a mistake" if count == 1 else f"there are {count} mistakes"
        head = f"leyden: nothing was started, {mistakes}" + (f" in {self.context}" if self.context else "")
        return _on_one_screen(head, self.problems)


class CannotStart(ValueError):
    """A user's mistake that showed only when the parts were built. Nothing was trained."""

    def __init__(self, said: str | Problem):
        self.problem = said if isinstance(said, Problem) else None
        """With the key at fault, where that is known."""
        super().__init__(said if isinstance(said, str) else said.sentence())

    def as_config_error(self, where: Callable[[str], str] = lambda key: "") -> ConfigError | None:
        """As a mistake found before the start is shown; None where the key at fault is not known.

        Args:
            where: what set a key.
        """
        return None if self.problem is None else ConfigError(self.problem).located(where)


class NotLogged(ValueError):
    """A metric that the config watches and the task has not logged: a user's mistake that only training shows.

    The message has the key and what was logged; a traceback would say nothing more.
    """

    def __init__(self, key: str, monitor: str, logged: Iterable[str]):
        super().__init__(f"{key}={monitor} was not logged; logged so far: {', '.join(sorted(logged)) or 'nothing'}")


class Refused(CannotStart):
    """What the preflight found: the machines are not what the run needs. Nothing was trained."""

    def __init__(self, *problems: Problem):
        super().__init__(_on_one_screen("leyden: refused by the preflight, no step was made", problems))


def _on_one_screen(head: str, problems: Sequence[Problem]) -> str:
    lines = [head]
    for index, problem in enumerate(problems):
        block = problem.lines()
        if index and len(lines) + len(block) > LINES:
            lines.append(f"  ... and {len(problems) - index} more")
            break
        lines += block[:LINES]
    return "\n".join(lines)


def refuse(key: str, text: str, value: Any = ..., remedy: str = "", where: str = "") -> ConfigError:
    """An error of one problem."""
    return ConfigError(Problem(key, text, value, remedy, where))


def raise_all(problems: Iterable[Problem]) -> None:
    """Raise one error that holds all problems, if there are any."""
    found = list(problems)
    if found:
        raise ConfigError(*found)


def nearest(name: str, allowed: Iterable[str], cutoff: float = 0.77) -> str | None:
    """The allowed name that the user probably meant: one that begins so, or is spelled nearly so.

    Args:
        cutoff: the least ratio of common characters (difflib's), between 0 and 1.
    """
    names = {known.lower(): known for known in allowed}
    close = [known for known in names if len(name) > 2 and known.startswith(name.lower())]
    close += get_close_matches(name.lower(), names, n=1, cutoff=cutoff)
    return names[close[0]] if close else None


def listed(names: Sequence[str], most: int = 16) -> str:
    """Names for a sentence, the first few if there are many."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown}, ... ({len(names)} in all)"


def shortened(value: Any, length: int = 70) -> str:
    """A value as the command line spells it, cut where it is long."""
    spelled = {None: "null", True: "true", False: "false"}
    text = spelled[value] if value is None or isinstance(value, bool) else str(value)
    return text if len(text) <= length else text[: length - 3] + "..."


def spelled(value: Any) -> str | None:
    """A value as an override takes it; None for what does not fit on a command line (keys and values)."""
    if isinstance(value, dict) or value is ...:
        return None
    if isinstance(value, list | tuple):
        items = [spelled(item) for item in value]
        return None if None in items else f"[{','.join(item for item in items if item is not None)}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = str(value)
    return text if re.fullmatch(r"[\w./@:$%+-]+", text) else "'" + text.replace("'", "\\'") + "'"


def _wrapped(text: str) -> list[str]:
    return [
        line
        for paragraph in text.splitlines()
        for line in textwrap.wrap(
            paragraph, WIDTH, initial_indent="    ", subsequent_indent="      ", break_long_words=False,
            break_on_hyphens=False,
        )
    ]  # fmt: skip
