"""What is shown of workers that run ahead: their distances, staleness, the servers' load."""

from collections import Counter
from collections.abc import Mapping, Sequence

from .requests import Rule


def scalars(rules: Sequence[Rule], late: Counter[int], load: Mapping[str, float]) -> dict[str, float]:
    """Under TensorBoard's names; the distance is the mean over `rules`.

    Args:
        late: pushes by the versions that they were late.
        load: what the servers have done.
    """
    values: dict[str, float] = {}
    known = [float(rule.distance) for rule in rules if rule.distance is not None]
    if known:
        values["ahead/distance"] = sum(known) / len(known)
    pushes = sum(late.values())
    if pushes:
        values["ahead/staleness_mean"] = sum(versions * count for versions, count in late.items()) / pushes
        values["ahead/staleness_max"] = float(max(late))
    return {**values, **{f"servers/{name}": value for name, value in load.items()}}
