"""Plans over the number of devices, as a picture."""

from collections.abc import Sequence
from math import log2
from pathlib import Path

from ...base.atomic_file import atomic_file
from ...planner.plans import TrainingPlan

_COLOURS = [(70, 110, 180), (200, 90, 60), (70, 150, 90), (140, 90, 160), (150, 130, 50), (60, 150, 160), (90, 90, 90)]
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 820, 480, 70, 190, 30, 50


def write_chart(plans: Sequence[TrainingPlan], file: Path) -> None:
    """Samples a second over devices, both logarithmic, one line for each strategy; the interval is a bar, and grey is
    what as many devices would do that do not communicate."""
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.new("RGB", (_WIDTH, _HEIGHT), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(12)
    rates = [plan.batch_size / seconds for plan in plans for seconds in (plan.step.low, plan.step.high)]
    ideal = [plan.samples_per_second / plan.efficiency for plan in plans]
    across = _Axis([plan.workers for plan in plans], _LEFT, _WIDTH - _RIGHT)
    up = _Axis([*rates, *ideal], _HEIGHT - _BOTTOM, _TOP)
    draw.text((8, 6), "samples/s", fill="black", font=font)
    draw.text((_WIDTH - _RIGHT - 40, _HEIGHT - 22), "devices", fill="black", font=font)
    for workers in sorted({plan.workers for plan in plans}):
        draw.text((across.at(workers) - 4, _HEIGHT - _BOTTOM + 8), str(workers), fill="black", font=font)
    for value in up.ticks():
        draw.line((_LEFT, up.at(value), _WIDTH - _RIGHT, up.at(value)), fill=(230, 230, 230))
        draw.text((8, up.at(value) - 7), f"{value:.3g}", fill="black", font=font)
    for number, (name, line) in enumerate(_lines(plans).items()):
        colour = _COLOURS[number % len(_COLOURS)]
        grey = [(across.at(each.workers), up.at(each.samples_per_second / each.efficiency)) for each in line]
        points = [(across.at(each.workers), up.at(each.samples_per_second)) for each in line]
        draw.line(grey, fill=(200, 200, 200), width=1)
        draw.line(points, fill=colour, width=2)
        for (x, y), each in zip(points, line, strict=True):
            ends = (up.at(each.batch_size / each.step.high), up.at(each.batch_size / each.step.low))
            draw.line((x, *ends[:1], x, *ends[1:]), fill=colour, width=1)
            draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill=colour)
        top = _TOP + 18 * number
        draw.rectangle((_WIDTH - _RIGHT + 14, top + 3, _WIDTH - _RIGHT + 24, top + 11), fill=colour)
        draw.text((_WIDTH - _RIGHT + 30, top), name[-24:], fill="black", font=font)
    with atomic_file(file, "wb") as stream:
        picture.save(stream, format="PNG")


def _lines(plans: Sequence[TrainingPlan]) -> dict[str, list[TrainingPlan]]:
    """Plans of one strategy and of one value of other varied keys, by their number of devices."""
    lines: dict[str, list[TrainingPlan]] = {}
    for plan in sorted(plans, key=lambda plan: plan.workers):
        others = [
            word for word in plan.words if not word.startswith(("strategy=", "topology.nodes=", "topology.devices"))
        ]
        lines.setdefault(" ".join([plan.strategy, *others]), []).append(plan)
    return lines


class _Axis:
    """A logarithmic axis of pixels."""

    def __init__(self, values: Sequence[float], first: int, last: int):
        self._low, self._high = min(values), max(values)
        self._first, self._last = first, last

    def at(self, value: float) -> float:
        span = log2(self._high / self._low)
        share = log2(value / self._low) / span if span else 0.5
        return self._first + share * (self._last - self._first)

    def ticks(self) -> list[float]:
        """Powers of two times the least value."""
        span = max(1.0, log2(self._high / self._low))
        step = max(1.0, span / 6)
        return [self._low * 2 ** (step * number) for number in range(int(span / step) + 1)]
