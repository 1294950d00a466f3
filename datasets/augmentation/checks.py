"""Checks of constructor arguments; messages begin with the argument and its value."""

from collections.abc import Sequence


def probability(name: str, value: float) -> float:
    """The value, if it is from 0 to 1."""
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}={value} must be at least 0 and at most 1")
    return float(value)


def not_negative(name: str, value: float) -> float:
    """The value, if it is at least 0."""
    if value < 0:
        raise ValueError(f"{name}={value} must be at least 0")
    return float(value)


def positive_range(name: str, values: Sequence[float]) -> tuple[float, float]:
    """The two numbers, if they are greater than 0 and in order."""
    if len(values) != 2 or not 0 < values[0] <= values[1]:
        shown = "[" + ",".join(map(str, values)) + "]"
        raise ValueError(f"{name}={shown} must be two numbers greater than 0, the smaller one first")
    return float(values[0]), float(values[1])
