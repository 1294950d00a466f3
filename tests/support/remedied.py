"""Remedies as they are shown after `try:`, typed in place of the mistake."""

import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from leyden.trainer.base.errors import Problem
from leyden.trainer.cli.main import main
from leyden.trainer.cli.verbs import VERBS
from leyden.trainer.compose.composer import Composer

_OVERRIDE = re.compile(r"[+~]*([\w.@/]+)(=.*)?$", re.DOTALL)


def shown(error: str) -> list[str]:
    """Remedies in what a command has printed."""
    text = error.replace("\n      ", " ")
    return [line.removeprefix("    try: ") for line in text.splitlines() if line.startswith("    try: ")]


def works(remedy: str, command: Sequence[str] = ()) -> bool:
    """Whether a remedy passes every check before the start, alone or in place of a mistake in the command."""
    words = shlex.split(remedy)
    if words[0].startswith("-"):
        return words[0] == "--cfg" or main([*words, "--cfg", "job"]) == 0
    if Path(words[0]).exists() or words[:2] == ["pip", "install"]:
        return True
    is_sweep = " -m " in f" {remedy} "
    words = [word for word in words if word not in ("leyden", "-m")]
    if words and words[0] in VERBS:
        return True
    one = [_first_value(word) if is_sweep else word for word in words]
    return any(not any(map(_is_wrong, _composer().problems_of(typed))) for typed in _typed(one, command))


@cache
def _composer() -> Composer:
    return Composer()


def _first_value(word: str) -> str:
    """An override of a sweep with the first of its values."""
    return re.sub(r"=\w+\((\d+)\)$", r"=\1", re.sub(r",[^\]]*$", "", word))


def _is_wrong(problem: Problem) -> bool:
    """Whether a remedy with this problem is none: the files of the tables' mistakes do not exist."""
    return "there is no such file or folder" not in problem.text


def _typed(remedy: Sequence[str], command: Sequence[str]) -> Iterator[list[str]]:
    if not all("=" in word or word.startswith("~") for word in command):  # a verb, or flags
        command = ()
    keys = {match[1] for word in remedy if (match := _OVERRIDE.match(word))}
    others = [word for word in command if (match := _OVERRIDE.match(word)) and match[1] not in keys]
    yield [*others, *remedy]
    for number in range(len(others)):
        yield [*others[:number], *others[number + 1 :], *remedy]
