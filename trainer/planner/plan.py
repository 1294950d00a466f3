"""A config's plan: its step, training, memory, traffic and cost, before anything is started.

torch is imported only where the work or the strategy's costs have not been counted before.
"""

from collections.abc import Sequence
from dataclasses import replace

from ..base.errors import CannotStart, ConfigError, Problem, refuse
from ..config.schema import Config
from ..core.transfers import DeviceShare, Placement, Transfer
from ..hardware.schema import Device, Topology
from .calibration import MeasuredRun, computing_share, same_computation, same_device, with_overhead
from .cluster.links import ClusterLinks, MissingFigure, links_of
from .cluster.machine import MeasuredStep, Rates, step_times
from .cluster.measured_links import as_measured
from .cluster.priors import Format, Priors, priors
from .cluster.simulation import forecast
from .costs.cost_cache import find_costs, load_costs
from .costs.shares import divide_memory, divide_work
from .counted_batches import CountedBatches
from .memory_reserve import reserve
from .plans import MemoryNeed, TrainingCost, TrainingPlan
from .quantities import ComputeTimes, Cost, StepForecast, StepWork
from .training_length import steps_per_epoch, training_steps
from .work_cache import is_counted, load_count

_MOST = 1 << 20
"""Samples of a device at which the search for the largest batch ends."""


def plan(config: Config, calibrated: MeasuredRun | None = None, words: Sequence[str] = ()) -> TrainingPlan:
    """The plan of one config.

    Args:
        calibrated: a run whose measured step takes the place of what is known of devices in general.
        words: overrides that tell it from other plans.

    Raises:
        ConfigError: a figure is missing, or the config cannot be planned.
    """
    try:
        return _Planner(config, calibrated).plan(tuple(words))
    except MissingFigure as error:
        raise refuse(*_missing(error)) from None
    except CannotStart as error:
        raise error.as_config_error() or refuse("plan", str(error), executed=True) from error
    except ConfigError:
        raise
    except ValueError as error:  # a network that computes other layers with a larger batch
        raise refuse("model", str(error), executed=True) from error


def needs_no_torch(config: Config) -> bool:
    """Whether all that a plan counts has been counted before."""
    costs = find_costs(config)
    return costs is not None and is_counted(config, [costs[1].samples])


def _missing(error: MissingFigure) -> tuple[str, str]:
    key, _, text = str(error).partition(" ")
    return key, text


class _Planner:
    """What the parts of one config's plan have in common."""

    def __init__(self, config: Config, calibrated: MeasuredRun | None):
        refuse_unplanned(config)
        self.config, self.calibrated = config, calibrated
        self.priors: Priors = priors()
        topology = config.topology
        self.placement = Placement.of(topology)
        self.transfers, self.share = load_costs(config)
        self.links: ClusterLinks = as_measured(links_of(topology, self.priors), topology)
        self.counted: CountedBatches = load_count(config, [self.share.samples])
        self.whole = self.counted.work(self.share.samples)
        self.work = divide_work(self.whole, self.share)

    def plan(self, words: tuple[str, ...]) -> TrainingPlan:
        config, topology = self.config, self.config.topology
        times = self.times(self.work)
        step = self.step(times)
        steps, each = training_steps(config), steps_per_epoch(config)
        alone = self.times(self.whole).total
        one_device = self.share.samples / (alone + (step.mean - self.without_additions(times)))
        return TrainingPlan(
            words, _name(config), topology.nodes, topology.devices_per_node, config.batch_size, step, times,
            efficiency=config.batch_size / step.mean / (topology.workers * one_device),
            sent=sum(transfer.bytes / transfer.every for transfer in self.transfers),
            sent_between_nodes=sum(transfer.inter_node_bytes / transfer.every for transfer in self.transfers),
            memory=self.need(self.share.samples),
            epochs=None if steps is None or each is None else steps / each,
            steps=steps,
            total=training_cost(topology, None if steps is None else steps * step.mean / 3600),
            changes=self.changes(times, step),
            largest_batch=self.largest_batch(),
            known_from=self.known_from(times),
        )  # fmt: skip

    # --- time

    def times(self, work: StepWork) -> ComputeTimes:
        """Computation of a step on one device."""
        config, device = self.config, self.config.topology.device
        if self.calibrated is None:
            return step_times(work, device, format_of(config), self.priors)
        measured = _measured_step(self.calibrated, work, config, self.priors)
        times = step_times(work, device, format_of(config, measured=True), self.priors, measured)
        same = same_computation(self.calibrated.config, config)
        return times if same else replace(times, source="prior")

    def step(self, times: ComputeTimes, links: ClusterLinks | None = None) -> StepForecast:
        found = forecast(times, self.transfers, self.placement, links or self.links, self.priors)
        if self.calibrated is not None:
            found = with_overhead(found, self.calibrated.overhead, "data and loop")
        rate = self.config.dataset.assumed.samples_per_second
        if rate is not None:
            # read ahead, beside the step: what is over the step is waited for
            found = with_overhead(found, self.share.samples / rate - found.mean, "data")
        return found

    def without_additions(self, times: ComputeTimes) -> float:
        """Seconds of the step with its communication and without what is added to it."""
        return forecast(times, self.transfers, self.placement, self.links, self.priors).mean

    def changes(self, times: ComputeTimes, step: StepForecast) -> dict[str, float]:
        """Relative change of the step's time by twice the hardware."""
        found = {"a device twice as fast": self.step(faster(times, 2.0)).mean / step.mean - 1}
        links, several = self.links, self.config.topology.nodes > 1
        name = "fabric" if several else "in_node"
        if self.config.topology.workers > 1:
            channel = getattr(links, name)
            doubled = replace(links, **{name: replace(channel, rate=2 * channel.rate)})
            what = "twice the fabric's rate" if several else "twice the rate in a node"
            found[what] = self.step(times, doubled).mean / step.mean - 1
        return found

    # --- memory

    def need(self, samples: int) -> MemoryNeed:
        parts = dict(divide_memory(self.counted.memory(samples), self.whole, self.share))
        parts["reserve"] = reserve(self.config, sum(parts.values()))
        return MemoryNeed(parts, available_bytes(self.config.topology))

    def largest_batch(self) -> int | None:
        """The largest global batch that fits; None: the memory is not known, or nothing fits."""
        if available_bytes(self.config.topology) is None:
            return None
        parts = self.config.trainer.accumulate_grad_batches
        fits, too_many = 0, 1
        while too_many <= _MOST and self.need(too_many * parts).fits:
            fits, too_many = too_many, 2 * too_many
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            fits, too_many = (middle, too_many) if self.need(middle * parts).fits else (fits, middle)
        each = self.config.batch_size // self.share.samples or 1
        return fits * parts * each or None

    def known_from(self, times: ComputeTimes) -> dict[str, str]:
        run = "" if self.calibrated is None else f" in {self.calibrated.name}"
        step = {"measured": f"measured{run}", "other device": f"measured on another device{run}"}.get(times.source)
        other = f"roofline, scaled to the step measured{run}" if run else "roofline of its layers [prior]"
        found = {"step": step or other}
        if self.config.topology.workers > 1:
            found["links in a node"] = self.links.in_node.source
            if self.config.topology.nodes > 1:
                found["fabric"] = self.links.fabric.source
        return found


def refuse_unplanned(config: Config) -> None:
    """
    Raises:
        ConfigError: of a run whose processes are not those of a training on devices of their own.
    """
    if config.simulated:
        text = "simulates all workers in one process, in a time of its own: a plan is of workers with devices"
        raise refuse("strategy.execution.simulate", text, True, "strategy.execution.simulate=false")


def _name(config: Config) -> str:
    return config.composition.choices.get("strategy") or config.strategy.target.rpartition(".")[2]


def format_of(config: Config, measured: bool = False) -> Format:
    """The format of most of the arithmetic.

    Raises:
        CannotStart: nothing is known of it before it is measured.
    """
    precision, matmul = config.trainer.precision, config.trainer.matmul_precision
    if precision.startswith("bf16"):
        return "bf16"
    if precision.startswith("16"):
        return "fp16"
    if precision == "64-true" and not measured:
        text = "nothing is known of arithmetic in double precision before it is measured"
        raise CannotStart(Problem("trainer.precision", text, precision, "leyden plan ... --from RUN"))
    on_cuda = config.topology.device.kind == "cuda"
    return "tf32" if on_cuda and matmul in ("high", "medium") else "fp32"


def _measured_step(run: MeasuredRun, work: StepWork, config: Config, known: Priors) -> MeasuredStep:
    """The measured step of a run, as long as the work of this config would take there."""
    theirs = run.config
    transfers, share = load_costs(theirs)
    measured_work = divide_work(load_count(theirs, [share.samples]).work(share.samples), share)
    scale = _without_sending(run, measured_work, transfers, share, known)
    device, format = theirs.topology.device, format_of(theirs, measured=True)
    forward, backward, update = (
        seconds * scale * _ratio(of_this, of_that, device, format, known)
        for seconds, of_this, of_that in (
            (run.seconds["forward"], _sum(work, "forward"), _sum(measured_work, "forward")),
            (run.seconds["backward"], _sum(work, "backward"), _sum(measured_work, "backward")),
            (run.seconds["update"], [work.update], [measured_work.update]),
        )
    )
    elsewhere = not same_device(theirs, config)
    if elsewhere and theirs.topology.device.memory_gb_s is None:
        text = "is not known of the run's device, by which its times are scaled to another one"
        raise CannotStart(Problem("topology.device.memory_gb_s", f"{text} ({run.name})"))
    return MeasuredStep(forward, backward, update, theirs.topology.device.memory_gb_s if elsewhere else None)


def _without_sending(
    run: MeasuredRun, work: StepWork, transfers: Sequence[Transfer], share: DeviceShare, known: Priors
) -> float:
    """Part of the measured computation that it would have taken with nothing sent beside it."""
    topology = run.config.topology
    if topology.workers == 1:
        return 1.0
    seconds = MeasuredStep(run.seconds["forward"], run.seconds["backward"], run.seconds["update"])
    times = step_times(work, topology.device, format_of(run.config, measured=True), known, seconds)
    links = as_measured(links_of(topology, known), topology)
    return computing_share(forecast(times, transfers, Placement.of(topology), links, known))


def _sum(work: StepWork, phase: str) -> list[Cost]:
    return [getattr(layer, phase) for layer in work.layers]


def _ratio(these: Sequence[Cost], those: Sequence[Cost], device: Device, format: Format, known: Priors) -> float:
    """Time of some operations by that of others on one device; of FLOP, or of bytes, where nothing is known of it."""
    try:
        rates = Rates.of(device, format, known)
    except MissingFigure:
        one, other = (sum(cost.flop for cost in costs) or sum(cost.bytes for cost in costs) for costs in (these, those))
    else:
        one, other = (sum(rates.seconds(cost) for cost in costs) for costs in (these, those))
    return one / other if other else 1.0


def faster(times: ComputeTimes, factor: float) -> ComputeTimes:
    """The computation on a device that is so many times as fast."""
    ready = tuple((elements, seconds / factor) for elements, seconds in times.ready)
    return ComputeTimes(times.forward / factor, times.backward / factor, times.update / factor, ready, times.source)


def available_bytes(topology: Topology) -> float | None:
    """Memory of one device: a GPU's own, or a worker's part of its host's."""
    if topology.device.memory_gb is not None:
        return topology.device.memory_gb * 2**30
    if topology.device.kind == "cpu" and topology.host.memory_gb is not None:
        return topology.host.memory_gb * 2**30 / topology.devices_per_node
    return None


def training_cost(topology: Topology, hours: float | None) -> TrainingCost:
    """Cost of all devices and nodes for `hours` hours."""
    if hours is None:
        return TrainingCost()
    return TrainingCost(
        hours,
        hours * topology.workers,
        _of_hardware(hours, topology, topology.device.price_per_hour, topology.host.price_per_hour),
        _of_hardware(hours / 1000, topology, topology.device.watts, topology.host.watts),
    )


def _of_hardware(factor: float, topology: Topology, device: float | None, host: float | None) -> float | None:
    if device is None and host is None:
        return None
    return factor * topology.nodes * (topology.devices_per_node * (device or 0.0) + (host or 0.0))
