"""Errors for unknown flags: flags of other tools, and keys typed as flags."""

import re
from collections.abc import Sequence

from ..base.errors import ConfigError, Problem, nearest, refuse
from ..config.validation import dotted, unknown_key

_UNKNOWN = "unrecognized arguments: "


def usage_error(message: str, arguments: Sequence[str], flags: Sequence[str]) -> ConfigError:
    """The error for a command line that argparse rejects.

    Args:
        message: argparse's.
        arguments: the command line.
        flags: every valid flag.
    """
    unknown = message.removeprefix(_UNKNOWN).split()[0] if message.startswith(_UNKNOWN) else ""
    name, equals, value = unknown.partition("=")
    close = nearest(name, flags, 0.8) if len(name) > 4 else None
    if close or not re.fullmatch(r"--?\w[\w.-]*", name):
        return refuse("command line", message, remedy=close or "leyden --help")
    return _as_key(name, value if equals else _value_after(unknown, arguments), unknown, arguments)


def _value_after(flag: str, arguments: Sequence[str]) -> str | None:
    following = list(arguments)[list(arguments).index(flag) + 1 :]
    return following[0] if following and "=" not in following[0] and not following[0].startswith("-") else None


def _as_key(flag: str, value: str | None, typed: str, arguments: Sequence[str]) -> ConfigError:
    """The error for a flag that is a key in Leyden or a flag of another tool."""
    from ..config.compose import Composer

    composer, key = Composer(), flag.lstrip("-").replace("-", "_")
    given = ... if value is None else value
    others = [word for word in arguments if word not in (typed, value) and "=" in word and not word.startswith("-")]
    text = "there is no such flag; settings are written key=value, without dashes"
    values = composer.loader.plain_values(composer.config_name, [])
    if key in {*dotted(values), *composer.loader.list_groups("")}:
        problem = Problem(flag, text, given, f"{key}={value}" if value is not None else f"{key}=VALUE")
    else:
        found = unknown_key(key, "true" if value is None else value, values)
        said = f"\n{key} {found.text}" if found.text.startswith("is ") else ""
        problem = Problem(flag, text + said, given, found.remedy or "leyden --help")
    return composer.with_remedies(ConfigError(problem), others)
