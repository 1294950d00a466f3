"""Rounds of pairs that measure concurrently: no device and no network card is in two pairs of a round."""

from collections.abc import Sequence

Pair = tuple[int, int]


def tournament(players: Sequence[int]) -> list[list[Pair]]:
    """Every pair once, in as few rounds as possible (round-robin tournament)."""
    seats: list[int | None] = [*players, *([None] if len(players) % 2 else [])]
    rounds: list[list[Pair]] = []
    for _ in range(len(seats) - 1):
        facing = zip(seats[: len(seats) // 2], reversed(seats[len(seats) // 2 :]), strict=True)
        rounds.append([(one, other) for one, other in facing if one is not None and other is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return [pairs for pairs in rounds if pairs]


def all_rounds(nodes: Sequence[Sequence[int]]) -> list[list[Pair]]:
    """Pairs inside nodes, all nodes at once; then pairs of nodes, each represented by its first worker."""
    inside = [tournament(ranks) for ranks in nodes]
    longest = max(map(len, inside))
    rounds = [[pair for some in inside if turn < len(some) for pair in some[turn]] for turn in range(longest)]
    return [*rounds, *tournament([ranks[0] for ranks in nodes])]
