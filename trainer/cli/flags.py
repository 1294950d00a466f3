"""Errors for unknown flags: flags of other tools, and keys typed as flags."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import ConfigError, Problem, nearest, refuse
from ..compose.known_names import find_equivalent
from ..compose.validation import dotted_keys, unknown_key
from .known_verbs import config_file, verb_problem
from .verbs import VERBS

if TYPE_CHECKING:
    from ..compose.composer import Composer

_UNKNOWN = "unrecognized arguments: "
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
_CHOICE = re.compile(r"argument (--[\w-]+)\S*: invalid choice: '?(.*?)'? \(choose from (.+)\)")


def usage_error(message: str, arguments: Sequence[str], flags: Sequence[str]) -> ConfigError:
    """The error for a command line that argparse rejects.

    Args:
        message: argparse's.
        arguments: the command line.
        flags: every valid flag.
    """
    unknown = _unknown(arguments, flags)
    choice = _CHOICE.fullmatch(message)
    if choice and Path(choice[2]).suffix in (".yaml", ".yml"):
        return refuse(
            "-c", "prints the config; a file to start from is named by two flags", choice[2], config_file(choice[2])
        )
    if choice:
        choices = [each.strip(" '") for each in choice[3].split(",")]
        close = nearest(choice[2], choices) or choices[0]
        return refuse(choice[1], f"must be one of {', '.join(choices)}", choice[2], f"{choice[1]} {close}")
    if not message.startswith(_UNKNOWN) or not unknown:
        return refuse("command line", message, remedy="leyden --help")
    return _as_keys(unknown, arguments, flags)


def _unknown(arguments: Sequence[str], flags: Sequence[str]) -> list[tuple[str, str | None]]:
    """The flags that there are not, with their values."""
    found: list[tuple[str, str | None]] = []
    for index, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if _FLAG.fullmatch(name) and name not in flags:
            following = arguments[index + 1 : index + 2]
            takes = following and "=" not in following[0] and not re.match(r"-\D", following[0])
            found.append((name, value if equals else following[0] if takes else None))
    return found


def _as_keys(unknown: Sequence[tuple[str, str | None]], arguments: Sequence[str], flags: Sequence[str]) -> ConfigError:
    """The error for flags that are keys in Leyden or flags of another tool."""
    from ..compose.composer import Composer

    composer = Composer()
    first, taken = arguments[0], [value for _, value in unknown]
    is_verb = first in VERBS or first.startswith("-") or "=" in first
    others = [word for word in arguments if word not in taken and "=" in word and not word.startswith("-")]
    values = _values(composer, [*others, *(f"{flag.lstrip('-')}={value}" for flag, value in unknown)])
    problems = [] if is_verb else [verb_problem([first])]
    problems += [_problem(flag, value, composer, values, flags) for flag, value in unknown]
    return composer.with_remedies(ConfigError(*problems), others)


def _values(composer: "Composer", words: Sequence[str]) -> Mapping[str, Any]:
    """Values of the choices among the words, whose keys a flag may mean; of the defaults where these do not compose."""
    groups = composer.loader.list_groups("")
    choices = [word for word in words if word.partition("=")[0] in groups]
    with suppress(Exception):  # a mistake in a choice is named where the run is composed
        return composer.loader.plain_values(composer.config_name, choices)
    return composer.loader.plain_values(composer.config_name, [])


def _problem(
    flag: str, value: str | None, composer: "Composer", values: Mapping[str, Any], flags: Sequence[str]
) -> Problem:
    key, given = flag.lstrip("-").replace("-", "_"), ... if value is None else value
    text = "there is no such flag; settings are written key=value, without dashes"
    groups = composer.loader.list_groups("")
    if key == "config" or (key == "c" and value is not None):
        return Problem(flag, "is no flag; two name a file to start from", given, config_file(value or "FILE.yaml"))
    if key in {*dotted_keys(values), *groups}:
        return Problem(flag, text, given, f"{key}={value}" if value is not None else f"{key}=VALUE")
    close = (
        nearest(flag, flags, 0.8) if len(flag) > 4 and find_equivalent(key.rpartition(".")[2], value) is None else None
    )
    if close:
        return Problem(flag, f"there is no such flag; did you mean {close}?", given, close)
    found = unknown_key(key, "true" if value is None else value, values)
    said = f"\n{key} {found.text}" if found.text.startswith("is ") else ""
    return Problem(flag, text + said, given, found.remedy or ("" if said else "leyden --help"))
