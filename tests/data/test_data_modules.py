"""Users' LightningDataModules, and the order of Leyden's own samples."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning_examples as examples
import pytest
import torch
from folders import MODULES
from pool import Pool
from runs import (
    PATIENCE_S,
    POINTS,
    TINY,
    Freeze,
    Processes,
    cut_back,
    distance,
    metrics,
    rows,
    summary,
    task,
    weights,
)  # fmt: skip
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, WeightedRandomSampler

from leyden.trainer.base.heartbeat import PREPARATION, START, heartbeat
from leyden.trainer.base.signals import StopRequest
from leyden.trainer.config.schema import TASK_LOADERS, load
from leyden.trainer.data.lightning_data import LoaderData, batch_samples
from leyden.trainer.data.order.loader_order import Share
from leyden.trainer.data.order.sample_order import SampleOrder
from leyden.trainer.engine.build import assemble
from leyden.trainer.engine.part_draws import PartDraws
from leyden.trainer.entrypoints.start import start

pytestmark = pytest.mark.usefixtures("seen")
EVERY_STEP = ["callbacks.checkpoint.every_n_steps=1", "callbacks.checkpoint.keep_last=100"]


def losses(run_dir: Path) -> list[Any]:
    return [(row["step"], row["train_loss_step"], row["val_loss"]) for row in rows(run_dir)]


def test_a_data_module_is_set_up_used_and_torn_down(freeze: Freeze, seen: list[Any]) -> None:
    run_dir = freeze("run", *POINTS, task("Plain"))
    assert start(run_dir) == 0
    calls = ["prepare_data", "data.setup(fit)", ("world_size", 1), "data.setup(test)", "data.teardown(fit)"]
    assert [entry for entry in seen if entry in calls] == calls
    assert {"train_loss_epoch", "val_loss", "test_loss"} <= set(metrics(run_dir))
    assert summary(run_dir)["samples"] == 96


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("stop_at", "options"),
    [
        (8, ["+dataset.shuffle=true"]),
        (6, ["+dataset.shuffle=true", "+dataset.noisy=true"]),
        (3, ["+dataset.shuffle=true", "+dataset.noisy=true"]),
        (8, ["+dataset.shuffle=true", "+dataset.own_generator=true"]),
        (7, ["+dataset.shuffle=true", "trainer.accumulate_grad_batches=2", "+dataset.batch_size=5"]),
        (8, ["+dataset.stream=true", "+dataset.noisy=true", "trainer.limit_train_batches=6"]),
        (7, ["+dataset.shuffle=true", task("DrawsLate")]),
    ],
    ids=[
        "shuffled",
        "random transforms",
        "in the first epoch",
        "own generator",
        "accumulated",
        "stream",
        "draws late",
    ],
)
def test_a_resumed_run_is_the_unbroken_one(freeze: Freeze, tmp_path: Path, options: list[str], stop_at: int) -> None:
    whole = freeze("whole", *POINTS, task("DropsOut"), *EVERY_STEP, *options)
    assert start(whole) == 0
    broken = cut_back(whole, tmp_path / "broken", stop_at)
    assert start(broken, "resume") == 0
    assert summary(broken)["resumed_from_step"] == stop_at
    assert losses(broken) == losses(whole)
    assert all(torch.equal(value, weights(broken)[name]) for name, value in weights(whole).items())


@pytest.mark.parametrize(
    ("options", "seeded"),
    [
        (["+dataset.shuffle=true"], [True] * 6),
        (["+dataset.stream=true", "trainer.limit_train_batches=2"], [False] * 6),
    ],
    ids=["of known length", "stream"],
)
def test_the_generators_are_seeded_once_for_a_part_that_is_read_here(
    freeze: Freeze, options: list[str], seeded: list[bool]
) -> None:
    config = load(freeze("run", *POINTS, task("Plain"), *options))
    data = LoaderData(config, SimpleNamespace(world_size=1, local_rank=0, global_rank=0, barrier=lambda: None))  # pyright: ignore
    parts = list(data.train_parts(0))
    assert [part.seeded for part in parts] == seeded
    fabric = SimpleNamespace(global_rank=0, device=torch.device("cpu"))
    state: Any = SimpleNamespace(config=config, fabric=fabric, contract=SimpleNamespace(batch_share=lambda: (0, 1)))
    draws = PartDraws(state)
    torch.manual_seed(1)
    begun = torch.get_rng_state()
    for number, part in enumerate(parts):
        torch.set_rng_state(begun)
        draws.begin(part, 0, number)
        assert torch.equal(torch.get_rng_state(), begun) is seeded[number]


def test_order_and_transforms_are_functions_of_seed_and_epoch(freeze: Freeze) -> None:
    options = ["+dataset.shuffle=true", "+dataset.noisy=true"]
    same = [freeze(name, *POINTS, task("DropsOut"), *options) for name in ("one", "two")]
    other = freeze("other", *POINTS, task("DropsOut"), *options, "seed=1")
    for run_dir in (*same, other):
        start(run_dir)
    assert losses(same[0]) == losses(same[1])
    assert losses(same[0]) != losses(other)
    data = LoaderData(load(same[0]), SimpleNamespace(world_size=1, local_rank=0, global_rank=0, barrier=lambda: None))  # pyright: ignore
    epochs = [torch.cat([part.batch[1] for part in data.train_parts(epoch)]).tolist() for epoch in (0, 1, 0)]
    assert epochs[0] == epochs[2] != epochs[1]


def test_evaluation_leaves_the_runs_random_numbers_alone(freeze: Freeze) -> None:
    config = load(freeze("run", *POINTS, task("Plain"), "+dataset.shuffle=true"))
    data = LoaderData(config, SimpleNamespace(world_size=1, local_rank=0, global_rank=0, barrier=lambda: None))  # pyright: ignore
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    list(data.evaluation_batches("val"))
    assert torch.rand(1) == expected


def test_a_loader_that_reads_ahead_gives_the_same(freeze: Freeze) -> None:
    runs = [freeze(str(n), *POINTS, task("Plain"), "+dataset.shuffle=true", f"dataset.num_workers={n}") for n in (0, 2)]
    for run_dir in runs:
        start(run_dir)
    assert losses(runs[0]) == losses(runs[1])


def test_batch_size_of_the_config_reaches_a_module_that_takes_one(freeze: Freeze) -> None:
    run_dir = freeze("run", *POINTS, task("Plain"), "batch_size=12", "trainer.accumulate_grad_batches=2")
    start(run_dir)
    assert summary(run_dir)["steps"] == 2 * 4
    assert summary(run_dir)["samples"] == 96


@pytest.mark.parametrize("stream", ["false", "true"])
@pytest.mark.parametrize("samples", [48, 41])
def test_accumulation_equals_one_big_batch_with_a_ragged_end_too(freeze: Freeze, stream: str, samples: int) -> None:
    options = [f"+dataset.samples={samples}", f"+dataset.stream={stream}", "trainer.limit_train_batches=3"]
    whole = freeze("whole", *POINTS, task("Plain"), *options, "+dataset.batch_size=16")
    parts = freeze(
        "parts", *POINTS, task("Plain"), *options, "+dataset.batch_size=4", "trainer.accumulate_grad_batches=4"
    )
    start(whole)
    start(parts)
    assert summary(whole)["steps"] == summary(parts)["steps"] == 6
    assert distance(weights(parts), weights(whole)) < 1e-5


def test_a_stream_needs_a_limit(freeze: Freeze) -> None:
    run_dir = freeze("run", *POINTS, task("Plain"), "+dataset.stream=true")
    with pytest.raises(ValueError, match=r"train_dataloader has no length: set trainer.limit_train_batches=N"):
        start(run_dir)
    assert not run_dir.exists()


def test_a_stream_that_ends_early_ends_the_epoch(freeze: Freeze) -> None:
    run_dir = freeze("run", *POINTS, task("Plain"), "+dataset.stream=true", "trainer.limit_train_batches=100")
    assert start(run_dir) == 0
    assert summary(run_dir)["steps"] == 12
    assert summary(run_dir)["epochs"] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["dataset._target_=lightning_examples.PointsWithTransfer"], "PointsWithTransfer overrides transfer_batch_to"),
        (
            ["dataset._target_=lightning_examples.PointsOfTwoLoaders"],
            "val_dataloader gives 2 loaders; one is supported",
        ),
        (["dataset.partitions=2"], "dataset.partitions is for Leyden's datasets"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(freeze: Freeze, options: list[str], message: str) -> None:
    run_dir = freeze("run", *POINTS, task("Plain"), *options)
    with pytest.raises(ValueError, match=message):
        start(run_dir)
    assert not run_dir.exists()


def test_augmentation_is_said_to_be_unused(freeze: Freeze) -> None:
    run_dir = freeze("run", *POINTS, task("Plain"), "augment=crop")
    assert start(run_dir) == 0
    assert "augment is not used: lightning_examples.Points augments" in (run_dir / "run.log").read_text()


def test_no_validation_loaders_is_no_validation(freeze: Freeze) -> None:
    run_dir = freeze("run", *POINTS, task("Plain"), "dataset._target_=lightning_examples.PointsWithoutValidation")
    assert start(run_dir) == 0
    assert "val_loss" not in metrics(run_dir)


def test_the_data_modules_state_and_batch_hook_are_honoured(freeze: Freeze, tmp_path: Path, seen: list[Any]) -> None:
    run_dir = freeze("run", *POINTS, task("Plain"), "dataset._target_=lightning_examples.PointsWithState")
    start(run_dir)
    broken = cut_back(run_dir, tmp_path / "broken", 6)
    start(broken, "resume")
    assert ("data state", 1) in seen
    plain = freeze("plain", *POINTS, task("Plain"))
    doubled = freeze("doubled", *POINTS, task("Plain"), "dataset._target_=lightning_examples.PointsTwiceAsLarge")
    start(plain)
    start(doubled)
    assert metrics(plain)["test_loss"] != metrics(doubled)["test_loss"]


STAYS = [*POINTS, task("Plain"), "dataset._target_=lightning_examples.PointsOfProcesses"]
"""Read by processes that live for many epochs."""


@pytest.mark.slow
def test_a_run_ends_with_its_readers_that_live_for_many_epochs(freeze: Freeze, processes: Processes) -> None:
    code, output = processes.run(freeze("run", *STAYS, "trainer.max_steps=3"))
    assert code == 0, output


NEW_PROCESSES = [*POINTS, task("Plain"), "dataset.num_workers=1"]
"""Read by processes that live for one epoch."""
IN_A_CYCLE = "parts = data = [[parts, data]]; data[0].append(data); del parts, data"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "left"),
    [
        pytest.param(STAYS, IN_A_CYCLE, id="stay, in a cycle"),
        pytest.param(NEW_PROCESSES, "", id="new", marks=pytest.mark.campaign),
        pytest.param(STAYS, "", id="stay", marks=pytest.mark.campaign),
        pytest.param(NEW_PROCESSES, IN_A_CYCLE, id="new, in a cycle", marks=pytest.mark.campaign),
    ],
)
def test_a_program_ends_that_has_left_them_in_an_epoch(options: list[str], left: str, freeze: Freeze) -> None:
    """Also where they are in a cycle, which the garbage collector finds while Python ends: torch cannot ask processes
    to end whose queues are collected with them."""
    script = (
        "import gc\n"
        "from pathlib import Path\n"
        "from lightning.fabric import Fabric\n"
        "from leyden.trainer.config.schema import load\n"
        "from leyden.trainer.data.lightning_data import LoaderData\n"
        f"data = LoaderData(load(Path({str(freeze('run', *options))!r})), Fabric(accelerator='cpu', devices=1))\n"
        "parts = data.train_parts(0)\n"
        "next(parts)\n"
        f"{left}\n"
        "gc.collect()\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=MODULES, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_two_workers_share_the_data_and_resume_in_its_order(
    freeze: Freeze, pools: Callable[[int], Pool], tmp_path: Path
) -> None:
    options = [*POINTS, task("Plain"), *EVERY_STEP, "strategy=ddp", "topology.devices_per_node=2"]
    straight = freeze("straight", *options, "trainer.precision=64-true")
    one = freeze("one", *POINTS, task("Plain"), "trainer.precision=64-true")
    start(one)
    pools(2).run(straight)
    # Every second sample for each worker: batches of 4 and 4 are one worker's batch of 8.
    assert distance(weights(straight), weights(one)) < 1e-10
    assert metrics(straight)["val_loss"] == pytest.approx(metrics(one)["val_loss"], rel=1e-9), "23 samples, unpadded"
    whole = freeze("whole", *options, "+dataset.shuffle=true")
    pools(2).run(whole)
    broken = cut_back(whole, tmp_path / "broken", 8)
    pools(2).run(broken, "resume")
    assert losses(broken) == losses(whole), "the second epoch's order, not the first's again"


def test_a_share_is_every_nth_sample_and_none_twice() -> None:
    for sampler in (SequentialSampler(range(10)), RandomSampler(range(10)), WeightedRandomSampler([1.0] * 10, 10)):
        for count in (1, 2, 3, 11):
            shares: list[list[int]] = []
            for index in range(count):
                torch.manual_seed(0)
                share = Share(sampler, index, count)
                shares.append(list(share))
                assert len(shares[-1]) == len(share)
            torch.manual_seed(0)
            assert sorted(index for share in shares for index in share) == sorted(sampler)


def test_samples_of_a_batch_are_counted_in_any_shape_of_batch() -> None:
    x = torch.zeros(5, 2)
    for batch in (x, [x, 3], (x, x), {"x": x}, [["a", "b"], {"y": x}]):
        assert batch_samples(batch) == 5
    assert batch_samples(next(iter(DataLoader(examples.points(5, 0), batch_size=5)))) == 5


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("samples", [64, 101])
def test_an_epoch_takes_every_sample_once_and_is_a_function_of_seed_and_epoch(samples: int, partitions: int) -> None:
    order = SampleOrder(samples, 8, seed=1, partitions=partitions)
    for epoch in range(3):
        batches = order.batches(epoch)
        assert len(batches) == order.steps
        assert sorted(torch.cat(batches).tolist()) == list(range(samples))
        assert all(
            torch.equal(a, b)
            for a, b in zip(batches, SampleOrder(samples, 8, 1, partitions).batches(epoch), strict=True)
        )
    flat = [torch.cat(SampleOrder(samples, 8, seed, partitions).batches(epoch)).tolist() for seed, epoch in
            ((1, 0), (1, 1), (2, 0), (2, 1))]  # fmt: skip
    assert len({tuple(indices) for indices in flat}) == 4


def test_batches_stay_in_their_partition_and_partitions_come_in_the_order_given() -> None:
    order = SampleOrder(101, 8, seed=1, partitions=3, partition_order=[2, 0, 1])
    held = [set(order.partition(number).tolist()) for number in range(3)]
    assert sorted(map(len, held)) == [33, 34, 34]
    assert held == [set(SampleOrder(101, 16, 7, 3).partition(number).tolist()) for number in range(3)], "fixed"
    visited: list[int] = []
    for batch in order.batches(4):
        (number,) = [n for n in range(3) if set(batch.tolist()) <= held[n]]
        visited.append(number)
    assert visited == [2] * 5 + [0] * 5 + [1] * 5
    plain = SampleOrder(101, 8, seed=1, partitions=3).batches(4)
    assert all(torch.equal(a, b) for a, b in zip(plain[10:], order.batches(4)[:5], strict=True)), (
        "inside: the same order"
    )


def test_single_trains_the_partitions_one_after_the_other(freeze: Freeze) -> None:
    options = [*TINY, "augment=none", "dataset.partitions=3", "trainer.max_epochs=1"]
    straight = freeze("straight", *options)
    turned = freeze("turned", *options, "dataset.partition_order=[2,1,0]")
    for run_dir in (straight, turned):
        assert start(run_dir) == 0
        assert summary(run_dir)["steps"] == 3 * 6, "383 or 384 samples each, in batches of 64"
        assert summary(run_dir)["samples"] == 1150
    assert distance(weights(straight), weights(turned)) > 1e-3


def test_a_run_resumes_inside_a_partition(freeze: Freeze, tmp_path: Path) -> None:
    whole = freeze("whole", *TINY, "dataset.partitions=3", "dataset.partition_order=[1,2,0]", *EVERY_STEP)
    start(whole)
    broken = cut_back(whole, tmp_path / "broken", 26)
    start(broken, "resume")
    assert all(torch.equal(value, weights(broken)[name]) for name, value in weights(whole).items())


def test_without_validation_data_nothing_is_validated(freeze: Freeze) -> None:
    run_dir = freeze("run", *TINY, "dataset.val_fraction=0.0")
    assert start(run_dir) == 0
    assert summary(run_dir)["samples"] == 2 * 1437
    assert not [name for name in metrics(run_dir) if name.startswith("val/")]
    assert {"test/acc", "train/acc"} <= set(metrics(run_dir))


def test_reading_ahead_changes_no_weight(freeze: Freeze) -> None:
    runs = [freeze(str(count), *TINY, f"dataset.num_workers={count}", "model.dropout=0.2") for count in (0, 2)]
    for run_dir in runs:
        assert start(run_dir) == 0
    assert all(torch.equal(value, weights(runs[1])[name]) for name, value in weights(runs[0]).items())
    assert metrics(runs[0])["val/loss"] == metrics(runs[1])["val/loss"]


@pytest.mark.parametrize(
    "words",
    [TINY, [*POINTS, task("Plain")], [*POINTS, f"dataset._target_={TASK_LOADERS}", task("LoadersInside")]],
    ids=["images", "a data module", "the task's loaders"],
)
def test_what_makes_the_data_alone_has_no_time_limit(
    freeze: Freeze, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    run_dir, entered = freeze("run", *words), list[int]()
    monkeypatch.setattr(heartbeat, "observer", entered.append)
    assemble(load(run_dir), run_dir, StopRequest())
    assert entered == [START, PREPARATION, START]
