"""What a strategy whose workers run ahead shows of itself: distances, staleness, the servers' load."""

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .runs_ahead import RunsAhead


def measured(strategy: "RunsAhead") -> tuple[dict[str, float], Counter[int]]:
    """Scalars under TensorBoard's names (the first worker's, or the mean over virtual ones), and how many pushes were
    so many versions late since the servers' start."""
    values = _distance(strategy)
    if strategy.simulation is not None:
        values["ahead/simulated_seconds"] = strategy.simulation.now
    late, load = _servers(strategy)
    pushes = sum(late.values())
    if pushes:
        values["ahead/staleness_mean"] = sum(version * count for version, count in late.items()) / pushes
        values["ahead/staleness_max"] = float(max(late))
    return {**values, **{f"servers/{name}": value for name, value in load.items()}}, late


def _distance(strategy: "RunsAhead") -> dict[str, float]:
    rules = [w.rule for w in strategy.simulation.workers] if strategy.simulation is not None else [strategy.rule]
    known = [float(rule.distance) for rule in rules if rule.distance is not None]
    return {"ahead/distance": sum(known) / len(known)} if known else {}


def _servers(strategy: "RunsAhead") -> tuple[Counter[int], dict[str, float]]:
    if strategy.simulation is not None:
        piece = strategy.simulation.piece
        return (Counter(), {}) if piece is None else (piece.staleness, {"pushes": float(piece.load.pushes)})
    if strategy.live is None or strategy.live.link is None or strategy.global_rank != 0:
        return Counter(), {}
    load, late = strategy.live.link.measure()
    return late, load
