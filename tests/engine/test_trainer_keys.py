"""Keys of Lightning's Trainer: val_check_interval, num_sanity_val_steps, overfit_batches, max_time, detect_anomaly."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning_examples as examples
import pytest
import torch
from lightning.pytorch import Trainer
from pool import Pool
from remedied import shown, works
from runs import HERE, POINTS, TINY, Freeze, cut_back, distance, metrics, rows, states, summary, task, weights
from tables import thinned

from leyden.trainer.base.time_limit import seconds_of
from leyden.trainer.cli.main import main
from leyden.trainer.config.schema import Trainer as TrainerConfig
from leyden.trainer.data.order.sample_order import SampleOrder
from leyden.trainer.engine.validation_schedule import ValidationSchedule
from leyden.trainer.entrypoints.start import start
from leyden.trainer.runs import checkpoints

pytestmark = [pytest.mark.thinned(3), pytest.mark.usefixtures("seen")]

QUIET = ["trainer.enable_progress_bar=false", "trainer.log_every_n_steps=1"]
INSIDE = [*TINY, "batch_size=128", "model.dropout=0.3", *QUIET, "trainer.val_check_interval=4"]
"""9 steps an epoch, of which 4 and 8 are validated, and the last of all, 18."""
VALIDATED = [4, 8, 13, 17, 18]


def example(name: str) -> str:
    return f"task._target_=trainer_key_examples.{name}"


def under_lightning(module: Any, data: Any = None, **settings: Any) -> Trainer:
    trainer = Trainer(
        accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, **{"max_epochs": 2, "num_sanity_val_steps": 0, **settings},
    )  # fmt: skip
    trainer.fit(module, datamodule=examples.Points() if data is None else data)
    return trainer


def of_the_fit(seen: list[Any]) -> list[Any]:
    """Without what the data module notes, and without the values that are logged before an epoch's end."""
    return [entry for entry in seen if "data" not in str(entry) and "known" not in str(entry)]


def validated(run_dir: Path, name: str = "val/loss") -> list[int]:
    return [int(row["step"]) for row in rows(run_dir) if row.get(name)]


def values(run_dir: Path) -> list[dict[str, str]]:
    return [
        {n: v for n, v in row.items() if not n.startswith("time/") and "per_second" not in n} for row in rows(run_dir)
    ]


# --- val_check_interval


@pytest.mark.parametrize(
    ("interval", "epochs"),
    [(2, 1), (0.5, 1), (3, 2), (4, None), (1.0, 1)],
    ids=["2", "half", "3 of 2nd", "4 across", "1.0"],
)
def test_validation_comes_when_lightnings_does(
    freeze: Freeze, seen: list[Any], interval: float, epochs: int | None
) -> None:
    module = examples.Hooked()
    under_lightning(module, val_check_interval=interval, check_val_every_n_epoch=epochs)
    expected = of_the_fit(seen)
    seen.clear()
    every = "null" if epochs is None else epochs
    keys = [f"trainer.val_check_interval={interval}", f"trainer.check_val_every_n_epoch={every}"]
    run_dir = freeze("run", *POINTS, task("Hooked"), *keys)
    assert start(run_dir) == 0
    assert of_the_fit(seen) == expected
    assert distance(weights(run_dir), module.state_dict()) < 1e-6


def test_the_steps_that_are_validated() -> None:
    def steps(**given: Any) -> list[int]:
        schedule = ValidationSchedule.of(TrainerConfig.model_construct(fast_dev_run=False, **given), 10)
        found = []
        for epoch in range(3):
            for inside in range(1, 11):
                due = schedule.due_inside if inside < 10 else schedule.due_at_end
                if due(epoch, inside, 10 * epoch + inside):
                    found.append(10 * epoch + inside)
        return found

    assert steps(val_check_interval=None, check_val_every_n_epoch=1) == [10, 20, 30]
    assert steps(val_check_interval=0.3, check_val_every_n_epoch=1) == [3, 6, 9, 13, 16, 19, 23, 26, 29]
    assert steps(val_check_interval=0.01, check_val_every_n_epoch=2) == list(range(11, 21))
    assert steps(val_check_interval=12, check_val_every_n_epoch=None) == [12, 24]
    with pytest.raises(ValueError, match="is more than the 10 steps of an epoch: at most 10"):
        steps(val_check_interval=11, check_val_every_n_epoch=1)


def test_until_the_next_validation() -> None:
    schedule = ValidationSchedule(10, every_n_epoch=1, every_n_steps=4)
    assert [schedule.steps_to_next(0, inside, inside, True) for inside in range(10)] == [4, 3, 2, 1, 4, 3, 2, 1, 2, 1]
    assert schedule.steps_to_next(0, 8, 8, validated=False) == 0
    across = ValidationSchedule(10, every_n_epoch=None, every_n_steps=12)
    assert [across.steps_to_next(1, inside, 10 + inside, True) for inside in (0, 2, 5)] == [2, 8, 5]


def test_a_run_validated_inside_its_epochs_resumes_exactly(freeze: Freeze, tmp_path: Path) -> None:
    saving = ["callbacks.checkpoint.every_n_steps=1", "callbacks.checkpoint.keep_last=100"]
    whole = freeze("whole", *INSIDE, *saving)
    assert start(whole) == 0
    assert validated(whole) == VALIDATED
    for stop_at in (4, 6, 13):  # a validated step, between two, in the second epoch
        cut = cut_back(whole, tmp_path / f"cut{stop_at}", stop_at)
        assert start(cut, "resume") == 0
        assert values(cut) == values(whole), stop_at
        assert distance(weights(cut), weights(whole)) == 0.0, stop_at


def test_validation_inside_an_epoch_changes_nothing_that_is_trained(freeze: Freeze) -> None:
    inside, without = freeze("inside", *INSIDE), freeze("without", *INSIDE, "trainer.val_check_interval=null")
    assert start(inside) == start(without) == 0
    assert distance(weights(inside), weights(without)) == 0.0
    assert metrics(inside)["train/acc"] == metrics(without)["train/acc"]


def test_the_best_checkpoint_may_be_inside_an_epoch(freeze: Freeze) -> None:
    run_dir = freeze("run", *INSIDE, "optimizer.lr=0.3", "schedule=constant", "callbacks.checkpoint.save_top_k=3")
    assert start(run_dir) == 0
    scores = {int(row["step"]): float(row["val/acc"]) for row in rows(run_dir) if row["val/acc"]}
    best = sorted(scores, key=lambda step: (-scores[step], step))[:3]
    assert [entry["value"] for entry in summary(run_dir)["best"]] == [scores[step] for step in best]
    assert any(step not in (9, 18) for step in best)
    assert {checkpoints.step_of(path) for path in checkpoints.saved_checkpoints(run_dir)} >= set(best)


def test_an_early_stop_inside_an_epoch_ends_the_training_there(freeze: Freeze) -> None:
    stopping = ["callbacks=[default,early_stopping]", "callbacks.early_stopping.patience=1", "optimizer.lr=1e-9"]
    run_dir = freeze("run", *INSIDE, *stopping, "callbacks.early_stopping.min_delta=1.0")
    assert start(run_dir) == 0
    assert (summary(run_dir)["steps"], summary(run_dir)["epochs"]) == (8, 0)
    assert validated(run_dir) == [4, 8]
    assert "val/loss has not improved" in summary(run_dir)["stop_reason"]
    assert checkpoints.step_of(checkpoints.saved_checkpoints(run_dir)[0]) == 8


TWO = ["topology.devices_per_node=2", "trainer.precision=64-true"]
LOCKSTEP = {
    "ddp": ["strategy=ddp"],
    "butterfly": ["strategy=butterfly", "strategy.lazy=true"],
    "hybrid": ["strategy=hybrid", "strategy.scheme=b"],
    "fsdp": ["strategy=fsdp"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", thinned(LOCKSTEP, in_ci=["butterfly", "hybrid", "fsdp"]))
def test_workers_in_step_are_validated_as_one_is(freeze: Freeze, pools: Callable[[int], Pool], name: str) -> None:
    one = freeze("one", *INSIDE, *TWO[1:])
    two = freeze("two", *INSIDE, *TWO, *LOCKSTEP[name])
    assert start(one) == 0
    pools(2).run(two)
    assert validated(two) == validated(one)
    for ours, theirs in zip(values(one), values(two), strict=True):
        for metric in ("val/loss", "val/acc"):
            assert (ours[metric] == "") == (theirs[metric] == "")
            assert float(theirs[metric] or 0) == pytest.approx(float(ours[metric] or 0), rel=1e-9)
    assert distance(weights(two), weights(one)) < 1e-10


AHEAD = {
    "local_sgd": ["strategy=local_sgd", "strategy.h=3"],
    "easgd": ["strategy=easgd", "strategy.tau=3", "strategy.execution.simulate=true"],
    "asgd": ["strategy=asgd", "strategy.n_push=3", "strategy.n_fetch=2", "strategy.execution.simulate=true"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["local_sgd", "easgd"])
def test_workers_that_run_ahead_train_on_as_if_not_validated(
    freeze: Freeze, pools: Callable[[int], Pool], name: str
) -> None:
    inside = freeze("inside", *INSIDE, *TWO, *AHEAD[name])
    without = freeze("without", *INSIDE, *TWO, *AHEAD[name], "trainer.val_check_interval=null")
    for run_dir in (inside, without):
        if "strategy.execution.simulate=true" in AHEAD[name]:
            assert start(run_dir) == 0
        else:
            pools(2).run(run_dir)
    assert validated(inside) == VALIDATED
    assert distance(weights(inside), weights(without)) < 1e-12


@pytest.mark.slow
def test_asynchronous_workers_are_validated_between_two_rounds(freeze: Freeze) -> None:
    run_dir = freeze("run", *INSIDE, *TWO, *AHEAD["asgd"])
    assert start(run_dir) == 0
    assert validated(run_dir) == VALIDATED
    assert summary(run_dir)["steps"] == 18
    assert summary(run_dir)["samples"] == 2 * 1150
    run_dir = freeze("unvalidated", *INSIDE, *TWO, *AHEAD["asgd"], "dataset.val_fraction=0.0")
    assert start(run_dir) == 0
    assert summary(run_dir)["steps"] == 24


@pytest.mark.slow
def test_real_servers_and_all_keys_at_once(freeze: Freeze, pools: Callable[[int], Pool]) -> None:
    asgd = [
        "strategy=asgd",
        "topology.devices_per_node=2",
        "trainer.num_sanity_val_steps=2",
        "trainer.max_time={minutes: 30}",
    ]
    run_dir = freeze("run", *INSIDE, *asgd)
    pools(2).run(run_dir)
    assert validated(run_dir) == VALIDATED
    assert summary(run_dir)["stop_reason"] is None


# --- num_sanity_val_steps


def test_the_sanity_check_calls_what_lightnings_calls(freeze: Freeze, seen: list[Any]) -> None:
    under_lightning(examples.Hooked(), num_sanity_val_steps=2)
    expected = of_the_fit(seen)
    seen.clear()
    assert start(freeze("run", *POINTS, task("Hooked"), "trainer.num_sanity_val_steps=2")) == 0
    assert of_the_fit(seen) == expected
    assert expected.index(("on_validation_start", False, False)) < expected.index("on_train_start")


@pytest.mark.slow
def test_the_sanity_check_leaves_nothing_behind(freeze: Freeze, pools: Callable[[int], Pool]) -> None:
    options = [*POINTS, example("Draws"), "callbacks.checkpoint.monitor=null"]
    without = freeze("without", *options)
    assert start(without) == 0
    for name, steps in (("two", 2), ("all", -1)):
        run_dir = freeze(name, *options, f"trainer.num_sanity_val_steps={steps}")
        assert start(run_dir) == 0
        assert values(run_dir) == values(without)
        assert distance(weights(run_dir), weights(without)) == 0.0
    ddp = [*TINY, *QUIET, "strategy=ddp", "topology.devices_per_node=2", "trainer.max_epochs=1"]
    runs = freeze("plain", *ddp), freeze("checked", *ddp, "trainer.num_sanity_val_steps=1")
    for run_dir in runs:
        pools(2).run(run_dir)
    assert distance(*[weights(run_dir) for run_dir in runs]) == 0.0


def test_a_mistake_in_the_validation_shows_before_the_training(freeze: Freeze) -> None:
    run_dir = freeze("run", *POINTS, example("FailsInValidation"), "trainer.num_sanity_val_steps=1")
    assert start(run_dir) == 1
    assert "validation_step is broken" in summary(run_dir)["error"]
    assert summary(run_dir)["steps"] == 0
    assert not (run_dir / "metrics.csv").exists()


# --- overfit_batches


@pytest.mark.parametrize("amount", [2, 0.5])
def test_overfitting_is_lightnings(freeze: Freeze, amount: float) -> None:
    module = examples.Plain()
    with pytest.warns(UserWarning, match="turning off the train dataloader shuffling"):
        trainer = under_lightning(module, examples.Points(shuffle=True), overfit_batches=amount)
    run_dir = freeze("run", *POINTS, task("Plain"), "+dataset.shuffle=true", f"trainer.overfit_batches={amount}")
    assert start(run_dir) == 0
    assert summary(run_dir)["steps"] == trainer.global_step
    assert distance(weights(run_dir), module.state_dict()) < 1e-6
    assert metrics(run_dir)["val_loss"] == pytest.approx(float(trainer.callback_metrics["val_loss"]), rel=1e-5)


def test_every_epoch_has_the_same_batches() -> None:
    order = SampleOrder(100, 8, seed=3, shuffled=False)
    first = order.batches(0)
    assert torch.cat(first).tolist() == list(range(100))
    assert all(torch.equal(a, b) for a, b in zip(first, order.batches(7), strict=True))


@pytest.mark.slow
def test_two_workers_overfit_as_one_does(freeze: Freeze, pools: Callable[[int], Pool]) -> None:
    options = [*TINY, *QUIET, "trainer.overfit_batches=3", "trainer.limit_train_batches=7", "trainer.precision=64-true"]
    one = freeze("one", *options)
    two = freeze("two", *options, "strategy=ddp", *TWO)
    assert start(one) == 0
    pools(2).run(two)
    assert summary(one)["steps"] == 6
    assert distance(weights(two), weights(one)) < 1e-10


# --- max_time


def test_durations_are_read_as_lightnings_timer_reads_them() -> None:
    from lightning.pytorch.callbacks import Timer

    for duration in ("00:00:00:30", "12:23:59:59", {"hours": 1.5, "seconds": 1}, {"weeks": 2, "days": 1}):
        assert seconds_of(duration) == Timer(duration=duration)._duration  # pyright: ignore[reportArgumentType]


LONG = [*TINY, *QUIET, "trainer.max_epochs=6", "trainer.log_every_n_steps=1000", "model.dropout=0.3", HERE,
        "+callbacks.clock._target_=ticking_clock.TickingClock"]  # fmt: skip


@pytest.mark.slow
def test_the_time_ends_the_training_after_a_step_and_a_resumption_goes_on_exactly(
    freeze: Freeze, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = freeze("whole", *LONG)
    short = freeze("short", *LONG, "trainer.max_time={seconds: 40}")
    assert start(whole) == start(short) == 0
    ended = summary(short)
    assert ended["status"] == "done"
    assert 30 < ended["steps"] <= 40
    assert ended["stop_reason"] == "trainer.max_time is over: 0:00:40 of training"
    assert states(capsys, short)["short"]["state"] == "stopped early"
    assert checkpoints.step_of(checkpoints.saved_checkpoints(short)[0]) == ended["steps"]

    capsys.readouterr()
    assert main(["resume", str(short)]) == 2
    assert "raise trainer.max_time" in capsys.readouterr().err
    assert main(["resume", str(short), "trainer.max_time={seconds: 50}"]) == 0
    assert ended["steps"] < summary(short)["steps"] <= 50, "the time of earlier sessions counts"

    assert main(["resume", str(short), "trainer.max_time=00:01:00:00"]) == 0
    assert summary(short)["stop_reason"] is None
    assert distance(weights(short), weights(whole)) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", [["strategy=ddp"], ["strategy=local_sgd", "strategy.h=4"]], ids=["ddp", "local_sgd"]
)
def test_all_workers_agree_on_the_last_step(freeze: Freeze, pools: Callable[[int], Pool], strategy: list[str]) -> None:
    two = ["topology.devices_per_node=2", *strategy]
    run_dir = freeze("run", *LONG, *two, "trainer.max_time={seconds: 60}")
    pools(2).run(run_dir)
    ended = summary(run_dir)
    assert (ended["status"], ended["stop_reason"][:24]) == ("done", "trainer.max_time is over")
    assert checkpoints.step_of(checkpoints.saved_checkpoints(run_dir)[0]) == ended["steps"]
    assert 50 <= ended["steps"] <= 66, "the first worker's clock is the slower one, and all wait for it"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["easgd", "asgd"])
def test_asynchronous_workers_end_between_two_rounds(freeze: Freeze, name: str) -> None:
    two = ["topology.devices_per_node=2", *AHEAD[name]]
    run_dir = freeze("run", *LONG, *two, "trainer.max_time={seconds: 30}")
    assert start(run_dir) == 0
    assert summary(run_dir)["stop_reason"].startswith("trainer.max_time is over")
    assert checkpoints.step_of(checkpoints.saved_checkpoints(run_dir)[0]) == summary(run_dir)["steps"] > 0
    assert summary(run_dir)["steps"] < 6 * 18


@pytest.mark.slow
def test_the_time_of_workers_with_servers(freeze: Freeze, pools: Callable[[int], Pool]) -> None:
    two = ["topology.devices_per_node=2", "strategy=asgd", "trainer.max_time={seconds: 100}"]
    run_dir = freeze("run", *LONG, *two)
    pools(2).run(run_dir)
    assert summary(run_dir)["stop_reason"].startswith("trainer.max_time is over")


# --- detect_anomaly


def test_an_anomaly_of_the_backward_pass_is_an_error(freeze: Freeze, capfd: pytest.CaptureFixture[str]) -> None:
    run_dir = freeze("run", *POINTS, example("NanInBackward"), "trainer.detect_anomaly=true")
    with pytest.warns(UserWarning, match="Error detected in SqrtBackward0"):
        assert start(run_dir) == 1
    assert "SqrtBackward0" in summary(run_dir)["error"]
    assert not torch.is_anomaly_enabled()


# --- mistakes

MISTAKES = {
    "trainer.val_check_interval=0": ["trainer.val_check_interval = 0", "must be at least 1"],
    "trainer.val_check_interval=1.5": ["trainer.val_check_interval = 1.5", "at most 1"],
    "trainer.val_check_interval=100 model=mlp": [
        "trainer.val_check_interval = 100 is more than the 18 steps of an epoch", "trainer.check_val_every_n_epoch=null"
    ],
    "trainer.check_val_every_n_epoch=null": [
        "trainer.check_val_every_n_epoch = null", "needs their number", "try: trainer.val_check_interval=500"
    ],
    "trainer.check_val_every_n_epoch=null trainer.val_check_interval=0.5": ["needs their number"],
    "trainer.num_sanity_val_steps=-2": ["trainer.num_sanity_val_steps = -2", "must be at least -1"],
    "trainer.overfit_batches=1.5": ["trainer.overfit_batches = 1.5", "at most 1"],
    "trainer.overfit_batches=0.001 model=mlp": ["trainer.overfit_batches = 0.001 leaves nothing of the 18 steps"],
    "trainer.max_time=12h": ["trainer.max_time = 12h", "DD:HH:MM:SS", "try: trainer.max_time=00:12:00:00"],
    "trainer.max_time=12": ["trainer.max_time = 12", "must be text"],
    "trainer.max_time={fortnights:1}": ["trainer.max_time", "weeks, days, hours, minutes, seconds"],
    "trainer.max_time=00:01:00:00 strategy=asgd strategy.execution.elastic=true topology.devices_per_node=2": [
        "trainer.max_time = 00:01:00:00", "does not know how long", "strategy.execution.elastic=false"
    ],
    "trainer.detect_anomaly=3": ["trainer.detect_anomaly", "true or false"],
    "trainer.profiler=simple": [
        "trainer.profiler = simple must hold keys and values of first_step, steps",
        "try: 'trainer.profiler={first_step: 20, steps: 5}'"
    ],
    "trainer.compile=fast": [
        "trainer.compile = fast must be true or false, or must hold keys and values of mode, fullgraph, dynamic",
        "try: 'trainer.compile={mode: default, "
    ],
    "-m hydra/launcher=pipeline seed=1,2 trainer.max_time=00:01:00:00": ["a model of a pipeline waits"],
    "-m hydra/launcher=pipeline seed=1,2 trainer.overfit_batches=2": ["a model of a pipeline visits"],
    "-m hydra/launcher=pipeline hydra.launcher.early_stopping=halving seed=1,2 trainer.val_check_interval=2": [
        "trainer.val_check_interval = 2", "hydra.launcher.early_stopping compares"
    ],
}  # fmt: skip


@pytest.mark.thinned(4)
@pytest.mark.parametrize("command", MISTAKES)
def test_mistakes_are_said_before_the_start(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command.split(), "dataset.image_size=8"]) == 2
    printed = capsys.readouterr().err
    error = " ".join(printed.split())
    for part in MISTAKES[command]:
        assert part in error
    assert not list(tmp_path.iterdir())
    for remedy in shown(printed):
        assert works(remedy, command.split()), remedy


def test_overfit_batches_stays_as_it_was_frozen(freeze: Freeze, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = freeze("run", *TINY, *QUIET, "trainer.max_epochs=1")
    assert main(["resume", str(run_dir), "trainer.overfit_batches=2"]) == 2
    assert "trainer.overfit_batches = 2" in capsys.readouterr().err
