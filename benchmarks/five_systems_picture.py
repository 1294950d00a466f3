"""docs/images/five_systems.svg: accuracy over the seconds of steps, and the time that eight models take."""

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

COLOURS = ("#333333", "#d95f02", "#7570b3", "#1b9e77", "#e7298a", "#a6761d", "#1f78b4", "#66a61e")
WIDTH, HEIGHT = 880, 640
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 40, 330
"""Edges of the upper chart."""
LOWEST = 0.7
"""Accuracy at the bottom of the upper chart."""
BARS = 390
"""Top of the lower chart."""


def draw(
    file: Path, curves: Mapping[str, Sequence[tuple[float, float]]], bars: Mapping[str, float], target: float
) -> None:
    """Write the picture.

    Args:
        curves: by name: seconds, and accuracy then.
        bars: by name, those of the curves in the same order first: seconds.
        target: accuracy of a dashed line.
    """
    parts = [*_chart(curves, target), *_bars(bars)]
    style = 'font-family="sans-serif" font-size="12" fill="#333"'
    text = "\n".join(parts)
    file.write_text(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" xmlns="http://www.w3.org/2000/svg" {style}>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{text}\n</svg>\n'
    )


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(text)}</text>'


def _chart(curves: Mapping[str, Sequence[tuple[float, float]]], target: float) -> Iterator[str]:
    seconds = [second for points in curves.values() for second, _ in points]
    first, last = math.log(min(seconds)), math.log(max(seconds))

    def across(second: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log(second) - first) / (last - first)

    def down(accuracy: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (max(LOWEST, accuracy) - LOWEST) / (1 - LOWEST)

    yield _text(
        LEFT, 22, "Accuracy on the validation images by seconds of steps (measured; logarithmic)", 'font-weight="bold"'
    )
    for percent in range(round(100 * LOWEST), 101, 10):
        y = down(percent / 100)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>'
        yield _text(LEFT - 8, y + 4, f"{percent} %", 'text-anchor="end"')
    for second in (0.5, 1, 2, 5, 10, 20, 50, 100, 200):
        if first <= math.log(second) <= last:
            yield f'<line x1="{across(second):.1f}" y1="{TOP}" x2="{across(second):.1f}" y2="{BOTTOM}" stroke="#eee"/>'
            yield _text(across(second), BOTTOM + 18, f"{second:g} s", 'text-anchor="middle"')
    dashed = (
        f'y1="{down(target):.1f}" x2="{WIDTH - RIGHT}" y2="{down(target):.1f}" stroke="#999" stroke-dasharray="5 4"'
    )
    yield f'<line x1="{LEFT}" {dashed}/>'
    for points, colour in zip(curves.values(), COLOURS, strict=False):
        places = " ".join(f"{across(second):.1f},{down(accuracy):.1f}" for second, accuracy in points)
        yield f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2"/>'


def _bars(bars: Mapping[str, float]) -> Iterator[str]:
    yield _text(LEFT, BARS - 12, "Seconds of steps of eight models (eight times one; the pipeline's makespan)",
                'font-weight="bold"')  # fmt: skip
    named, step = 330, (HEIGHT - BARS - 10) / len(bars)
    for number, ((name, seconds), colour) in enumerate(zip(bars.items(), COLOURS, strict=False)):
        y = BARS + number * step
        length = (WIDTH - RIGHT - 70 - named - LEFT) * seconds / max(bars.values())
        yield f'<rect x="{LEFT}" y="{y + 5:.1f}" width="12" height="12" fill="{colour}"/>'
        yield _text(LEFT + 18, y + 15, name)
        yield f'<rect x="{LEFT + named}" y="{y + 2:.1f}" width="{length:.1f}" height="{step - 8:.1f}" fill="{colour}"/>'
        yield _text(LEFT + named + length + 6, y + 15, f"{seconds:.0f} s")
