"""Metrics of local-update strategies: distance of workers, staleness, load of servers."""

from collections import Counter
from collections.abc import Mapping, Sequence

from .ops import UpdateRule


def scalars(rules: Sequence[UpdateRule], staleness: Counter[int], load: Mapping[str, float]) -> dict[str, float]:
    """Scalars by metric name; the distance is the mean over `rules`.

    Args:
        staleness: pushes by staleness.
        load: counters of the servers.
    """
    values: dict[str, float] = {}
    known = [float(rule.distance) for rule in rules if rule.distance is not None]
    if known:
        values["local_update/distance"] = sum(known) / len(known)
    pushes = sum(staleness.values())
    if pushes:
        values["local_update/staleness_mean"] = sum(versions * count for versions, count in staleness.items()) / pushes
        values["local_update/staleness_max"] = float(max(staleness))
    return {**values, **{f"servers/{name}": value for name, value in load.items()}}
