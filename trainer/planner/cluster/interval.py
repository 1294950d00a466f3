"""The interval around a predicted time of a step that holds the measured one in 80 % of cases."""

from math import exp, hypot

from .priors import Priors, Source

_QUANTILE = 1.2816
"""Standard deviations of a normal distribution between its median and its 90th percentile."""


def interval(mean: float, source: str, communication: float, priors: Priors) -> tuple[float, float]:
    """Ends of the interval, log-normal around the mean.

    Args:
        source: where the step's computation is known from, as in `ComputeTimes.source`.
        communication: share of the step in which something is sent, hidden or not.
    """
    widths = priors.interval.value
    known: Source = source if source in ("measured", "other device") else "prior"
    width = _QUANTILE * hypot(widths[known], widths["communication"] * communication)
    return mean * exp(-width), mean * exp(width)
