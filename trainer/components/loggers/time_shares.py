"""Shares of the parts of a step in its time, as bounds of areas on top of each other."""

from collections.abc import Mapping

PHASES = ("data", "forward", "backward", "update", "communication", "other")
SHARES = ("time_share/zero", *(f"time_share/up_to_{phase}" for phase in PHASES))


def shares(metrics: Mapping[str, float]) -> dict[str, float]:
    """The parts of a step's time in percent, each with those before it; {} where they were not measured."""
    parts = [metrics.get(f"time/{phase}_ms") for phase in PHASES]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or sum(known) <= 0:
        return {}
    sums = [sum(known[:count]) for count in range(len(known) + 1)]
    return {name: 100 * part / sums[-1] for name, part in zip(SHARES, sums, strict=True)}
