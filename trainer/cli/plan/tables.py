"""Plans as a table, and one plan in detail."""

import sys
from collections.abc import Iterator

from ...base.errors import shorten_value
from ...planner.cluster.priors import priors
from ...planner.plans import TrainingPlan, equal_best
from .planned import Planned

_WIDE = 400
_SHOWN = ("strategy", "topology.nodes", "topology.devices_per_node")
"""Keys whose values have a column of their own."""


def print_plans(found: Planned) -> None:
    """The ranked table; what is known of the best; what was refused or is over the budget."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else _WIDE).print(_table(found.plans))
    for words, error in found.refused:
        print(f"not planned: {' '.join(words)}: {error.problems[0].sentence()}")
    best = found.plans[0]
    if len(found.plans) > 1:
        print(_best(found.plans))
    for line in details(best):
        print(line)
    for number, over in found.over.items():
        name = f"{label(found.plans[number])}: " if len(found.plans) > 1 else ""
        print(*(f"over the budget: {name}{text}" for text in over), sep="\n")


def label(plan: TrainingPlan) -> str:
    """A plan's name among others."""
    return " ".join(plan.words) or f"{plan.strategy} {plan.placed}"


def _table(plans: list[TrainingPlan]) -> object:
    from rich.table import Table

    others = any(_others(plan) for plan in plans)
    table = Table(
        "strategy", "nodes", *(["varied"] if others else []), "batch", "step ms (80 %)", "samples/s", "effic.",
        "training", "memory/device", "sent/step", "cost", "bound by",
    )  # fmt: skip
    for plan in plans:
        table.add_row(
            plan.strategy, plan.placed, *([_others(plan)] if others else []), str(plan.batch_size),
            f"{_ms(plan.step.mean)} ({_ms(plan.step.low)}-{_ms(plan.step.high)})", f"{plan.samples_per_second:.4g}",
            f"{plan.efficiency:.0%}", _training(plan), _memory(plan), _size(plan.sent), _cost(plan), _bound(plan),
        )  # fmt: skip
    return table


def _others(plan: TrainingPlan) -> str:
    return " ".join(word for word in plan.words if word.partition("=")[0] not in _SHOWN)


def _ms(seconds: float) -> str:
    ms = 1e3 * seconds
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.3g}"


def _training(plan: TrainingPlan) -> str:
    if plan.total.hours is None:
        return "?"
    hours = plan.total.hours
    units = (("d", 1 / 24, 48), ("h", 1, 1), ("min", 60, 1 / 60), ("s", 3600, 0))
    time = next(f"{hours * scale:.3g} {unit}" for unit, scale, least in units if hours >= least)
    return f"{time}, {plan.epochs:g} epochs" if plan.epochs is not None else f"{time}, {plan.steps} steps"


def _memory(plan: TrainingPlan) -> str:
    need = plan.memory
    total = f"{need.total / 2**30:.3g}"
    if need.available is None:
        return f"{total} GB"
    return f"{total} of {need.available / 2**30:.3g} GB" + ("" if need.fits else ", too much")


def _size(number: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"


def _cost(plan: TrainingPlan) -> str:
    if plan.total.cost is not None:
        return f"{plan.total.cost:.4g}"
    return "" if plan.total.gpu_hours is None else f"{plan.total.gpu_hours:.4g} device h"


def _bound(plan: TrainingPlan) -> str:
    return f"{plan.bound_by[0][0]} ({plan.bound_by[0][1]:.0%})"


def _best(plans: list[TrainingPlan]) -> str:
    equal = equal_best(plans, priors().interval.value["communication"])
    if len(equal) == 1:
        return f"best: {label(equal[0])}"
    return f"equal within the interval: {'; '.join(map(label, equal))}"


def details(plan: TrainingPlan) -> Iterator[str]:
    """What a plan says beside its row: parts of the memory, changes, sources."""
    parts = sorted(plan.memory.parts.items(), key=lambda item: -item[1])
    yield f"memory of a device: {', '.join(f'{what} {_size(size)}' for what, size in parts if size >= 1e3)}"
    spent = ", ".join(f"{what} {share:.0%}" for what, share in plan.step.bound_by if share >= 0.005)
    yield f"a step's time: {spent}; exposed communication {_ms(plan.step.exposed)} ms"
    if plan.step.worst > 1.005 * plan.step.mean:
        yield f"the longest step of a period: {_ms(plan.step.worst)} ms"
    for what, change in plan.changes.items():
        yield f"{what}: {change:+.0%}"
    if plan.largest_batch is not None:
        yield f"largest batch that fits: {plan.largest_batch}"
    if plan.total.hours is None:
        yield "time of the training: not known without dataset.assumed.train_samples=N"
    if plan.total.kwh is not None:
        yield f"energy: {plan.total.kwh:.4g} kWh"
    yield f"known from: {', '.join(f'{what}: {shorten_value(source, 90)}' for what, source in plan.known_from.items())}"
