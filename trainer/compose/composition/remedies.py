"""Remedies verified before they are shown: a suggested override must compose and pass every check of values."""

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import cache

from ...base.errors import ConfigError, Problem, spell_value
from ...base.remedy import alternatives, leaves_open
from ..known_names import find_equivalent

_ROUNDS = 4
"""Rounds in which a remedy is extended by the remedies of its own problems."""

ProblemsOf = Callable[[Sequence[str]], Sequence[Problem]]
KeysOf = Callable[[Sequence[str]], Collection[str]]


def with_working_remedies(
    error: ConfigError, overrides: Sequence[str], problems_of: ProblemsOf, keys_of: KeysOf
) -> ConfigError:
    """The same error; a remedy that consists of overrides is completed until it works, or left out.

    Args:
        overrides: as the user typed them.
        problems_of: problems of a list of overrides, composed and with its values checked.
        keys_of: keys of its composition.
    """
    problems = [_under_its_name(problem, overrides, problems_of, keys_of) for problem in error.problems]
    return ConfigError(*(_try_remedy(problem, overrides, problems_of) for problem in problems), context=error.context)


def replace_override(overrides: Iterable[str], mistake: str, by: Sequence[str]) -> list[str]:
    """The overrides with `mistake`, and those of the same keys, replaced."""
    keys = {key_of(override) for override in by}
    return [*(o for o in overrides if o != mistake and key_of(o) not in keys), *by]


def key_of(override: str) -> str:
    """The key that an override sets."""
    return override.partition("=")[0].lstrip("+~")


def _under_its_name(problem: Problem, overrides: Sequence[str], problems_of: ProblemsOf, keys_of: KeysOf) -> Problem:
    """The problem of a key without a value, with the value that the user gives to a key beside it that is not there."""
    parent, begin = problem.key.rpartition(".")[0], f"{problem.key}="
    beside = [o for o in overrides if key_of(o).rpartition(".")[0] == parent]
    if not parent or not beside or not leaves_open(problem.remedy) or not problem.remedy.startswith(begin):
        return problem
    there = keys_of([o for o in overrides if o not in beside])
    for override in beside:
        way = begin + override.partition("=")[2]
        if key_of(override) not in there and not problems_of(replace_override(overrides, override, [way])):
            return replace(problem, text=f"{problem.text}\nin place of {override}", remedy=way)
    return problem


def _try_remedy(problem: Problem, overrides: Sequence[str], problems_of: ProblemsOf) -> Problem:
    mistake = problem.where.removeprefix("override '").removesuffix("'")
    ways = alternatives(problem.remedy)
    swept = _as_sweep(problem, ways or [[mistake]], mistake, overrides, problems_of)
    if swept:
        return replace(problem, remedy=swept)
    # keys of Hydra's are of the command, and are not composed with a run's
    if not ways or leaves_open(problem.remedy) or problem.key.startswith("hydra"):
        return problem

    @cache
    def others() -> set[str]:
        return {other.key for other in problems_of(replace_override(overrides, mistake, []))}

    working: list[str] = []
    text = problem.text
    for way in ways:
        found, why = _complete_remedy(way, mistake, overrides, others, problems_of)
        working += [" ".join(found)] if found else []
        text += f"\n{why}" if why and found else ""
    return replace(problem, text=text, remedy=" or ".join(working))


_ONE_VALUE = re.compile(r"must be (a |one of|true|at |greater|less)(?!list)|is called|there is no such key")


def _as_sweep(
    problem: Problem, ways: list[list[str]], mistake: str, overrides: Sequence[str], problems_of: ProblemsOf
) -> str:
    """The command of a sweep over the items of a list that stands where one value is wanted; "" if it is none."""
    if not isinstance(problem.value, list) or not _ONE_VALUE.match(problem.text) or mistake not in overrides:
        return ""
    values = [spell_value(value) for value in problem.value]
    for way in ways:
        key = mistake.partition("=")[0] if mistake in way else key_of(way[0])
        one = replace_override(overrides, mistake, [f"{key}={values[0]}"])
        if len(way) == 1 and None not in values and key not in {p.key for p in problems_of(one)}:
            typed = [f"{key}={','.join(map(str, values))}" if o == mistake else o for o in overrides]
            return as_command(typed, is_sweep=True)
    return ""


def as_command(overrides: Sequence[str], is_sweep: bool) -> str:
    """A command line for a shell, without the overrides that a sweep adds itself."""
    typed = [override for override in overrides if not re.match(r"hydra/(hydra|job)_logging=none$", override)]
    return shlex.join(["leyden", *(["-m"] if is_sweep else []), *typed])


def _under_another_name(key: str, overrides: Sequence[str]) -> tuple[str, str] | None:
    """An override by which the user gives a key under another tool's name, and the same as Leyden's."""
    for override in overrides:
        name, _, value = override.partition("=")
        found = find_equivalent(name.rpartition(".")[2], value)
        for word in found.remedy.split() if found else ():
            if word.startswith(f"{key}="):
                return override, word
    return None


def _complete_remedy(
    way: list[str], mistake: str, overrides: Sequence[str], others: Callable[[], set[str]], problems_of: ProblemsOf
) -> tuple[list[str], str]:
    """An alternative with all the overrides that it needs (empty if it cannot work), and why one value differs.

    Args:
        others: keys of the user's other mistakes, which this remedy cannot correct.
    """
    why, given = "", None
    for _ in range(_ROUNDS):
        found = problems_of(replace_override(overrides, mistake, way))
        left = [p for p in found if p.key not in others()] if found else []
        if not left:
            return way, why
        further = alternatives(left[0].remedy)
        if not further and given and left[0].key == key_of(given[1]):
            # what the user names is not there
            return replace_override(way, "", [f"{left[0].key}=PATH"]), f"{given[1]}: {left[0].text}"
        if not further:
            break
        if set(further[0]) & set(overrides):
            break  # the remedy of a remedy takes it back
        if left[0].key in map(key_of, way):
            why = f"{left[0].key}={spell_value(left[0].value)}: {left[0].text}"
        way = replace_override(way, "", further[0])
        if leaves_open(left[0].remedy):
            given = _under_another_name(left[0].key, overrides)
            if given is None:
                return way, why
            overrides = [override for override in overrides if override != given[0]]
            way, why = replace_override(way, "", [given[1]]), f"in place of {given[0]}, too"
    return [], ""
