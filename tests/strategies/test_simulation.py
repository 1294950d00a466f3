"""Local-update strategies with simulated workers: equal to their limiting cases, resumable, reproducible."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from pool import Pool
from runs import FEW, HERE, TINY, Freeze, cut_back, distance, metrics, rows, summary, weights

from leyden.trainer.core.checkpoints import checkpoint_io
from leyden.trainer.entrypoints.start import start
from leyden.trainer.runs import checkpoints

pytestmark = pytest.mark.thinned(2)

CAMPAIGN = pytest.mark.campaign
SIMULATED = "strategy.execution.simulate=true"
SHORT = [*TINY, *FEW, "batch_size=96", "trainer.log_every_n_steps=5", "logger=default"]
DOUBLE = "trainer.precision=64-true"
PLAIN = ["optimizer.momentum=0", "optimizer.weight_decay=0"]


def workers(count: int) -> str:
    return f"topology.devices_per_node={count}"


def trained(run_dir: Path) -> dict[str, torch.Tensor]:
    assert start(run_dir) == 0
    return weights(run_dir)


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param([], id="momentum"),
        pytest.param(["optimizer.momentum=0"], id="plain", marks=CAMPAIGN),
        pytest.param(["optimizer=adagrad"], id="adagrad", marks=pytest.mark.slow),
        pytest.param(["optimizer=adamw", "optimizer.decay_bias_and_norm=false"], id="adamw"),
    ],
)
def test_one_asynchronous_worker_is_bitwise_sgd(freeze: Freeze, optimizer: list[str]) -> None:
    options = [*SHORT, *optimizer, "trainer.gradient_clip_val=1.0", "model.dropout=0.2"]
    one = trained(freeze("single", *options))
    assert same_bits(trained(freeze("asgd", *options, "strategy=asgd", SIMULATED)), one)


def test_summed_pushes_of_one_worker_are_sgd_to_tolerance(freeze: Freeze) -> None:
    options = [*SHORT, DOUBLE, *PLAIN, "schedule=constant"]
    one = trained(freeze("single", *options))
    summed = trained(freeze("asgd", *options, "strategy=asgd", "strategy.n_push=3", "strategy.n_fetch=3", SIMULATED))
    assert distance(summed, one) <= 1e-10


@pytest.mark.parametrize("batch", [pytest.param(48, marks=CAMPAIGN), 164])
def test_averaging_every_step_is_data_parallelism(freeze: Freeze, batch: int) -> None:
    """With momentum and weight decay as well, and with uneven last shares: 1150 samples, batches of 164 leave 2."""
    options = [*TINY, *FEW, DOUBLE, f"batch_size={batch}", "trainer.max_epochs=2"]
    one = trained(freeze("single", *options))
    averaged = freeze("averaged", *options, "strategy=local_sgd", "strategy.h=1", SIMULATED, workers(4))
    assert distance(trained(averaged), one) <= 1e-10
    assert summary(averaged)["samples"] == summary(averaged.with_name("single"))["samples"]


def test_a_warm_start_is_one_worker_alone(freeze: Freeze) -> None:
    """Its slices are one after the other, as a single worker with batches of that size would take them."""
    alone = trained(freeze("single", *SHORT, "trainer.max_steps=8", "batch_size=24", "schedule=constant"))
    options = [*SHORT, "trainer.max_steps=4", "batch_size=48", "schedule=constant"]
    start_alone = ["strategy=asgd", "strategy.warm_start_steps=8", SIMULATED, workers(2)]
    assert same_bits(trained(freeze("warm", *options, *start_alone)), alone)


EASGD_SERVER = ["strategy=easgd", "strategy.form=server", "strategy.tau=3"]
CASES = {
    "easgd": ["strategy=easgd", "strategy.tau=3"],
    "eamsgd": ["strategy=easgd", "strategy.tau=3", "optimizer.nesterov=true"],
    "eamsgd-before": ["strategy=easgd", "strategy.tau=3", "strategy.difference=before", "optimizer.nesterov=true"],
    "easgd-server": [*EASGD_SERVER, "strategy.execution.delay=exponential"],
    "eamsgd-server": [*EASGD_SERVER, "strategy.execution.delay=exponential", "optimizer.nesterov=true"],
    "asgd": ["strategy=asgd", "strategy.execution.delay=exponential", "strategy.n_push=2", "strategy.n_fetch=4"],
    "asgd-bound": ["strategy=asgd", "strategy.execution.delay=straggler", "strategy.max_staleness=3"],
    "local_sgd": ["strategy=local_sgd", "strategy.h=7"],
    "diloco": ["strategy=local_sgd", "strategy.h=5", "strategy.outer_lr=0.7", "strategy.outer_momentum=0.9"],
    "adacomm": ["strategy=local_sgd", "strategy.h=6", "strategy.h_rule=adacomm", "strategy.adapt_every=8"],
}
QUICK: list[pytest.MarkDecorator] = []
RESUMED = {"easgd": QUICK, "asgd": QUICK, "local_sgd": QUICK, "eamsgd": CAMPAIGN, "easgd-server": CAMPAIGN}
"""Marks of those that are not slow."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=RESUMED.get(case, pytest.mark.slow)) for case in CASES],
)
def test_resumed_is_unbroken(freeze: Freeze, tmp_path: Path, case: str) -> None:
    """From a checkpoint in mid-epoch: the same bits, the same last metrics."""
    options = [*SHORT, *CASES[case], SIMULATED, workers(4), "callbacks.checkpoint.every_n_steps=5",
               "callbacks.checkpoint.keep_last=100"]  # fmt: skip
    whole = freeze("whole", *options)
    first = trained(whole)
    steps = [checkpoints.step_of(path) for path in checkpoints.saved_checkpoints(whole)]
    assert summary(whole)["samples"] == 2 * 1150
    middle = max(step for step in steps if step < 12)
    broken = cut_back(whole, tmp_path / "broken", middle)
    assert start(broken, "resume") == 0
    assert same_bits(weights(broken), first)
    assert metrics(broken)["test/loss"] == metrics(whole)["test/loss"]
    assert {int(row["step"]) for row in rows(broken)} == {int(row["step"]) for row in rows(whole)}


def test_a_simulation_is_reproducible_and_its_seed_counts(freeze: Freeze) -> None:
    options = [*SHORT, *CASES["asgd"], SIMULATED, workers(8), "trainer.max_epochs=1"]
    one = trained(freeze("one", *options))
    assert same_bits(trained(freeze("same", *options)), one)
    assert not same_bits(trained(freeze("other", *options, "strategy.execution.delay=constant")), one)


def test_sixty_four_simulated_workers(freeze: Freeze) -> None:
    run_dir = freeze("run", *TINY, *FEW, "batch_size=128", "strategy=asgd", SIMULATED, workers(64),
                     "trainer.max_steps=4", "trainer.log_every_n_steps=1")  # fmt: skip
    assert start(run_dir) == 0
    last = rows(run_dir)[-1]
    known = [row for row in rows(run_dir) if row["local_update/staleness_max"]]
    assert float(known[-1]["local_update/staleness_max"]) == 63
    assert last


def test_staleness_is_bounded_where_asked(freeze: Freeze) -> None:
    straggler = ["strategy.execution.delay=straggler", "strategy.execution.slower=10"]
    options = [*SHORT, "strategy=asgd", *straggler, SIMULATED, workers(3), "trainer.max_epochs=1"]  # fmt: skip
    free, bounded = freeze("free", *options), freeze("bounded", *options, "strategy.max_staleness=4")
    start(free)
    start(bounded)
    assert metrics(free)["local_update/staleness_max"] > 10
    assert metrics(bounded)["local_update/staleness_max"] == 4
    assert metrics(bounded)["local_update/simulated_seconds"] > 1.5 * metrics(free)["local_update/simulated_seconds"]


def test_a_straggler_slows_workers_in_lockstep_alone(freeze: Freeze) -> None:
    """An epoch is len(dataset) samples, whichever workers train them: simulated time shows which waited."""
    straggler = [f"strategy.execution.{option}" for option in ("delay=straggler", "slower=4", "delay_ms=1000")]
    options = [*SHORT, *straggler, SIMULATED, workers(4), "trainer.max_epochs=1"]
    seconds = {}
    for name in ("easgd", "easgd-server", "local_sgd"):
        run_dir = freeze(name, *CASES[name], *options)
        start(run_dir)
        assert summary(run_dir)["samples"] == 1150
        seconds[name] = metrics(run_dir)["local_update/simulated_seconds"]
    slices = 4 * 12
    assert seconds["easgd"] == seconds["local_sgd"] == 4 * slices / 4
    assert seconds["easgd-server"] <= slices / 3.25 + 4


def test_a_slow_link_delays_transfers(freeze: Freeze) -> None:
    """1210 parameters of 4 bytes at 0.03872 Mbit/s: a transfer takes a second."""
    options = [*SHORT, "strategy=asgd", SIMULATED, "strategy.execution.delay_ms=1", "trainer.max_epochs=1", workers(2)]
    run_dir = freeze("run", *options, f"strategy.execution.link_mbit_s={1210 * 4 * 8 / 1e6}")
    start(run_dir)
    assert metrics(run_dir)["local_update/simulated_seconds"] == pytest.approx(2 * 2 * 12, rel=0.05)


@pytest.mark.slow
def test_bytes_follow_the_formulas(freeze: Freeze) -> None:
    size = 1210 * 4
    expected = {
        "easgd": (4, 2 * 3 / 4 * size / 3),
        "easgd-server": (2, 2 * size / 3),
        "asgd": (2, size / 4 + size / 2),
        "local_sgd": (2, 2 * 1 / 2 * size / 7),
    }
    for name, (count, bytes_a_step) in expected.items():
        run_dir = freeze(name, *CASES[name], *TINY, *FEW, f"batch_size={count}", "trainer.max_steps=168",
                         SIMULATED, workers(count), "+callbacks.traffic._target_=local_update_examples.Traffic",
                         HERE)  # fmt: skip
        start(run_dir)
        sent = summary(run_dir)["communication"]["bytes_a_step_and_worker"]
        assert sent == pytest.approx(bytes_a_step, rel=0.02), name
        transfers = json.loads((run_dir / "traffic.json").read_text())
        assert sum(transfer["bytes"] / transfer["every"] for transfer in transfers) == pytest.approx(bytes_a_step), name


def logged(run_dir: Path) -> list[tuple[int, float]]:
    """(step, comm/bytes) of every row about training."""
    return [(int(row["step"]), float(row["comm/bytes"])) for row in rows(run_dir) if row["time/total_ms"]]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [20, 22], ids=["logged twice", "a short interval"])
def test_bytes_are_logged_to_the_last_row(freeze: Freeze, steps: int) -> None:
    """At an epoch's end all log; there a simulation's only process has logged step 20 before."""
    cases = {
        "asgd": ["strategy=asgd"],
        "easgd-server": [*EASGD_SERVER, "strategy.tau=1"],
        "easgd": ["strategy=easgd", "strategy.tau=1"],
        "local_sgd": ["strategy=local_sgd", "strategy.h=1"],
    }
    for name, options in cases.items():
        run_dir = freeze(name, *SHORT, *options, f"trainer.max_steps={steps}", SIMULATED, workers(4))
        start(run_dir)
        expected = 1210 * 4 * (1.5 if name in ("easgd", "local_sgd") else 2)
        found = logged(run_dir)
        assert found[-1][0] == steps
        assert found == [(step, pytest.approx(expected)) for step, _ in found], name


def test_bytes_of_the_rows_are_those_of_the_run(freeze: Freeze) -> None:
    """A fetch each step, and one push an epoch: the pending sum at its end."""
    run_dir = freeze(
        "run", *SHORT, "strategy=asgd", "strategy.n_push=100", SIMULATED, "batch_size=48", "trainer.log_every_n_steps=4"
    )
    start(run_dir)
    found = logged(run_dir)
    whole = sum(sent * (step - before) for (before, _), (step, sent) in pairwise([(0, 0.0), *found]))
    size = 1210 * 4
    assert whole == pytest.approx(summary(run_dir)["communication"]["bytes"])
    assert whole == pytest.approx((48 + 2) * size)
    assert [sent for step, sent in found if step in (24, 48)] == [pytest.approx(5 / 4 * size)] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    ["asgd", pytest.param("easgd strategy.form=server strategy.tau=1", marks=CAMPAIGN), "local_sgd strategy.h=1"],
)
def test_distributed_workers_log_bytes_to_the_end(freeze: Freeze, pools: Callable[[int], Pool], strategy: str) -> None:
    run_dir = freeze("run", *SHORT, *f"strategy={strategy}".split(), "trainer.max_steps=20", workers(2))
    pools(2).run(run_dir)
    step, sent = logged(run_dir)[-1]
    assert (step, sent) == (20, pytest.approx(1210 * 4 * (1 if "local_sgd" in strategy else 2)))


def test_a_recording_of_another_config_is_refused(freeze: Freeze, tmp_path: Path) -> None:
    events = tmp_path / "events.csv"
    events.write_text("-1,begin\n0,ticket\n1,pull\n")
    run_dir = freeze("run", *SHORT, "strategy=asgd", SIMULATED, f"strategy.execution.replay={events}", workers(2))
    assert start(run_dir) == 1
    assert "the recording has a pull of worker 1 where this config has none" in summary(run_dir)["error"]


def test_divergence_stops_the_run_and_says_why(freeze: Freeze) -> None:
    run_dir = freeze("run", *SHORT, "strategy=asgd", "optimizer.lr=1e25", SIMULATED, workers(2))
    assert start(run_dir) == 1
    assert "diverged" in summary(run_dir)["error"]


def test_on_another_number_of_workers_all_start_at_the_center(freeze: Freeze, tmp_path: Path) -> None:
    options = [*SHORT, *CASES["easgd"], SIMULATED, "callbacks.checkpoint.every_n_steps=10",
               "callbacks.checkpoint.keep_last=9"]  # fmt: skip
    run_dir = freeze("run", *options, workers(4))
    start(run_dir)
    resumed = cut_back(run_dir, tmp_path / "resumed", 10)
    (resumed / "resume.yaml").write_text("- changed: {topology.devices_per_node: 2}\n")
    assert start(resumed, "resume") == 0
    assert summary(resumed)["samples"] == 2 * 1150
    assert "all 2 workers start at the evaluation weights" in (resumed / "run.log").read_text()


def test_each_worker_can_be_validated(freeze: Freeze) -> None:
    run_dir = freeze("run", *SHORT, *CASES["easgd"], "strategy.execution.validate_workers=true", SIMULATED, workers(2))
    start(run_dir)
    found = metrics(run_dir)
    assert len({found["val/loss"], found["val/loss_worker0"], found["val/loss_worker1"]}) == 3


def test_statistics_of_batch_normalization_are_averaged(freeze: Freeze) -> None:
    options = ["model=resnet20", "model.depth=8", "dataset.image_size=8", "batch_size=32", "trainer.max_steps=4",
               "trainer.max_epochs=1"]  # fmt: skip
    run_dir = freeze("run", *options, *CASES["local_sgd"], SIMULATED, workers(2), "trainer.limit_test_batches=1",
                     "trainer.limit_val_batches=1")  # fmt: skip
    start(run_dir)
    main = weights(run_dir)
    own = checkpoint_io.shards_of(
        run_dir / "checkpoints" / "last.ckpt", checkpoint_io.read(run_dir / "checkpoints" / "last.ckpt")
    )
    assert own is not None
    each = [worker["buffers"] for worker in own.own(0)["local_update"]["workers"]]
    assert not torch.equal(each[0][0], each[1][0])
    first = next(name for name in main if name.endswith("running_mean"))
    assert torch.allclose(main[first], (each[0][0] + each[1][0]) / 2)
