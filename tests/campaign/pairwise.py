"""Pairwise cover of a table's dimensions: every possible pair of values stands in at least one cell."""

from collections.abc import Callable, Sequence
from itertools import combinations, product

Cell = tuple[str, ...]
Pair = tuple[tuple[int, str], tuple[int, str]]


def pairs_of(cell: Cell) -> set[Pair]:
    return set(combinations(enumerate(cell), 2))


def cover(dimensions: Sequence[Sequence[str]], exists: Callable[[Cell], bool]) -> list[Cell]:
    """A small set of cells with every pair of values that a possible cell has.

    Greedy and deterministic: the next cell is the one with the most pairs still missing, the first of equals; and of
    cells with as many, those whose values have been used least come first, so that no value fills the gaps alone.

    Args:
        exists: whether a cell is possible.
    """
    possible = [cell for cell in product(*dimensions) if exists(cell)]
    pairs = {cell: pairs_of(cell) for cell in possible}
    missing = set[Pair]().union(*pairs.values())
    used = {(index, value): 0 for index, values in enumerate(dimensions) for value in values}
    chosen: list[Cell] = []
    while missing:
        best = max(possible, key=lambda cell: (len(pairs[cell] & missing), -sum(used[v] for v in enumerate(cell))))
        chosen.append(best)
        missing -= pairs[best]
        for value in enumerate(best):
            used[value] += 1
    return chosen
