"""What `self.log` collects: means over samples, exact over uneven shares, without a wait for the device in between."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from lightning.fabric.strategies import Strategy
from torch import Tensor
from torchmetrics import Metric, MetricCollection

Phase = Literal["train", "val", "test"]
_REDUCTIONS = ("mean", "sum", "min", "max")
_FOLD_EVERY = 256


@dataclass
class Entry:
    """One logged name."""

    on_step: bool
    on_epoch: bool
    prog_bar: bool
    logger: bool
    reduction: str
    metric: Metric | None = None
    last: Tensor | float | None = None
    waiting: list[tuple[Tensor | float, int]] = field(default_factory=list)
    total: Tensor | None = None
    weight: float = 0.0

    def fold(self) -> None:
        """Reduce the waiting values to one number and one weight, on their device."""
        if not self.waiting:
            return
        device = next((v.device for v, _ in self.waiting if isinstance(v, Tensor)), torch.device("cpu"))
        values = torch.stack([torch.as_tensor(v, device=device).detach().double().mean() for v, _ in self.waiting])
        weights = torch.tensor([float(n) for _, n in self.waiting], dtype=torch.float64, device=device)
        if self.reduction == "mean":
            folded = (values * weights).sum()
            self.total = folded if self.total is None else self.total.to(device) + folded
        elif self.reduction == "sum":
            self.total = values.sum() if self.total is None else self.total.to(device) + values.sum()
        else:
            extreme = values.max() if self.reduction == "max" else values.min()
            joined = extreme if self.total is None else torch.stack([self.total.to(device), extreme])
            self.total = joined.max() if self.reduction == "max" else joined.min()
        self.weight += float(weights.sum())
        self.waiting.clear()


class MetricLog:
    """The values of one phase. `samples` is set by the loop before each step: the weight of what is logged in it."""

    def __init__(self, phase: Phase, steps_by_default: bool):
        self.phase: Phase = phase
        self.steps_by_default = steps_by_default
        self.samples = 1
        self.in_step = False
        self.entries: dict[str, Entry] = {}

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        batch_size: int | None = None,
        **unused: Any,
    ) -> None:
        """Same meaning as LightningModule.log; values are always reduced over workers.

        Raises:
            ValueError: a value or a reduction that cannot be logged.
        """
        entry = self.entries.get(name)
        if entry is None:
            entry = self.entries[name] = self._entry(name, value, prog_bar, logger, on_step, on_epoch, reduce_fx)
        if entry.metric is not None:
            return
        if not isinstance(value, (Tensor, float, int)):
            raise ValueError(f"self.log({name!r}): a number, tensor or Metric is needed, not {type(value).__name__}")
        weight = self.samples if batch_size is None or self.samples == 0 else batch_size
        if weight == 0:
            return
        if isinstance(value, Tensor) and value.requires_grad:
            value = value.detach()
        entry.last = value
        if entry.on_epoch:
            entry.waiting.append((value, weight))
            if len(entry.waiting) >= _FOLD_EVERY:
                entry.fold()

    def log_dict(self, dictionary: Any, **options: Any) -> None:
        items = dictionary.items(keep_base=False) if isinstance(dictionary, MetricCollection) else dictionary.items()
        for name, value in items:
            self.log(name, value, **options)

    def _entry(
        self, name: str, value: Any, prog_bar: bool, logger: bool | None, on_step: bool | None,
        on_epoch: bool | None, reduce_fx: Any,
    ) -> Entry:  # fmt: skip
        reduction = getattr(reduce_fx, "__name__", reduce_fx)
        if reduction not in _REDUCTIONS:
            raise ValueError(f"self.log({name!r}): reduce_fx={reduction!r} is not one of {', '.join(_REDUCTIONS)}")
        steps = (self.steps_by_default and self.in_step) if on_step is None else on_step
        epochs = (not (self.steps_by_default and self.in_step)) if on_epoch is None else on_epoch
        metric = value if isinstance(value, Metric) else None
        return Entry(steps, epochs, prog_bar, logger is not False, reduction, metric)

    def step_values(self, strategy: Strategy) -> dict[str, float]:
        """Values of the last step, weighted over workers: one exchange, one wait. Every worker must call it."""
        names = [name for name, entry in self.entries.items() if entry.on_step]
        if not names:
            return {}
        values = torch.stack([_number(self.entries[name]) for name in names])
        weights = torch.full_like(values, float(self.samples))
        mean = _weighted(values, weights, strategy)
        return dict(zip([self._step_name(name) for name in names], mean.tolist(), strict=True))

    def epoch_values(self, strategy: Strategy) -> dict[str, float]:
        """Values over the epoch, reduced over workers, and cleared. Every worker must call it."""
        # A worker whose share was empty logged nothing: the first worker, whose share is the largest, knows the names.
        kept = [(n, e.reduction, e.metric is not None) for n, e in self.entries.items() if e.on_epoch]
        result: dict[str, float] = {}
        sums: list[tuple[str, str]] = []
        for name, reduction, is_metric in strategy.broadcast(kept):
            if is_metric:
                result[self._epoch_name(name)] = self._computed(name)
            else:
                sums.append((name, reduction))
        for name, (total, weight) in self._over_workers(sums, strategy).items():
            if weight > 0:
                averaged = dict(sums)[name] == "mean"
                result[self._epoch_name(name)] = total / weight if averaged else total
        for entry in self.entries.values():
            entry.total, entry.weight, entry.last = None, 0.0, None
        return result

    def _computed(self, name: str) -> float:
        metric = self.entries[name].metric
        assert metric is not None
        value = float(metric.compute())
        metric.reset()
        return value

    def _over_workers(self, names: list[tuple[str, str]], strategy: Strategy) -> dict[str, tuple[float, float]]:
        """Total and weight of each (name, reduction) over all workers; every worker must call it with the same names."""
        if not names:
            return {}
        totals: list[Tensor] = []
        weights: list[float] = []
        for name, reduction in names:
            entry = self.entries.get(name)
            if entry is not None:
                entry.fold()
            identity = {"max": -torch.inf, "min": torch.inf}.get(reduction, 0.0)
            total = entry.total if entry is not None else None
            totals.append(torch.tensor(identity, dtype=torch.float64) if total is None else total.cpu())
            weights.append(entry.weight if entry is not None else 0.0)
        operations = ["sum" if reduction == "mean" else reduction for _, reduction in names]
        reduced = {
            operation: strategy.all_reduce(torch.stack(totals).to(strategy.root_device), reduce_op=operation).tolist()
            for operation in sorted(set(operations))
        }
        weight = torch.tensor(weights, dtype=torch.float64, device=strategy.root_device)
        summed = strategy.all_reduce(weight, reduce_op="sum").tolist()
        return {
            name: (reduced[operation][column], summed[column])
            for column, ((name, _), operation) in enumerate(zip(names, operations, strict=True))
        }

    def _step_name(self, name: str) -> str:
        return f"{name}_step" if self.entries[name].on_epoch else name

    def _epoch_name(self, name: str) -> str:
        entry = self.entries.get(name)
        return f"{name}_epoch" if entry is not None and entry.on_step else name

    def state_dict(self, strategy: Strategy) -> dict[str, Any]:
        """Sums over all workers of an epoch that a checkpoint interrupts; every worker must call it."""
        kept = [(n, e.reduction, e.on_step, e.prog_bar, e.logger) for n, e in self.entries.items() if e.on_epoch and not e.metric]
        kept = strategy.broadcast(kept)
        sums = self._over_workers([(name, reduction) for name, reduction, *_ in kept], strategy)
        return {
            name: {"flags": [on_step, True, prog_bar, logger], "reduction": reduction, "sum": list(sums[name])}
            for name, reduction, on_step, prog_bar, logger in kept
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """For one worker, which then carries what all had gathered."""
        for name, saved in state.items():
            total, weight = saved["sum"]
            kept = torch.tensor(total, dtype=torch.float64) if weight > 0 else None
            self.entries[name] = Entry(*saved["flags"], saved["reduction"], total=kept, weight=weight)


def _number(entry: Entry) -> Tensor:
    value = entry.last
    if entry.metric is not None:
        value = entry.metric._forward_cache
    if value is None:
        return torch.tensor(torch.nan)
    return torch.as_tensor(value).detach().float().mean()


def _weighted(values: Tensor, weights: Tensor, strategy: Strategy) -> Tensor:
    both = torch.stack([values * weights, weights]).to(strategy.root_device)
    summed = strategy.all_reduce(both, reduce_op="sum")
    return (summed[0] / summed[1]).cpu()
