"""MetricLog against brute force; workers are threads that really exchange their values."""

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from runs import PATIENCE_S
from torch import Tensor, nn
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassPrecision, MulticlassRecall

from leyden.trainer.components.tasks.reconstruction import Reconstruction
from leyden.trainer.core.metric_log import MetricLog
from leyden.trainer.strategies.single import Single

ONE: Any = Single()


class Exchange:
    """What the workers of a test share."""

    def __init__(self, workers: int):
        self.barrier = threading.Barrier(workers, timeout=PATIENCE_S)
        self.values: list[Any] = [None] * workers


class Worker:
    """As much of a Fabric strategy as MetricLog uses."""

    root_device = torch.device("cpu")

    def __init__(self, exchange: Exchange, rank: int):
        self.exchange, self.rank = exchange, rank

    def _gather(self, value: Any) -> list[Any]:
        self.exchange.values[self.rank] = value
        self.exchange.barrier.wait()
        gathered = list(self.exchange.values)
        self.exchange.barrier.wait()
        return gathered

    def broadcast(self, value: Any) -> Any:
        return self._gather(value)[0]

    def all_reduce(self, tensor: Tensor, reduce_op: str) -> Tensor:
        stacked = torch.stack(self._gather(tensor))
        return {"sum": stacked.sum, "max": stacked.amax, "min": stacked.amin}[reduce_op](0)


def on_workers(count: int, work: Callable[[Any, int], Any]) -> list[Any]:
    exchange = Exchange(count)
    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(work, Worker(exchange, rank), rank) for rank in range(count)]
        return [future.result(timeout=PATIENCE_S) for future in futures]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_every_reduction_equals_brute_force(workers: int, seed: int) -> None:
    rng = random.Random(seed)
    # Steps of (value, samples) for each worker, more than are folded at once; the last worker is often without any.
    logged = [
        [(rng.uniform(-5, 5), rng.randint(0 if rank else 1, 4)) for _ in range(rng.choice([3, 600]))]
        for rank in range(workers)
    ]

    def work(strategy: Any, rank: int) -> Any:
        log = MetricLog("val", steps_by_default=False)
        for value, samples in logged[rank]:
            log.samples = samples
            for reduction in ("mean", "sum", "min", "max"):
                log.log(reduction, value if samples % 2 else torch.tensor(value), reduce_fx=reduction)
            log.log("own_weight", torch.tensor([value]), batch_size=7)
        saved = log.state_dict(strategy)
        values = log.epoch_values(strategy)
        return values, log.epoch_values(strategy), saved

    counted = [(value, samples) for steps in logged for value, samples in steps if samples]
    values = [value for value, _ in counted]
    expected = {
        "mean": sum(v * n for v, n in counted) / sum(n for _, n in counted),
        "sum": sum(values),
        "min": min(values),
        "max": max(values),
        "own_weight": sum(values) / len(values),
    }
    for found, again, saved in on_workers(workers, work):
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)
        assert again == {}, "cleared"
        loaded = MetricLog("val", steps_by_default=False)
        loaded.load_state_dict(saved)
        assert loaded.epoch_values(ONE) == found, "one worker carries what all had gathered"


@pytest.mark.parametrize("workers", [1, 3])
def test_step_values_are_weighted_over_workers(workers: int) -> None:
    shares = [4, 1, 0][:workers]

    def work(strategy: Any, rank: int) -> Any:
        log = MetricLog("train", steps_by_default=True)
        log.in_step = True
        for step in range(2):
            log.samples = shares[rank]
            log.log("loss", torch.tensor(10.0 * step + rank), on_epoch=True)
            log.log("count", shares[rank] if shares[rank] else -99, reduce_fx="sum")
            log.log("highest", float(rank), reduce_fx="max", on_step=True, on_epoch=False)
            log.log("epoch_only", 1.0, on_step=False, on_epoch=True)
        return log.step_values(strategy)

    total = sum(shares)
    expected = {
        "loss_step": sum((10.0 + rank) * share for rank, share in enumerate(shares)) / total,
        "count": total,
        "highest": max(rank for rank, share in enumerate(shares) if share),
    }
    assert on_workers(workers, work) == [pytest.approx(expected)] * workers


@pytest.mark.parametrize("workers", [1, 3])
def test_step_values_are_those_of_all_parts_of_the_step(workers: int) -> None:
    """Parts of unequal size, one of them without samples; numbers and Metric objects, against brute force."""
    rng = random.Random(workers)
    samples = [[[rng.randint(1, 5), 0 if rank else 2, rng.randint(0, 3)] for _ in range(2)] for rank in range(workers)]
    scores = [[[torch.rand(4, 3) for _ in parts] for parts in steps] for steps in samples]
    labels = torch.tensor([0, 1, 2, 0])

    def work(strategy: Any, rank: int) -> Any:
        task = nn.Module()
        task.acc = MulticlassAccuracy(3, average="micro")
        log = MetricLog("train", steps_by_default=True, owner=task)
        log.in_step = True
        found = []
        for step, parts in enumerate(samples[rank]):
            log.begin_step()
            for part, count in enumerate(parts):
                log.begin_part(count)
                value = 10.0 * step + part + rank
                log.log("first_is_replaced", -1.0)
                log.log("first_is_replaced", value)
                for reduction in ("mean", "sum", "min", "max"):
                    log.log(reduction, torch.tensor(value), reduce_fx=reduction)
                log.log("by_size", value, batch_size=7)
                task.acc(scores[rank][step][part], labels)
                log.log("acc", task.acc)
            found.append(log.step_values(strategy))
        return found

    for found in on_workers(workers, work):
        for step in range(2):
            parts = [
                (10.0 * step + part + rank, samples[rank][step][part], scores[rank][step][part])
                for rank in range(workers)
                for part in range(3)
            ]
            counted = [(value, count) for value, count, _ in parts if count]
            total = sum(count for _, count in counted)
            mean = sum(value * count for value, count in counted) / total
            right = sum(float((s.argmax(1) == labels).float().mean()) * count for _, count, s in parts)
            values = [value for value, _ in counted]
            assert found[step] == pytest.approx(
                {
                    "first_is_replaced": mean, "mean": mean, "sum": sum(values), "min": min(values),
                    "max": max(values), "by_size": sum(values) / len(values), "acc": right / total,
                }
            )  # fmt: skip


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_reconstructions_unexplained_part_is_that_of_all_samples(workers: int) -> None:
    """Of every step's, and of the epoch's, on any number of workers; the last one has none in the last step."""
    rows = torch.rand(2, 8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    rows[:, ::3, 2] *= 100
    steps = [rows[0], rows[1, :2]]

    def work(strategy: Any, rank: int) -> Any:
        class Stages(nn.Module):
            stages = (0,)

            def forward(self, images: Tensor, stage: int) -> Tensor:
                return images

        task: Any = Reconstruction(Stages(), stage=0)
        log = MetricLog("train", steps_by_default=True, owner=task)
        log.in_step = True
        object.__setattr__(task, "log", partial(log.log, on_epoch=True))
        of_steps = []
        for step in steps:
            mine = step.tensor_split(workers)[rank]
            log.begin_step()
            for part in mine.tensor_split(2):
                log.begin_part(len(part))
                task.training_step((part if len(part) else step, None), 0)
            of_steps.append(log.step_values(strategy)["train/unexplained_step"])
        saved = log.state_dict(strategy)
        return of_steps, log.epoch_values(strategy)["train/unexplained_epoch"], saved["train/unexplained"]["sum"]

    energy, error = [float(step[:, 2].sum()) for step in steps], [float(step[:, 0].sum()) for step in steps]
    for of_steps, of_epoch, saved in on_workers(workers, work):
        assert of_steps == pytest.approx([error[0] / energy[0], error[1] / energy[1]], rel=1e-12)
        assert of_epoch == pytest.approx(sum(error) / sum(energy), rel=1e-12)
        assert saved == pytest.approx([sum(error), sum(energy)], rel=1e-12)


def test_a_worker_that_logged_nothing_at_all_takes_part() -> None:
    def work(strategy: Any, rank: int) -> Any:
        log = MetricLog("train", steps_by_default=True)
        log.in_step = True
        if rank == 0:
            log.samples = 3
            log.log("loss", 2.0, on_step=True, on_epoch=True)
        return log.step_values(strategy), log.epoch_values(strategy)

    assert on_workers(2, work)[0] == ({"loss_step": 2.0}, {"loss_epoch": 2.0})
    assert on_workers(2, work)[1][1] == {"loss_epoch": 2.0}, "the same names everywhere: early stopping looks them up"


def test_defaults_follow_where_log_is_called() -> None:
    log = MetricLog("train", steps_by_default=True)
    log.log("outside", 1.0)
    log.in_step = True
    log.log("inside", 2.0)
    assert log.step_values(ONE) == {"inside": 2.0}
    assert log.epoch_values(ONE) == {"outside": 1.0}
    evaluation = MetricLog("val", steps_by_default=False)
    evaluation.in_step = True
    evaluation.log("x", 1.0)
    assert evaluation.epoch_values(ONE) == {"x": 1.0}


def test_values_are_those_of_the_moment() -> None:
    log = MetricLog("train", steps_by_default=True)
    parameter = nn.Parameter(torch.tensor(1.0))
    running = torch.tensor(1.0)
    for _ in range(2):
        log.log("parameter", parameter, on_step=True, on_epoch=True)
        log.log("running", running, on_step=True, on_epoch=True)
        with torch.no_grad():
            parameter += 2.0
            running += 2.0
    assert log.step_values(ONE) == {"parameter_step": 3.0, "running_step": 3.0}
    assert log.epoch_values(ONE) == {"parameter_epoch": 2.0, "running_epoch": 2.0}


def test_sums_are_exact_where_float32_is_not() -> None:
    log = MetricLog("val", steps_by_default=False)
    for value in [1e8, *[1.0] * 1000]:
        log.log("x", torch.tensor(value), reduce_fx="sum")
        log.log("half", torch.tensor(1.0, dtype=torch.bfloat16), reduce_fx="sum")
        log.log("integer", torch.tensor(3), reduce_fx=torch.sum)
    assert log.epoch_values(ONE) == {"x": 1e8 + 1000, "half": 1001, "integer": 3003}


class Task(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.acc = MulticlassAccuracy(4, average="micro")
        self.mean = MeanMetric()
        self.both = MetricCollection([MulticlassPrecision(4), MulticlassRecall(4)], prefix="val/")


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    sizes = [5, 3, 1, 5][:count]
    return [
        (torch.randn(n, 4, generator=generator), torch.randint(4, (n,), generator=generator)) for n in sizes
    ]  # fmt: skip


def logged_batches(task: Task, log: MetricLog, some: list[tuple[Tensor, Tensor]]) -> None:
    for scores, labels in some:
        log.samples = len(labels)
        task.acc(scores, labels)
        task.both.update(scores, labels)
        task.mean.update(scores.mean(), weight=len(labels))
        log.log("acc", task.acc, on_step=True, on_epoch=True)
        log.log_dict(task.both)
        log.log("mean", task.mean, on_step=True, on_epoch=False)


def test_metric_objects_are_exact_and_reset() -> None:
    task = Task()
    log = MetricLog("train", steps_by_default=False, owner=task)
    for _ in range(2):
        logged_batches(task, log, batches(4))
        scores = torch.cat([s for s, _ in batches(4)])
        labels = torch.cat([y for _, y in batches(4)])
        last_scores, last_labels = batches(4)[-1]
        steps = log.step_values(ONE)
        assert steps.keys() == {"acc_step"}, "update() alone keeps no value of the step"
        assert steps["acc_step"] == pytest.approx(float((last_scores.argmax(1) == last_labels).float().mean()))
        expected = {
            "acc_epoch": float((scores.argmax(1) == labels).float().mean()),
            "val/MulticlassPrecision": float(MulticlassPrecision(4)(scores, labels)),
            "val/MulticlassRecall": float(MulticlassRecall(4)(scores, labels)),
        }
        assert log.epoch_values(ONE) == pytest.approx(expected, rel=1e-6)


def test_metric_objects_are_found_again_after_a_resumption() -> None:
    task = Task()
    log = MetricLog("train", steps_by_default=True, owner=task)
    logged_batches(task, log, batches(2))
    saved = log.state_dict(ONE)
    assert saved["val/MulticlassRecall"]["metric"] == "both.MulticlassRecall"
    again = MetricLog("train", steps_by_default=True, owner=task)
    again.load_state_dict(saved)
    names = {"acc_epoch", "val/MulticlassPrecision", "val/MulticlassRecall"}
    assert again.epoch_values(ONE).keys() == names


@pytest.mark.parametrize(
    ("value", "options", "message"),
    [
        (torch.ones(2), {}, "single number, not \\[2\\]"),
        ("text", {}, "a number, tensor or Metric is needed, not str"),
        (None, {}, "not NoneType"),
        (1.0, {"reduce_fx": "median"}, "reduce_fx='median' is not one of mean, sum, min, max"),
    ],
)
def test_what_cannot_be_logged_is_named(value: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        MetricLog("val", steps_by_default=False).log("x", value, **options)
    assert "self.log('x')" in str(error.value)


@pytest.mark.parametrize("value", [1, True, 0.5, np.float32(0.5), np.int64(2), torch.tensor([[3.0]])])
def test_every_single_number_is_taken(value: Any) -> None:
    log = MetricLog("val", steps_by_default=False)
    log.log("x", value)
    assert log.epoch_values(ONE) == {"x": float(value)}


def test_positional_arguments_are_in_lightnings_order() -> None:
    log = MetricLog("train", steps_by_default=True)
    log.log("x", 4.0, True, False, False, True, "sum", False, True, None, True, 2)
    entry = log.entries["x"]
    assert (entry.prog_bar, entry.logger, entry.on_step, entry.on_epoch) == (True, False, False, True)
    assert (entry.reduction, entry.waiting[0][1]) == ("sum", 2)
