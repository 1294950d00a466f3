"""strategy=butterfly: the exchange, its bytes, lazy against eager, and what it refuses."""

import copy
import json
import math
import os
import threading
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from butterfly_examples import Awkward
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import LightningEnvironment
from pool import Failed, Pool
from runs import HERE, PATIENCE_S, TINY, Freeze, Processes, cut_back, distance, rows, summary, weights
from tables import thinned
from torch import Tensor, nn

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.compose.checks import check_classes
from leyden.trainer.config.schema import load
from leyden.trainer.core.checkpoints import checkpoint_io
from leyden.trainer.core.transfers import Placement
from leyden.trainer.entrypoints.start import start
from leyden.trainer.strategies.butterfly.buckets import Bucket
from leyden.trainer.strategies.butterfly.comm_thread import CommThread
from leyden.trainer.strategies.butterfly.halving_doubling import ButterflySchedule, Order, best_order
from leyden.trainer.strategies.butterfly.parameter_use import ParameterUse
from leyden.trainer.strategies.butterfly.strategy import Butterfly as Strategy

Pools = Callable[[int], Pool]
CAMPAIGN = pytest.mark.campaign
SHORT = ["trainer.precision=64-true", "trainer.max_steps=5", "batch_size=48", "trainer.log_every_n_steps=1"]
SMALL = ["strategy=butterfly", "strategy.bucket_cap_mb=0.0005"]
"""So that even the smallest network has several buckets, and layers in several pieces."""
FAST = ["trainer.limit_val_batches=2", "trainer.limit_test_batches=1", "trainer.enable_progress_bar=false"]


def devices(count: int) -> str:
    return f"topology.devices_per_node={count}"


def callback(name: str, **arguments: Any) -> list[str]:
    key = f"+callbacks.{name.lower()}"
    return [HERE, f"{key}._target_=butterfly_examples.{name}", *(f"{key}.{k}={v}" for k, v in arguments.items())]


def whole_state(run_dir: Path) -> dict[str, Any]:
    content = checkpoint_io.read(run_dir / "checkpoints" / "last.ckpt")
    return {name: content[name] for name in ("model", "optimizer", "schedules", "position", "metrics")}


def identical(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(identical(one[k], other[k]) for k in one if not _clock(k))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(identical(a, b) for a, b in zip(one, other, strict=True))
    return one == other


def _clock(name: Any) -> bool:
    return isinstance(name, str) and (name.startswith(("time/", "comm/", "workers/")) or name == "samples_per_second")


def learned(run_dir: Path) -> list[dict[str, str]]:
    """What metrics.csv says of the training itself."""
    return [{k: v for k, v in row.items() if not _clock(k)} for row in rows(run_dir)]


# --- the exchange as arithmetic


def played(butterfly: ButterflySchedule, vectors: list[list[float]]) -> list[list[float]]:
    """The schedules of all workers, simulated in one process: an exchange takes place when both have come to it."""
    workers = len(vectors)
    schedules = [butterfly.of_worker(rank, len(vectors[0])) for rank in range(workers)]
    agendas = [
        [(m, True) for m in schedule.reduce_scatter] + [(None, False)] + [(m, False) for m in schedule.all_gather]
        for schedule in schedules
    ]
    while any(agendas):
        moved = False
        for rank, agenda in enumerate(agendas):
            if not agenda:
                continue
            meeting, adds = agenda[0]
            if meeting is None:
                for index in range(*schedules[rank].own):
                    vectors[rank][index] /= workers
                agenda.pop(0)
                moved = True
                continue
            other = agendas[meeting.peer][0] if agendas[meeting.peer] else (None, False)
            if other[0] is None or other[0].peer != rank:
                continue
            assert (meeting.sent, meeting.received, adds) == (other[0].received, other[0].sent, other[1])
            mine, theirs = vectors[rank], vectors[meeting.peer]
            for giver, taker, part in ((mine, theirs, meeting.sent), (theirs, mine, meeting.received)):
                for index in range(*part):
                    taker[index] = taker[index] + giver[index] if adds else giver[index]
            agenda.pop(0)
            agendas[meeting.peer].pop(0)
            moved = True
        assert moved, "workers wait for each other"
    return vectors


@pytest.mark.parametrize("order", ["near_first", "far_first"])
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 6, 7, 8, 12, 13])
@pytest.mark.parametrize("elements", [1, 24, 25])
def test_every_worker_gets_the_mean_and_the_same_bits(order: Order, workers: int, elements: int) -> None:
    generator = torch.Generator().manual_seed(workers)
    vectors = torch.randn(workers, elements, dtype=torch.float64, generator=generator)
    for each in {1, workers, 2 if workers % 2 == 0 else 1, 3 if workers % 3 == 0 else 1}:
        butterfly = ButterflySchedule(Placement(workers, each), order)
        result = played(butterfly, vectors.tolist())
        assert all(row == result[0] for row in result)
        assert torch.allclose(torch.tensor(result[0], dtype=torch.float64), vectors.mean(0), rtol=1e-13, atol=1e-15)
        assert butterfly.sent_by_all(elements)[0] == 2 * (workers - 1) * elements


@pytest.mark.parametrize("workers", [2, 4, 8, 32])
def test_each_worker_sends_the_papers_bytes_in_two_log_k_messages(workers: int) -> None:
    for rank in range(workers):
        sends = ButterflySchedule(Placement(workers, 4), "near_first").of_worker(rank, 64 * workers).sends
        assert sum(length for _, length in sends) * workers == 2 * (workers - 1) * 64 * workers
        assert len(sends) == 2 * int(math.log2(workers))


@pytest.mark.parametrize(("workers", "each"), [(4, 2), (8, 4), (16, 4), (32, 4), (64, 4), (16, 8)])
def test_near_first_sends_g_times_less_out_of_the_nodes(workers: int, each: int) -> None:
    elements = 64 * workers
    placement = Placement(workers, each)
    near, far = (ButterflySchedule(placement, order).sent_by_all(elements)[1] for order in ("near_first", "far_first"))
    assert far == each * near
    assert near == 2 * (workers // each - 1) * elements
    assert best_order(placement) == "near_first"


def test_inter_node_gigabytes_of_the_paper_sized_model() -> None:
    # FACTS 1.3 (d): 851 MB of gradients, four workers a node; GB a node
    table = {8: (3.40, 0.85), 16: (5.11, 1.28), 32: (5.96, 1.49), 64: (6.38, 1.60)}
    for workers, published in table.items():
        for order, expected in zip(("far_first", "near_first"), published, strict=True):
            leaving = ButterflySchedule(Placement(workers, 4), order).sent_by_all(851_000)[1] * 1000
            assert leaving / (workers / 4) / 1e9 == pytest.approx(expected, abs=0.006)


@pytest.mark.parametrize("nodes", [2, 4])
def test_a_surplus_stays_inside_its_node(nodes: int) -> None:
    butterfly = ButterflySchedule(Placement(3 * nodes, 3), "near_first")
    elements = 96
    assert butterfly.sent_by_all(elements)[1] == 2 * (nodes - 1) * elements


def test_auto_is_never_worse_than_either_order() -> None:
    for workers in range(2, 20):
        for each in range(1, workers + 1):
            if workers % each == 0:
                placement = Placement(workers, each)
                sent = {
                    o: ButterflySchedule(placement, o).sent_by_all(64 * workers)[1] for o in ("near_first", "far_first")
                }
                assert sent[best_order(placement)] == min(sent.values())


# --- real processes


@pytest.mark.slow
@pytest.mark.parametrize("workers", [pytest.param(2, marks=CAMPAIGN), 3, 4])
def test_the_exchange_over_gloo_is_exact_and_counted(freeze: Freeze, pools: Pools, workers: int) -> None:
    nodes = 2 if workers == 4 else 1
    for order in ("near_first", "far_first") if nodes == 2 else ("near_first",):
        averages = callback("Averages", order=order)
        options = [*TINY, *SHORT, *FAST, *SMALL, f"topology.nodes={nodes}", devices(workers // nodes)]
        pools(workers).run(freeze(order, *options, *averages, "trainer.max_steps=1"))


MLP = ["model=mlp", "model.hidden=[16]"]
MODELS: dict[str, tuple[list[str], float]] = {
    "lenet5": (["model=lenet5", "dataset.image_size=16", "trainer.precision=32-true"], 1e-5),
    "mlp-dropout": (["model=mlp", "model.hidden=[32,24]", "model.dropout=0.4", "dataset.image_size=8"], 1e-10),
    "mlp-norm-clipped": ([*MLP, "dataset.image_size=8", "trainer.gradient_clip_val=0.05"], 1e-10),
    "mlp-value-clipped": (
        [*MLP, "dataset.image_size=8", "trainer.gradient_clip_val=0.005", "trainer.gradient_clip_algorithm=value"],
        1e-10,
    ),
    "resnet20-group": (["model=resnet20", "model.depth=8", "model.norm=group", "dataset.image_size=8"], 1e-10),
}


EQUAL = [("resnet20-group", 2, "true"), ("mlp-dropout", 3, "true"), ("mlp-norm-clipped", 4, "false")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "workers", "lazy"),
    thinned(product(MODELS, (2, 3, 4), ("true", "false")), in_ci=EQUAL),
)
def test_equal_to_one_worker(freeze: Freeze, pools: Pools, model: str, workers: int, lazy: str) -> None:
    chosen, tolerance = MODELS[model]
    options = [*SHORT, *FAST, *chosen]
    one = freeze("one", *options)
    assert start(one) == 0
    run_dir = freeze("several", *options, "strategy=butterfly", "strategy.bucket_cap_mb=0.02",
                     f"strategy.lazy={lazy}", devices(workers), *callback("SameBits"))  # fmt: skip
    pools(workers).run(run_dir)
    assert distance(weights(run_dir), weights(one)) <= tolerance
    assert summary(run_dir)["samples"] == summary(one)["samples"] == 240
    for name, value in summary(one)["metrics"].items():
        if name.startswith(("val/", "test/", "train/")):
            assert summary(run_dir)["metrics"][name] == pytest.approx(value, rel=1e-4), name


VARIANTS = {
    "sgd": [*MLP, "optimizer.momentum=0.9", "optimizer.weight_decay=0.01"],
    "adamw": [*MLP, "optimizer=adamw", "optimizer.weight_decay=0.1"],
    "accumulated, two groups": [*MLP, "trainer.accumulate_grad_batches=2", "optimizer.decay_bias_and_norm=false"],
    "bf16": [*MLP, "trainer.precision=bf16-mixed", "optimizer=adamw"],
    "clipped": [*MLP, "trainer.gradient_clip_val=0.05"],
    "batchnorm": ["model=resnet20", "model.depth=8", "trainer.max_steps=4", "strategy.bucket_cap_mb=0.05"],
    "awkward": ["model=mlp", "~model.hidden", "~model.dropout", "model._target_=butterfly_examples.Awkward"],
    "vit": [
        "model=vit_small",
        "model.patch=4",
        "model.width=16",
        "model.depth=2",
        "model.heads=2",
        "strategy.bucket_cap_mb=0.01",
    ],
}

LAZY_IN_CI = [("sgd", 4), ("accumulated, two groups", 2), ("bf16", 2), ("awkward", 2)]


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "workers"), thinned(product(VARIANTS, (2, 4)), in_ci=LAZY_IN_CI))
def test_lazy_equals_eager_bit_for_bit(freeze: Freeze, pools: Pools, variant: str, workers: int) -> None:
    # 1150 samples in batches of 384 are 3 steps: the last is smaller, and two validations fall between
    options = [*FAST, "dataset.image_size=8", "trainer.max_epochs=2", "trainer.precision=64-true", "batch_size=384"]
    options += ["schedule.warmup_steps=3", "trainer.log_every_n_steps=1", *SMALL, *VARIANTS[variant]]
    options += callback("SameBits")
    runs = []
    for lazy in ("true", "false"):
        run_dir = freeze(lazy, *options, f"strategy.lazy={lazy}", devices(workers))
        printed = pools(workers).run(run_dir)
        assert ("updates are applied at once" in printed) == (variant == "clipped" and lazy == "true")
        runs.append(run_dir)
    lazy_run, eager = runs
    assert identical(whole_state(lazy_run), whole_state(eager))
    assert learned(lazy_run) == learned(eager)
    assert len(rows(lazy_run)) >= 4


@pytest.mark.slow
def test_lazy_puts_updates_off_and_eager_does_not(freeze: Freeze, pools: Pools, tmp_path: Path) -> None:
    sums = {}
    for lazy in ("true", "false"):
        file = tmp_path / f"{lazy}.json"
        run_dir = freeze(lazy, *TINY, *SHORT, *FAST, *SMALL, f"strategy.lazy={lazy}", devices(2),
                         *callback("Watch", file=file))  # fmt: skip
        pools(2).run(run_dir)
        sums[lazy] = json.loads(file.read_text())
    eager, lazy = sums["false"], sums["true"]
    assert len(set(eager)) == 6
    assert lazy == [eager[0], *eager[:5]], "after each step the weights are still those of the step before"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "nodes"),
    [
        ("near_first", 2),
        ("far_first", 2),
        pytest.param("near_first", 1, marks=CAMPAIGN),
        pytest.param("far_first", 1, marks=CAMPAIGN),
    ],
)
def test_the_ledger_counts_what_the_formula_says(freeze: Freeze, pools: Pools, nodes: int, order: str) -> None:
    hidden = 15  # 64 * 15 + 15 + 15 * 10 + 10 = 1135 parameters: no multiple of 4
    parameters, steps = 64 * hidden + hidden + hidden * 10 + 10, 5
    run_dir = freeze("run", *TINY, *SHORT, *FAST, *SMALL, f"model.hidden=[{hidden}]", f"strategy.order={order}",
                     f"topology.nodes={nodes}", devices(4 // nodes), *callback("Traffic"))  # fmt: skip
    pools(4).run(run_dir)
    sent = summary(run_dir)["communication"]
    said = json.loads((run_dir / "traffic.json").read_text())
    assert sent["bytes_a_step_and_worker"] == 2 * 3 / 4 * parameters * 8 == said["bytes"]
    assert sent["bytes"] == sent["bytes_a_step_and_worker"] * 4 * steps
    leaving = {1: 0, 2: 2 * parameters * 8 / 4}[nodes] * (2 if order == "far_first" else 1)
    assert sent["inter_node_bytes_a_step_and_worker"] == said["inter_node_bytes"] == pytest.approx(leaving, rel=0.01)
    assert said["pieces"] > 10
    assert said["messages"] == 4 * said["pieces"]
    assert said["overlaps"] == ["backward", "next forward"]
    assert {float(row["comm/bytes"]) for row in rows(run_dir) if row["comm/bytes"]} == {said["bytes"]}
    assert len(set(said["fronts"])) == 1, "all workers keep one order"


@pytest.mark.slow
def test_the_ledger_of_a_lazy_run_with_three_workers(freeze: Freeze, pools: Pools) -> None:
    run_dir = freeze("run", *TINY, *SHORT, *FAST, *SMALL, devices(3), *callback("Traffic"))
    pools(3).run(run_dir)
    parameters = 64 * 16 + 16 + 16 * 10 + 10
    said = json.loads((run_dir / "traffic.json").read_text())
    assert said["bytes"] == pytest.approx(2 * 2 / 3 * parameters * 8, rel=1e-15)
    assert summary(run_dir)["communication"]["bytes_a_step_and_worker"] == pytest.approx(said["bytes"], rel=1e-15)


@pytest.mark.slow
def test_resumed_in_mid_epoch_under_butterfly_and_under_single(freeze: Freeze, pools: Pools, tmp_path: Path) -> None:
    options = [*TINY, *FAST, "trainer.precision=64-true", "batch_size=192", "callbacks.checkpoint.every_n_steps=1",
               "callbacks.checkpoint.keep_last=100", "optimizer=adamw", "model.dropout=0.2"]  # fmt: skip
    whole = freeze("whole", *options, *SMALL, devices(2))
    pools(2).run(whole)
    again = cut_back(whole, tmp_path / "again", 8)
    pools(2).run(again, "resume")
    assert summary(again)["resumed_from_step"] == 8
    assert identical(whole_state(again), whole_state(whole))
    changes = {
        "single": (1, "{_target_: leyden.trainer.strategies.single.Single}"),
        "four": (4, "{_target_: leyden.trainer.strategies.butterfly.Butterfly, order: auto, lazy: true}"),
    }
    for name, (count, strategy) in changes.items():
        run_dir = cut_back(whole, tmp_path / name, 8)
        (run_dir / "resume.yaml").write_text(
            f"- changed: {{topology.devices_per_node: {count}, strategy: {strategy}}}\n"
        )
        if count == 1:
            assert start(run_dir, "resume") == 0
        else:
            pools(count).run(run_dir, "resume")
        assert distance(weights(run_dir), weights(whole)) <= 1e-10
        assert summary(run_dir)["metrics"]["train/acc"] == pytest.approx(summary(whole)["metrics"]["train/acc"])


@pytest.mark.slow
def test_a_run_of_one_worker_goes_on_under_butterfly(freeze: Freeze, pools: Pools, tmp_path: Path) -> None:
    options = [*TINY, *FAST, "trainer.precision=64-true", "batch_size=192", "callbacks.checkpoint.every_n_steps=1",
               "callbacks.checkpoint.keep_last=100"]  # fmt: skip
    whole = freeze("whole", *options)
    assert start(whole) == 0
    run_dir = cut_back(whole, tmp_path / "again", 4)
    strategy = "{_target_: leyden.trainer.strategies.butterfly.Butterfly, bucket_cap_mb: 0.001}"
    (run_dir / "resume.yaml").write_text(f"- changed: {{topology.devices_per_node: 2, strategy: {strategy}}}\n")
    pools(2).run(run_dir, "resume")
    assert distance(weights(run_dir), weights(whole)) <= 1e-10


@pytest.mark.slow
def test_a_clean_stop_loses_nothing(freeze: Freeze, pools: Pools, tmp_path: Path) -> None:
    options = [*TINY, *FAST, "trainer.precision=64-true", "batch_size=96", "trainer.max_epochs=1", *SMALL, devices(2)]
    whole, stopped = freeze("whole", *options), freeze("stopped", *options, *callback("Stop", step=5))
    pools(2).run(whole)
    pools(2).run(stopped)
    assert summary(stopped)["status"] == "preempted"
    assert 6 < summary(stopped)["steps"] < 12
    config = stopped / "config.yaml"
    config.write_text(config.read_text().replace("step: 5", "step: 500"))
    pools(2).run(stopped, "resume")
    assert identical(whole_state(stopped), whole_state(whole))


@pytest.mark.slow
def test_an_exception_in_one_worker_ends_the_others(freeze: Freeze, processes: Processes) -> None:
    run_dir = freeze("run", *TINY, *SMALL, devices(2), "trainer.max_epochs=50", *callback("Fails"))
    code, output = processes.run(run_dir)
    assert code == 1
    assert "rank 1 failed: RuntimeError: the eleventh hour" in output


@pytest.mark.campaign
def test_eager_updates_work_with_a_compiled_model(freeze: Freeze, pools: Pools, tmp_path: Path) -> None:
    noted = tmp_path / "compiled_to_graphs"
    options = [*TINY, *FAST, *SMALL, "trainer.max_steps=3", "trainer.max_epochs=1", devices(2), "strategy.lazy=false",
               HERE, "model._target_=compiled_examples.InterpretedMLP", f"+model.noted={noted}",
               "trainer.limit_val_batches=0", "trainer.limit_test_batches=0"]  # fmt: skip
    plain, compiled = freeze("plain", *options), freeze("compiled", *options, "trainer.compile=true")
    pools(2).run(plain)
    pools(2).run(compiled)
    assert noted.exists()
    assert distance(weights(compiled), weights(plain)) < 1e-4


# --- one process: what a Fabric script of its own would meet


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[Fabric, Strategy]]]:
    """alone(**settings) -> Fabric under a butterfly of one worker, whose exchange is the identity."""
    kept = dict(os.environ)

    def make(**settings: Any) -> tuple[Fabric, Strategy]:
        strategy = Strategy(bucket_cap_mb=0.0001, **settings)
        fabric = Fabric(accelerator="cpu", devices=1, strategy=strategy, plugins=[LightningEnvironment()])
        fabric.launch()
        return fabric, strategy

    yield make
    torch.distributed.destroy_process_group()
    os.environ.clear()
    os.environ.update(kept)


Alone = Callable[..., tuple[Fabric, Strategy]]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def trained(fabric: Fabric, backwards: int = 1, steps: int = 4) -> nn.Module:
    """A plain Fabric script."""
    module = network()
    wrapped = fabric.setup_module(module)
    optimizer: Any = fabric.setup_optimizers(torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9))
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(backwards):
            fabric.backward(wrapped(torch.randn(16, 4, generator=generator)).square().mean())
        optimizer.step()
    wrapped(torch.zeros(1, 4))
    return module


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("backwards", [1, 2])
def test_a_fabric_script_of_its_own(alone: Alone, lazy: bool, backwards: int) -> None:
    plain = trained(Fabric(accelerator="cpu", devices=1), backwards)
    fabric, strategy = alone(lazy=lazy)
    module = trained(fabric, backwards)
    assert strategy._put_off == 0, "the forward after the last step has done every update"
    assert distance(module.state_dict(), plain.state_dict()) < 1e-6


@pytest.mark.parametrize("lazy", [True, False])
def test_a_gradient_of_an_earlier_part_alone_counts(alone: Alone, lazy: bool) -> None:
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.always, self.sometimes = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, both: bool) -> Tensor:
            return (self.always(torch.ones(1, 2)) + (self.sometimes(torch.ones(1, 2)) if both else 0.0)).sum()

    fabric, _ = alone(lazy=lazy)
    module = Sometimes()
    wrapped = fabric.setup_module(module)
    optimizer: Any = fabric.setup_optimizers(torch.optim.SGD(module.parameters(), lr=1.0))
    before = module.sometimes.weight.detach().clone()
    with fabric.no_backward_sync(wrapped):
        fabric.backward(wrapped(True))
    fabric.backward(wrapped(False))
    optimizer.step()
    wrapped(True)
    assert torch.equal(module.sometimes.weight, before - 1.0)


def test_a_parameter_without_a_gradient_is_named(alone: Alone) -> None:
    fabric, _ = alone()
    module = network()
    module.register_parameter("unused", nn.Parameter(torch.ones(3)))
    wrapped = fabric.setup_module(module)
    with pytest.raises(ValueError, match=r"no gradient to unused: .*strategy=ddp strategy.find_unused_parameters=true"):
        fabric.backward(wrapped(torch.randn(2, 4)).sum())


def test_an_exchange_that_fails_is_raised_where_it_is_waited_for(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    for_lazy, strategy = alone(lazy=True)
    calls = []

    def fails(vector: Tensor) -> None:
        calls.append(vector)
        if len(calls) == 7:
            raise RuntimeError("connection closed by peer")

    monkeypatch.setattr(strategy._exchange, "average", fails)
    with pytest.raises(RuntimeError, match="an exchange of gradients failed: connection closed by peer"):
        trained(for_lazy)
    with pytest.raises(RuntimeError, match="connection closed"):
        strategy.flush_pending_updates(nn.Module())  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("lazy", [True, False])
def test_what_backward_leaves_no_time_for_goes_in_the_order_in_which_it_is_needed(
    alone: Alone, monkeypatch: pytest.MonkeyPatch, lazy: bool
) -> None:
    fabric, strategy = alone(lazy=lazy)
    exchanged: list[int] = []
    begun, backward_is_over = threading.Event(), threading.Event()
    hand_over, backward = CommThread.hand_over, fabric.backward

    def slow(vector: Tensor) -> None:
        """No exchange that begins in a backward ends in it."""
        begun.set()
        assert backward_is_over.wait(PATIENCE_S)
        exchanged.append(vector.data_ptr())

    def hands_over(self: CommThread, bucket: Bucket, last: bool) -> None:
        assert not last or begun.wait(PATIENCE_S), "the first exchange has begun before backward ends"
        hand_over(self, bucket, last)
        if last:
            backward_is_over.set()

    def one_backward(loss: Tensor) -> None:
        begun.clear()
        backward_is_over.clear()
        backward(loss)

    monkeypatch.setattr(strategy._exchange, "average", slow)
    monkeypatch.setattr(CommThread, "hand_over", hands_over)
    monkeypatch.setattr(fabric, "backward", one_backward)
    trained(fabric, steps=6)
    pieces = [piece.data_ptr() for bucket in strategy._buckets for piece in bucket.pieces]
    orders = [exchanged[start : start + len(pieces)] for start in range(0, len(exchanged), len(pieces))]
    assert len(orders) == 6
    assert orders[0] == pieces, "nothing is known yet"
    front = strategy._comm.front
    assert front < len(pieces) / 2 if lazy else front == len(pieces), "backward is much faster than the exchanges"
    possible = [pieces[:f] + pieces[f:][::-1] for f in range(len(pieces) + 1)]
    assert all(order in possible for order in orders)
    assert (orders[-1] == pieces) != lazy


def test_a_copy_of_the_module_can_be_made_and_used(alone: Alone) -> None:
    fabric, strategy = alone()
    module = network()
    wrapped = fabric.setup_module(module)
    optimizer: Any = fabric.setup_optimizers(torch.optim.SGD(module.parameters(), lr=0.1))
    fabric.backward(wrapped(torch.ones(2, 4)).sum())
    optimizer.step()
    before = copy.deepcopy(module)
    assert strategy._put_off > 0, "copying has not settled anything"
    wrapped(torch.ones(2, 4))
    assert distance(before.state_dict(), module.state_dict()) > 1e-4, "the copy is of the weights as they were"
    after = copy.deepcopy(module)
    assert torch.equal(after(torch.ones(2, 4)), module(torch.ones(2, 4)))


class Counting(torch.optim.SGD):
    """Keeps a number for a whole group, as Prodigy and its kin do."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["estimate"] = group.get("estimate", 0.0) + 1.5
        return super().step(closure)


def test_an_optimizer_whose_layers_depend_on_each_other_cannot_be_lazy(alone: Alone) -> None:
    fabric, _ = alone()
    module = network()
    wrapped = fabric.setup_module(module)
    optimizer: Any = fabric.setup_optimizers(Counting(module.parameters(), lr=0.1))
    fabric.backward(wrapped(torch.randn(2, 4)).sum())
    optimizer.step()
    with pytest.raises(ValueError, match=r"cannot put off Counting's updates: .*'estimate'.*strategy.lazy=false"):
        wrapped(torch.randn(2, 4))


def test_a_parameter_unfrozen_later_is_noticed(alone: Alone) -> None:
    fabric, _ = alone()
    module = network()
    module[0].requires_grad_(False)
    wrapped = fabric.setup_module(module)
    optimizer: Any = fabric.setup_optimizers(torch.optim.SGD(module.parameters(), lr=0.1))
    module[0].requires_grad_(True)
    fabric.backward(wrapped(torch.randn(2, 4)).sum())
    with pytest.raises(ValueError, match=r"0.weight was frozen at the start and is trained now"):
        optimizer.step()


def test_channels_last_gradients_have_the_layout_of_their_weights(alone: Alone) -> None:
    fabric, _ = alone(lazy=False)
    module = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    wrapped = fabric.setup_module(module)
    images = torch.randn(2, 3, 8, 8)
    expected = torch.autograd.grad(module(images).square().mean(), module.weight)[0]
    fabric.backward(wrapped(images).square().mean())
    assert module.weight.grad is not None
    assert module.weight.grad.stride() == module.weight.stride()
    assert torch.allclose(module.weight.grad, expected)


def test_who_reads_a_parameter_is_learned() -> None:
    model = Awkward(3, (1, 8, 8))
    found: list[list[nn.Module]] = []
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    ParameterUse(model, [p for p in model.parameters() if p.requires_grad], found.extend)
    with torch.no_grad():
        model(torch.randn(2, 1, 8, 8))
    assert not found, "evaluation teaches nothing"
    model(torch.randn(2, 1, 8, 8))
    readers = dict(zip(names, found, strict=True))
    assert readers["scale"] == [model]
    assert readers["attention.out_proj.weight"] == [model.attention], "out_proj is never called"
    assert readers["first.weight"] == [model.first, model], "tied: read by the model as well"
    assert readers["out.weight"] == [model.out, model], "the penalty reads it"
    assert readers["out.bias"] == [model.out]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules()), "nothing stays behind"


# --- what is refused before anything starts


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([devices(1)], ["strategy = butterfly", "the topology has one", "strategy=single"]),
        (["strategy.order=near"], ["strategy.order = near", "did you mean near_first?"]),
        (["strategy.order=far-first"], ["did you mean far_first?"]),
        (["strategy.bucket_cap_mb=0"], ["strategy.bucket_cap_mb = 0", "must be greater than 0"]),
        (["strategy.timeout_s=-1"], ["strategy.timeout_s = -1", "must be greater than 0"]),
        (["trainer.compile=true"], ["trainer.compile", "strategy.lazy=false"]),
        (["optimizer._target_=torch.optim.LBFGS", "~optimizer.momentum", "~optimizer.weight_decay",
          "~optimizer.nesterov"], ["LBFGS's step needs a closure"]),
    ],
    ids=["one worker", "order", "order with a dash", "cap", "timeout", "compile", "closure"],
)  # fmt: skip
def test_refused_before_the_start(freeze: Freeze, options: list[str], words: list[str]) -> None:
    config = load(freeze("run", *TINY, "strategy=butterfly", devices(2), *options))
    with pytest.raises(ConfigError) as raised:
        check_classes(config)
    for word in words:
        assert word in str(raised.value)


def test_what_lazy_cannot_do_eager_can(freeze: Freeze) -> None:
    options = ["strategy=butterfly", devices(2), "strategy.lazy=false", "trainer.compile=true"]
    check_classes(load(freeze("run", *TINY, *options, "callbacks=[default,ema]")))


@pytest.mark.slow
def test_a_raising_worker_in_a_pool_says_what_is_missing(freeze: Freeze, pools: Pools) -> None:
    unused = ["~model.hidden", "~model.dropout", "model._target_=butterfly_examples.Unused"]
    run_dir = freeze("run", *TINY, *SMALL, devices(2), HERE, *unused)
    with pytest.raises(Failed, match=r"backward gave no gradient to task.model.never.weight, task.model.never.bias"):
        pools(2).run(run_dir)
