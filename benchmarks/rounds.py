"""Rounds of a benchmark: in each all contestants are measured, in a new random order."""

import random
from collections.abc import Callable, Mapping
from typing import TypeVar

Contestant = TypeVar("Contestant")
Figure = TypeVar("Figure")


def in_turns(
    contestants: Mapping[str, Contestant], rounds: int, measured: Callable[[Contestant, int], Figure]
) -> dict[str, list[Figure]]:
    """The figures of each contestant, one a round, after a first round that only warms up.

    Args:
        measured: gets a contestant, and the number of the round.
    """
    found: dict[str, list[Figure]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name in random.sample(list(contestants), len(contestants)):
            figure = measured(contestants[name], number)
            found[name] += [figure] if number else []
    return found
