"""One period of a strategy's exchanges as events: computation on a device, transfers on links, and their waits.

All workers do the same, so one device stands for each of them. Its computation goes through the phases of a step;
transfers start when what they send is there, occupy their links one after the other, and are waited for where they are
needed. Which transfers are hidden, by how much, and what a lazy update gains follows from these events alone.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, lcm, log2, sqrt
from typing import Literal

from ...core.transfers import Phase, Placement, Transfer
from ..quantities import ComputeTimes, StepForecast
from .interval import interval
from .links import ClusterLinks, Occupation, occupation
from .priors import Priors

PHASES: tuple[Phase, ...] = ("forward", "backward", "update", "next forward")
MAX_PERIOD = 720
"""Steps of a simulated period; a longer one is cut to whole multiples of its longest interval."""
_Kind = Literal["start", "wait"]


@dataclass(frozen=True)
class _Planned:
    """A transfer with its place in the step."""

    transfer: Transfer
    occupation: Occupation
    start: tuple[Phase, float]
    """Phase, and computation in it that comes before, in seconds."""
    wait: tuple[Phase, float]

    @property
    def name(self) -> str:
        return f"{self.transfer.what}, {self.occupation.slowest}"


def forecast(
    times: ComputeTimes, transfers: Sequence[Transfer], placement: Placement, links: ClusterLinks, priors: Priors
) -> StepForecast:
    """Seconds of a step: the mean over one period of the exchanges, and the longest step.

    Args:
        transfers: of the strategy, as its `traffic` gives them.
        placement: of the workers that send.
    """
    planned = [_plan(transfer, times, placement, links) for transfer in transfers]
    planned = [one for one in planned if one.occupation.seconds > 0]
    slowest = skew(times, min(one.transfer.every for one in planned), placement, priors) if planned else 0.0
    period = _period([one.transfer.every for one in planned])
    # The exchanges of a step may last into later ones: a second period starts with those of the first.
    lead = max(period, 2)
    device = _Device(times, planned)
    ends = [device.step(number) for number in range(lead)]
    device.spent.clear()
    begin = ends[-1]
    ends = [device.step(lead + number) for number in range(period)]
    steps = [after - before for before, after in zip([begin, *ends], ends, strict=False)]
    mean = (ends[-1] - begin) / period + slowest
    spent = {name: seconds / period for name, seconds in device.spent.items()}
    spent["slowest worker"] = slowest
    computed = ("forward", "backward", "update", "slower computation", "slowest worker")
    sent = sum(one.occupation.seconds / max(one.transfer.every, 1.0) for one in planned)
    low, high = interval(mean, times.source, min(sent / mean, 1.0) if mean else 0.0, priors)
    return StepForecast(
        mean,
        max(steps) + slowest,
        sum(seconds for name, seconds in spent.items() if name not in computed),
        low,
        high,
        tuple(sorted(((name, s / mean) for name, s in spent.items() if s > 0), key=lambda pair: -pair[1])),
        min(sent, mean),
    )


def skew(times: ComputeTimes, every: float, placement: Placement, priors: Priors) -> float:
    """Seconds a step that workers wait for the slowest one, as they differ.

    They differ by a share of their computation, and by the time in which processes of one host delay each other. The
    largest of 2^n delays grows about as the root of n, and they even out over the steps between exchanges.
    """
    known = priors.synchronization.value
    inside, nodes = sqrt(log2(min(placement.workers, placement.workers_per_node))), sqrt(log2(placement.nodes))
    share = known["in_node"] * inside + known["nodes"] * nodes
    return (share * times.total + priors.host_jitter_ms.value / 1000 * inside) / sqrt(max(1.0, every))


def _period(intervals: Sequence[float]) -> int:
    """Steps after which all exchanges repeat; of fractions and of a long period, about enough for a mean."""
    period = lcm(*(max(1, round(every)) for every in intervals)) if intervals else 1
    if all(every == round(every) for every in intervals) and period <= MAX_PERIOD:
        return period
    longest = ceil(max(intervals))
    return longest * max(1, MAX_PERIOD // longest)


def _due(every: float, step: int) -> int:
    """How often in this step something happens that happens every so many steps."""
    return floor((step + 1) / every + 1e-9) - floor(step / every + 1e-9)


def ready_at(times: ComputeTimes, elements: int) -> float:
    """Seconds of backward until the gradients of so many elements exist, linear between the known moments."""
    if elements <= 0:
        return 0.0
    known = times.ready
    index = bisect_left(known, (elements, 0.0))
    if index == len(known):
        return times.backward
    before = known[index - 1] if index else (0, 0.0)
    after = known[index]
    return before[1] + (after[1] - before[1]) * (elements - before[0]) / (after[0] - before[0])


def _plan(transfer: Transfer, times: ComputeTimes, placement: Placement, links: ClusterLinks) -> _Planned:
    start = (transfer.phase, _start(transfer, times))
    return _Planned(transfer, occupation(transfer, placement, links), start, _wait(transfer, start, times))


def _start(transfer: Transfer, times: ComputeTimes) -> float:
    """Computation of its phase that comes before it."""
    if transfer.after_gradients is None:
        return 0.0
    if transfer.phase == "backward":
        return ready_at(times, transfer.after_gradients)
    if transfer.phase == "forward":
        return _mirror_time(times, transfer.after_gradients)
    return 0.0


def _mirror_time(times: ComputeTimes, elements: int) -> float:
    """Seconds of forward before the layers whose gradients are the first `elements`: it goes the other way round."""
    return times.forward * (1.0 - (ready_at(times, elements) / times.backward if times.backward else 0.0))


def _wait(transfer: Transfer, start: tuple[Phase, float], times: ComputeTimes) -> tuple[Phase, float]:
    """Where computation stands still until the transfer is done."""
    phase, needed = transfer.phase, transfer.needed_by
    if phase not in transfer.overlaps:
        return start
    if PHASES.index(needed) < PHASES.index(phase):
        needed = "next forward"
    if needed not in transfer.overlaps:
        return needed, 0.0
    if needed == "next forward":
        after = transfer.after_gradients
        return needed, 0.0 if after is None else _mirror_time(times, after)
    return needed, _length(times, needed)


def _length(times: ComputeTimes, phase: Phase) -> float:
    return {"forward": times.forward, "backward": times.backward, "update": times.update}[
        "forward" if phase == "next forward" else phase
    ]


@dataclass
class _Device:
    """A device on its way through the steps."""

    times: ComputeTimes
    planned: Sequence[_Planned]
    now: float = 0.0
    spent: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by what they go to."""
    free: dict[str, float] = field(default_factory=dict)
    """When a link is free again."""
    under_way: dict[int, float] = field(default_factory=dict)
    """End of the last exchange of each transfer that is not yet waited for."""
    busy: list[tuple[float, float, float]] = field(default_factory=list)
    """Times at which links are occupied: begin, end, load of the computation."""

    def step(self, number: int) -> float:
        """Go through one step; its end."""
        due = {index: _due(one.transfer.every, number) for index, one in enumerate(self.planned)}
        for phase in PHASES[:3]:
            done = 0.0
            for position, kind, index in sorted(self._events(phase), key=lambda event: event[0]):
                self._compute(phase, position - done)
                done = max(done, position)
                if kind == "wait":
                    self._wait(index)
                else:
                    for _ in range(due[index]):
                        self._send(index)
            self._compute(phase, _length(self.times, phase) - done)
        return self.now

    def _events(self, phase: Phase) -> Iterator[tuple[float, _Kind, int]]:
        """What happens in a phase; of one moment, what the step before is waited for comes first."""
        if phase == "forward":
            for index, one in enumerate(self.planned):
                if one.wait[0] == "next forward":
                    yield one.wait[1], "wait", index
        for index, one in enumerate(self.planned):
            if one.start[0] == phase:
                yield one.start[1], "start", index
            if one.wait[0] == phase:
                yield one.wait[1], "wait", index

    def _send(self, index: int) -> None:
        one = self.planned[index].occupation
        begin = max([self.now, *(self.free.get(link, 0.0) for link in one.links)])
        end = begin + one.seconds
        self.free.update(dict.fromkeys(one.links, end))
        self.under_way[index] = end
        self.busy.append((begin, end, one.load))

    def _wait(self, index: int) -> None:
        end = self.under_way.pop(index, self.now)
        if end > self.now:
            self.spent[self.planned[index].name] += end - self.now
            self.now = end

    def _compute(self, phase: Phase, seconds: float) -> None:
        """Compute for so long, more slowly while something is sent."""
        if seconds <= 0:
            return
        self.spent[phase] += seconds
        while seconds > 1e-12:
            self.busy = [entry for entry in self.busy if entry[1] > self.now]
            rate = 1.0 - max((load for begin, _, load in self.busy if begin <= self.now), default=0.0)
            bounds = [end if begin <= self.now else begin for begin, end, _ in self.busy]
            change = min(bounds, default=float("inf")) - self.now
            if rate <= 0:
                self._slow(change)
                continue
            spent = min(seconds / rate, change)
            seconds -= spent * rate
            self.now += spent
            self.spent["slower computation"] += spent * (1.0 - rate)

    def _slow(self, seconds: float) -> None:
        self.spent["slower computation"] += seconds
        self.now += seconds
