"""Metrics of `self.log`: means over samples, exact over uneven shares, without synchronizing with the device."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal, NamedTuple

import torch
from lightning.fabric.strategies.strategy import Strategy
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from ..base.device_copy import numbers_on_device
from .communication.metric_lists import join_lists
from .communication.plain_values import broadcast_value

Phase = Literal["train", "val", "test"]
_REDUCTIONS = ("mean", "sum", "min", "max")
_IDENTITY = {"mean": 0.0, "sum": 0.0, "min": torch.inf, "max": -torch.inf}
Weight = float | Tensor  # of a value in a mean: its samples, or a float64 scalar on the device
_FOLD_EVERY = 256  # pending values of a name before they are reduced to one: memory is bounded, no device waited for


@dataclass
class MetricEntry:
    """One logged name."""

    on_step: bool
    on_epoch: bool
    prog_bar: bool
    logger: bool
    reduction: str
    metric: Metric | None = None
    step: int = -1  # the newest in which it was logged, as MetricLog counts them
    of_step: list[tuple[int, Tensor | float, Weight]] = field(default_factory=list)
    """Number of the part, value and weight, for each part of that step that has samples."""
    waiting: list[tuple[Tensor | float, Weight]] = field(default_factory=list)
    total: Tensor | None = None
    weight: Weight = 0.0

    def keep(self, step: int, part: int, value: Tensor | float, weight: Weight) -> None:
        """Record the value of a part; of several in one part the last counts, as under Lightning's Trainer."""
        if step != self.step:
            self.of_step.clear()
        elif self.of_step and self.of_step[-1][0] == part:
            self.of_step.pop()
        self.step = step
        if _counts(weight):
            self.of_step.append((part, value, weight))

    def step_total(self) -> tuple[Tensor | None, Weight]:
        """The newest step's parts, reduced (for a mean: their weighted sum), and their weight; None without samples."""
        if not self.of_step:
            return None, 0.0
        device = next((v.device for _, v, _ in self.of_step if isinstance(v, Tensor)), torch.device("cpu"))
        values = numbers_on_device([value for _, value, _ in self.of_step], device)
        weights = [weight for _, _, weight in self.of_step]
        if self.reduction != "mean":
            return _reduce_values(values, self.reduction), sum(weights)
        return (values * numbers_on_device(weights, device)).sum(), sum(weights)

    def step_value(self) -> Tensor | None:
        """The newest step's value on this worker; None without samples."""
        total, weight = self.step_total()
        return total / weight if total is not None and self.reduction == "mean" else total

    def fold(self) -> None:
        """Reduce the pending values to one number and one weight, on their device."""
        if not self.waiting:
            return
        device = next((v.device for v, _ in self.waiting if isinstance(v, Tensor)), torch.device("cpu"))
        values = numbers_on_device([value for value, _ in self.waiting], device)
        weights = numbers_on_device([weight for _, weight in self.waiting], device)
        self.weight = self.weight + sum(weight for _, weight in self.waiting)
        self.waiting.clear()
        folded = (values * weights).sum() if self.reduction == "mean" else _reduce_values(values, self.reduction)
        kept = [] if self.total is None else [self.total.to(device)]
        self.total = _reduce_values(torch.stack([*kept, folded]), self.reduction)


class NoReduction:
    """Strategy interface without reduction over workers."""

    def __init__(self, device: torch.device):
        self.root_device = device

    def broadcast(self, value: Any) -> Any:
        return value

    def all_reduce(self, tensor: Tensor, reduce_op: str) -> Tensor:
        return tensor


class _Name(NamedTuple):
    """Description of an entry, with which every worker can join its reduction."""

    name: str
    reduction: str
    on_step: bool
    is_metric: bool
    path: str | None
    """Path of the Metric object in the task."""


class MetricLog:
    """The values of one phase.

    The training loop calls `begin_step` and `begin_part`: values by step are reduced over the parts of the step
    (accumulated gradients, schemes that take the workers' batches in turn), each with its samples as weight.

    Attributes:
        samples: of this worker in the current part (in evaluation: in the current batch).
    """

    def __init__(
        self, phase: Phase, steps_by_default: bool, owner: nn.Module | None = None, outer: "MetricLog | None" = None
    ):
        self.phase: Phase = phase
        self.outer = outer
        """The log of the training that an evaluation interrupts."""
        self.steps_by_default = steps_by_default
        self.owner = owner
        """The task, which holds the Metric objects for a worker that logged nothing."""
        self.samples = 1
        self.in_step = False
        self.ended = False
        """Whether the last batch of the epoch is done, so that hooks read the epoch's values."""
        self.entries: dict[str, MetricEntry] = {}
        self._step = self._part = 0
        self._metrics_of_part: dict[str, MetricEntry] = {}
        """Metric objects logged by step in the current part."""

    def begin_step(self) -> None:
        """Begin an optimizer step."""
        self._keep_metrics()
        self._step += 1

    def begin_part(self, samples: int) -> None:
        """Begin a part of the step, with `samples` samples of this worker."""
        self._keep_metrics()
        self._part += 1
        self.samples = samples

    def _keep_metrics(self) -> None:
        """Record the values of the part's Metric objects from forward(); update() alone leaves none."""
        for entry in self._metrics_of_part.values():
            assert entry.metric is not None
            value = entry.metric._forward_cache  # pyright: ignore[reportPrivateUsage]  # has no public name
            entry.keep(self._step, self._part, 0.0 if value is None else value, 0 if value is None else self.samples)
        self._metrics_of_part.clear()

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: int | Tensor | None = None,
        **unused: Any,
    ) -> None:
        """Same meaning as LightningModule.log; values are always reduced over workers.

        Args:
            batch_size: the value's weight in a mean; a positive scalar on the device where it is the denominator of a
                ratio, of which the quotient of both sums is wanted.

        Raises:
            ValueError: a value or a reduction that cannot be logged.
        """
        entry = self.entries.get(name)
        if entry is None:
            entry = self.entries[name] = self._entry(name, value, prog_bar, logger, on_step, on_epoch, reduce_fx)
        if entry.metric is not None:
            if entry.on_step:
                self._metrics_of_part[name] = entry
            return
        value = _single_number(name, value)
        weight: Weight = self.samples if batch_size is None or self.samples == 0 else batch_size
        if isinstance(weight, Tensor):
            weight = weight.detach().double()
        if entry.on_step:
            entry.keep(self._step, self._part, value, weight)
        if _counts(weight) and entry.on_epoch:
            entry.waiting.append((value, weight))
            if len(entry.waiting) >= _FOLD_EVERY:
                entry.fold()

    def log_dict(self, dictionary: Any, **options: Any) -> None:
        for name, value in named_values(dictionary):
            self.log(name, value, **options)

    def _entry(
        self, name: str, value: Any, prog_bar: bool, logger: bool | None, on_step: bool | None,
        on_epoch: bool | None, reduce_fx: Any,
    ) -> MetricEntry:  # fmt: skip
        reduction = getattr(reduce_fx, "__name__", reduce_fx)
        if reduction not in _REDUCTIONS:
            raise ValueError(f"self.log({name!r}): reduce_fx={reduction!r} is not one of {', '.join(_REDUCTIONS)}")
        steps = (self.steps_by_default and self.in_step) if on_step is None else on_step
        epochs = (not (self.steps_by_default and self.in_step)) if on_epoch is None else on_epoch
        metric = value if isinstance(value, Metric) else None
        return MetricEntry(steps, epochs, prog_bar, logger is not False, reduction, metric)

    def step_values(self, strategy: Strategy | NoReduction) -> dict[str, float]:
        """Values of the last step, reduced over its parts and over workers; a mean is over all its samples. One
        collective. Every worker must call it."""
        self._keep_metrics()
        names = self._names(strategy, [name for name, entry in self.entries.items() if entry.on_step])
        totals = [self.entries[n.name].step_total() if n.name in self.entries else (None, 0.0) for n in names]
        sums, weights = [total for total, _ in totals], [weight for _, weight in totals]
        result: dict[str, float] = {}
        for name, (total, weight) in zip(names, _over_workers(names, sums, weights, strategy), strict=True):
            on_epoch = name.name in self.entries and self.entries[name.name].on_epoch
            if weight > 0:
                value = total / weight if name.reduction == "mean" else total
                result[f"{name.name}_step" if on_epoch else name.name] = value
        return result

    def own_values(self, with_metrics: bool) -> dict[str, Tensor]:
        """This worker's values, not reduced over others: of the last training step; of the epoch once it has ended.

        Args:
            with_metrics: also of Metric objects, whose values over the epoch may need the other workers.
        """
        self._keep_metrics()
        found = {} if self.outer is None else self.outer.own_values(with_metrics)
        for name, entry in self.entries.items():
            if not (entry.on_epoch if self.ended else entry.on_step and self.phase == "train"):
                continue
            value = self._epoch_so_far(entry, with_metrics) if self.ended else entry.step_value()
            if value is not None:
                forked = f"{name}_{'epoch' if self.ended else 'step'}" if entry.on_step and entry.on_epoch else name
                found[name] = found[forked] = value.detach().float()
        return found

    @staticmethod
    def _epoch_so_far(entry: MetricEntry, with_metrics: bool) -> Tensor | None:
        if entry.metric is not None:
            computed = entry.metric.compute() if with_metrics and entry.metric.update_called else None
            return computed if isinstance(computed, Tensor) and computed.numel() == 1 else None
        entry.fold()
        if entry.total is None:
            return None
        return entry.total / entry.weight if entry.reduction == "mean" else entry.total

    def epoch_values(self, strategy: Strategy) -> dict[str, float]:
        """Values over the epoch, reduced over workers, and cleared. Every worker must call it."""
        names = self._names(strategy, [name for name, entry in self.entries.items() if entry.on_epoch])
        metrics = {n: self._metric(n) for n in names if n.is_metric}
        several = {n: compute_metric(n.name, metric, strategy) for n, metric in metrics.items()}
        for metric in metrics.values():  # after all are computed: metrics of a collection share their state
            metric.reset()
        numbers = [name for name in names if not name.is_metric]
        values: dict[_Name, float] = {}
        for name, (total, weight) in zip(numbers, self._totals(numbers, strategy), strict=True):
            if weight > 0:
                values[name] = total / weight if name.reduction == "mean" else total
        for entry in self.entries.values():
            entry.total, entry.weight = None, 0.0
            entry.of_step.clear()
        for name, each in several.items():
            if len(each) == 1:
                values[name] = each[0]
        found = {f"{n.name}_epoch" if n.on_step else n.name: values[n] for n in names if n in values}
        for name, each in several.items():
            found.update({f"{name.name}_{c}": value for c, value in enumerate(each) if len(each) > 1})
        return found

    def _names(self, strategy: Strategy | NoReduction, names: list[str]) -> list[_Name]:
        """Rank 0's names for all workers, as one with an empty share may have logged nothing."""
        return [_Name(*each) for each in broadcast_value([self._name(name) for name in names], strategy)]

    def _name(self, name: str) -> _Name:
        entry = self.entries[name]
        is_metric = entry.metric is not None
        path = self._path(entry.metric) if entry.metric is not None else None
        return _Name(name, entry.reduction, entry.on_step, is_metric, path)

    def _path(self, metric: Metric) -> str | None:
        modules = () if self.owner is None else self.owner.named_modules()
        return next((name for name, module in modules if module is metric), None)

    def _metric(self, name: _Name) -> Metric:
        """The Metric object of an entry.

        Raises:
            ValueError: this worker did not log it, and the task does not hold it.
        """
        entry = self.entries.get(name.name)
        if entry is not None and entry.metric is not None:
            return entry.metric
        found = self.owner.get_submodule(name.path) if self.owner is not None and name.path is not None else None
        if not isinstance(found, Metric):
            raise ValueError(f"self.log({name.name!r}): the Metric must be an attribute of the LightningModule")
        return found

    def _totals(self, names: list[_Name], strategy: Strategy) -> list[tuple[float, float]]:
        """Total and weight of each name over all workers; every worker must call it with the same names."""
        entries = [self.entries.get(name.name) for name in names]
        for entry in entries:
            if entry is not None:
                entry.fold()
        sums = [None if entry is None else entry.total for entry in entries]
        return _over_workers(names, sums, [0.0 if entry is None else entry.weight for entry in entries], strategy)

    def state_dict(self, strategy: Strategy) -> dict[str, Any]:
        """Sums over all workers of an epoch that a checkpoint interrupts; every worker must call it."""
        names = self._names(strategy, [name for name, entry in self.entries.items() if entry.on_epoch])
        totals = self._totals(names, strategy)
        saved: dict[str, Any] = {}
        for name, total in zip(names, totals, strict=True):
            if name.is_metric and name.path is None:
                continue  # not an attribute of the task: not restorable
            entry = self.entries.get(name.name)
            flags = [name.on_step, True, entry is not None and entry.prog_bar, entry is None or entry.logger]
            saved[name.name] = {"flags": flags, "reduction": name.reduction, "sum": list(total), "metric": name.path}
        return saved

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        """Restore the sums of all workers on this one. Call on one worker."""
        for name, saved in state.items():
            if not isinstance(name, str):
                raise ValueError(f"{name} is no name")
            total, weight = map(float, saved["sum"])
            kept = torch.tensor(total, dtype=torch.float64) if weight > 0 else None
            path = saved.get("metric")
            metric = self._metric(_Name(name, saved["reduction"], True, True, path)) if path is not None else None
            on_step, on_epoch, prog_bar, logger = saved["flags"]
            self.entries[name] = MetricEntry(
                on_step, on_epoch, prog_bar, logger, saved["reduction"], metric, total=kept, weight=weight
            )


def _single_number(name: str, value: Any) -> Tensor | float:
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"self.log({name!r}): a tensor must hold a single number, not {list(value.shape)}")
        # A copy: losses and parameters are changed in place.
        return value.detach().clone()
    if isinstance(value, Real):
        return float(value)
    raise ValueError(f"self.log({name!r}): a number, tensor or Metric is needed, not {type(value).__name__}")


def named_values(dictionary: Any) -> Iterable[tuple[str, Any]]:
    """The argument of log_dict as pairs; metrics of a MetricCollection under their prefixed names."""
    if isinstance(dictionary, MetricCollection):
        return dictionary.items(keep_base=False, copy_state=False)
    return dictionary.items()


def compute_metric(name: str, metric: Metric, strategy: Strategy) -> list[float]:
    """A metric's value over all workers; several, one a class, of a metric with the attribute `logs_each_class`.

    Raises:
        ValueError: it is not a single number.
    """
    with warnings.catch_warnings():
        if broadcast_value(metric.update_called, strategy) and not metric.update_called:
            warnings.simplefilter("ignore")  # this worker may not have updated it, but others have
        join_lists(metric)
        value = metric.compute()
    if not isinstance(value, Tensor) or (value.numel() != 1 and not getattr(metric, "logs_each_class", False)):
        raise ValueError(f"self.log({name!r}): {type(metric).__name__}.compute() must give a single number")
    return value.flatten().tolist()


def _over_workers(
    names: list[_Name], totals: list[Tensor | None], weights: list[Weight], strategy: Strategy | NoReduction
) -> list[tuple[float, float]]:
    """Total by each name's reduction, and sum of weights, over all workers."""
    if not names:
        return []
    device = next((total.device for total in totals if total is not None), torch.device("cpu"))
    filled = [_IDENTITY[n.reduction] if t is None else t for n, t in zip(names, totals, strict=True)]
    stacked = numbers_on_device(filled, device)
    operations = ["sum" if name.reduction == "mean" else name.reduction for name in names]
    weight = numbers_on_device(weights, device)
    both = strategy.all_reduce(torch.cat([stacked, weight]).to(strategy.root_device), reduce_op="sum").tolist()
    reduced = {"sum": both[: len(names)]}
    for operation in sorted({*operations} - {"sum"}):
        reduced[operation] = strategy.all_reduce(stacked.clone().to(strategy.root_device), reduce_op=operation).tolist()
    return [(reduced[o][column], both[len(names) + column]) for column, o in enumerate(operations)]


def _counts(weight: Weight) -> bool:
    """Whether there are samples. A weight on the device is not read, and positive."""
    return isinstance(weight, Tensor) or weight != 0


def _reduce_values(values: Tensor, reduction: str) -> Tensor:
    return values.max() if reduction == "max" else values.min() if reduction == "min" else values.sum()
