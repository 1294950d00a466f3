"""Colours of things that are counted: workers, trials."""

_COLOURS = (
    (31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189), (140, 86, 75), (227, 119, 194),
    (127, 127, 127), (188, 189, 34), (23, 190, 207),
)  # fmt: skip


def colour_of(number: int) -> tuple[int, int, int]:
    """Red, green, blue; ten numbers after each other differ."""
    return _COLOURS[number % len(_COLOURS)]
