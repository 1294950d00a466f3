"""Lightning callbacks under Leyden's loop: the same calls as under Lightning's Trainer, or a refusal by name."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import callback_examples as examples
import lightning_examples
import pytest
import pytorch_lightning
from lightning.pytorch import Trainer
from lightning.pytorch import callbacks as lightning_callbacks
from pool import Pool
from pytorch_lightning import callbacks as other_callbacks
from remedied import shown, works
from runs import HERE, POINTS, TINY, Freeze, Processes, cut_back, distance, metrics, rows, summary, task, weights

from leyden.trainer.cli.main import main
from leyden.trainer.config.lightning.callbacks import is_lightning_callback, refusal
from leyden.trainer.core.checkpoints import checkpoint_io
from leyden.trainer.entrypoints.start import start
from leyden.trainer.runs import checkpoints

pytestmark = pytest.mark.usefixtures("seen")


def by_lightning(module: Any, *callbacks: Any, logger: Any = False, **settings: Any) -> Trainer:
    trainer = Trainer(
        accelerator="cpu", devices=1, logger=logger, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=list(callbacks),
        **{"max_epochs": 2, "num_sanity_val_steps": 0, "log_every_n_steps": 1, **settings},
    )  # fmt: skip
    trainer.fit(module, datamodule=lightning_examples.Points())
    return trainer


def own(name: str, key: str = "mine") -> str:
    return f"+callbacks.{key}._target_=callback_examples.{name}"


def of_the_fit(seen: list[Any]) -> list[Any]:
    """Without what the data module notes, and without the test, which Leyden makes before the teardown."""
    return [e for e in seen if "data" not in str(e) and "known" not in str(e) and "on_test" not in str(e)]


CASES = {
    "plain": ({}, []),
    "parts": ({"accumulate_grad_batches": 2}, ["trainer.accumulate_grad_batches=2", "+dataset.batch_size=8"]),
    "inside": ({"val_check_interval": 2}, ["trainer.val_check_interval=2"]),
    "sanity": ({"num_sanity_val_steps": 2}, ["trainer.num_sanity_val_steps=2"]),
    "clipped": ({"gradient_clip_val": 0.1, "max_steps": 9}, ["trainer.gradient_clip_val=0.1", "trainer.max_steps=9"]),
}


@pytest.mark.parametrize("case", CASES)
def test_hooks_come_in_lightnings_order_with_lightnings_arguments(freeze: Freeze, seen: list[Any], case: str) -> None:
    settings, options = CASES[case]
    module = lightning_examples.Hooked()
    by_lightning(module, examples.Recorder(), **settings)
    expected = of_the_fit(seen)
    seen.clear()
    run_dir = freeze("run", *POINTS, task("Hooked"), *options, own("Recorder"))
    assert start(run_dir) == 0
    found = of_the_fit(seen)
    if case == "clipped":  # Leyden validates the training's last step, Lightning does not
        found = [entry for entry in found if "validation" not in str(entry)]
        expected = [entry for entry in expected if "validation" not in str(entry)]
    assert found == expected
    called = {entry[0] for entry in found if entry[0] in examples.HOOKS}
    not_called = {"on_exception"} | {h for h in examples.HOOKS if "predict" in h or "_test_" in h}
    not_called |= set() if case == "sanity" else {h for h in examples.HOOKS if "sanity" in h}
    if case != "clipped":
        assert called == set(examples.HOOKS) - not_called
    assert distance(weights(run_dir), module.state_dict()) < 1e-6


def test_hooks_of_the_test_are_lightnings(freeze: Freeze, seen: list[Any]) -> None:
    module = lightning_examples.Hooked()
    trainer = by_lightning(module, examples.Recorder())
    seen.clear()
    trainer.test(module, datamodule=lightning_examples.Points(), verbose=False)
    expected = [entry for entry in seen if "on_test" in str(entry)]
    seen.clear()
    assert start(freeze("run", *POINTS, task("Hooked"), own("Recorder"))) == 0
    assert [entry for entry in seen if "on_test" in str(entry)] == expected
    assert len(expected) > 4


def test_a_callback_may_end_the_training_after_any_batch(freeze: Freeze, seen: list[Any]) -> None:
    by_lightning(lightning_examples.Hooked(), examples.Stops())
    expected = of_the_fit(seen)
    seen.clear()
    run_dir = freeze("run", *POINTS, task("Hooked"), own("Stops"))
    assert start(run_dir) == 0
    assert of_the_fit(seen) == expected
    assert summary(run_dir)["steps"] == 3


@pytest.mark.machine
@pytest.mark.slow
def test_one_asynchronous_worker_may_end_the_training_of_all(freeze: Freeze, processes: Processes) -> None:
    asgd = ["strategy=asgd", "topology.devices_per_node=2", HERE]
    run_dir = freeze("run", *TINY, *asgd, own("StopsOnOne"), "trainer.max_epochs=4", "trainer.hang_timeout=30")
    code, output = processes.run(run_dir)
    assert code == 0, output
    assert summary(run_dir)["epochs"] == 1
    assert summary(run_dir)["stop_reason"] == "Classification asked to stop"


def test_learning_rates_are_logged_as_by_lightning(freeze: Freeze) -> None:
    kept: Any = examples.Kept()
    by_lightning(
        lightning_examples.Classic(), lightning_callbacks.LearningRateMonitor(), logger=kept, log_every_n_steps=2
    )
    expected = {step: row["lr-SGD"] for step, row in kept.rows if "lr-SGD" in row}
    target = "lightning.pytorch.callbacks.LearningRateMonitor"
    run_dir = freeze("run", *POINTS, task("Classic"), f"+callbacks.lr._target_={target}", "trainer.log_every_n_steps=2")
    assert start(run_dir) == 0
    found = {int(row["step"]): float(row["lr-SGD"]) for row in rows(run_dir) if row.get("lr-SGD")}
    assert found == pytest.approx(expected)
    assert len(set(found.values())) > 1


def test_callbacks_of_the_other_package_log_and_see_what_lightnings_do(freeze: Freeze, seen: list[Any]) -> None:
    callbacks: list[Any] = [examples.OfTheOtherPackage(), examples.ReadsMetrics()]
    trainer = by_lightning(lightning_examples.Plain(), callbacks[1])
    expected = [entry for entry in seen if entry[0] == "val_loss"]
    seen.clear()
    run_dir = freeze("run", *POINTS, task("Plain"), own("OfTheOtherPackage"), own("ReadsMetrics", "metrics"))
    assert start(run_dir) == 0
    assert [entry for entry in seen if entry[0] == "val_loss"] == expected
    assert len([entry for entry in seen if entry[0] == "loss"]) == 12
    train_loss = float(trainer.callback_metrics["train_loss_epoch"])
    assert metrics(run_dir)["from_callback"] == pytest.approx(2 * train_loss, rel=1e-5)
    assert issubclass(examples.OfTheOtherPackage, pytorch_lightning.Callback)


def test_state_comes_back_from_a_checkpoint(freeze: Freeze, seen: list[Any], tmp_path: Path) -> None:
    saving = ["callbacks.checkpoint.every_n_steps=1", "callbacks.checkpoint.keep_last=100"]
    two = [own("Counts"), own("Counts", "other"), "+callbacks.other.of=batches"]
    run_dir = freeze("run", *POINTS, task("Plain"), *saving, *two)
    assert start(run_dir) == 0
    cut = cut_back(run_dir, tmp_path / "cut", 8)
    content = checkpoint_io.read(checkpoints.saved_checkpoints(cut)[0])
    assert content["callbacks"]["Counts{'of': 'steps'}"] == {"count": 8}
    assert content["mine batches"] == 8
    seen.clear()
    assert start(cut, "resume") == 0
    counted = [entry for entry in seen if entry[0] in ("steps", "batches")]
    assert counted == [(of, count, 8) for count in (9, 10, 11, 12) for of in ("steps", "batches")]


def test_a_tasks_own_callbacks_are_called(freeze: Freeze, seen: list[Any]) -> None:
    run_dir = freeze("run", *POINTS, "task._target_=callback_examples.BringsCallbacks", own("Counts"))
    assert start(run_dir) == 0
    assert [entry[1] for entry in seen if entry[0] == "of the task"] == list(range(1, 13))
    assert not [entry for entry in seen if entry[0] == "steps"], "as in Lightning, the task's takes the config's place"
    assert "BringsCallbacks.configure_callbacks replaces the config's Counts" in (run_dir / "run.log").read_text()
    assert any(row.get("lr-SGD") for row in rows(run_dir))


def test_a_tasks_single_callback_and_its_hooks_are_lightnings(freeze: Freeze, seen: list[Any]) -> None:
    by_lightning(examples.BringsOne())
    expected = of_the_fit(seen)
    seen.clear()
    assert start(freeze("run", *POINTS, "task._target_=callback_examples.BringsOne")) == 0
    assert of_the_fit(seen) == expected


BROUGHT = {
    "BringsEarlyStopping": "Lightning's EarlyStopping is not offered: callbacks.early_stopping stops early",
    "BringsTwice": "two callbacks have the state_key",
    "BringsAnotherThing": "BringsAnotherThing.configure_callbacks gives Linear, not a Lightning callback",
}


@pytest.mark.parametrize("name", BROUGHT)
def test_a_tasks_callbacks_are_refused_before_the_start(freeze: Freeze, name: str) -> None:
    run_dir = freeze("run", *POINTS, f"task._target_=callback_examples.{name}")
    with pytest.raises(ValueError, match=BROUGHT[name]):
        start(run_dir)
    assert not run_dir.exists()


def test_callbacks_are_told_of_an_exception(freeze: Freeze, seen: list[Any]) -> None:
    assert start(freeze("run", *POINTS, "task._target_=callback_examples.Raises", own("Recorder"))) == 1
    assert seen[-1] == ("on_exception", "Raises", (0, 2), ["RuntimeError"])


@pytest.mark.slow
def test_loggers_of_other_workers_drop_what_they_get(freeze: Freeze, pools: Callable[[int], Pool]) -> None:
    target = "+callbacks.lr._target_=lightning.pytorch.callbacks.LearningRateMonitor"
    run_dir = freeze("run", *TINY, target, "strategy=ddp", "topology.devices_per_node=2", "trainer.log_every_n_steps=6")
    pools(2).run(run_dir)
    logged = [int(row["step"]) for row in rows(run_dir) if row.get("lr-SGD")]
    assert logged == [5, 11, 17, 23, 29, 35]
    assert start(freeze("quick", *TINY, target, "trainer.fast_dev_run=true")) == 0


INSTEAD = {
    "ModelCheckpoint": "needs: callbacks.checkpoint.save_top_k=3, without callbacks.mine",
    "OnExceptionCheckpoint": "callbacks.checkpoint",
    "EarlyStopping": "try: callbacks=[default,early_stopping]",
    "StochasticWeightAveraging": "callbacks.swa",
    "EMAWeightAveraging": "callbacks.ema",
    "WeightAveraging": "callbacks.ema",
    "RichProgressBar": "callbacks.progress",
    "TQDMProgressBar": "callbacks.progress",
    "ModelSummary": "number of trained parameters",
    "RichModelSummary": "number of trained parameters",
    "Timer": "trainer.max_time",
    "ThroughputMonitor": "samples_per_second",
    "GradientAccumulationScheduler": "trainer.accumulate_grad_batches",
    "BatchSizeFinder": "-m batch_size=",
    "LearningRateFinder": "-m optimizer.lr=",
    "BackboneFinetuning": "configure_optimizers",
    "ModelPruning": "divide the parameters",
    "BasePredictionWriter": "no prediction loop",
}


@pytest.mark.parametrize("package", [lightning_callbacks, other_callbacks], ids=lambda module: module.__name__)
def test_every_callback_of_lightnings_is_called_or_refused(package: Any) -> None:
    classes = {name: getattr(package, name) for name in package.__all__}
    ours = {name: cls for name, cls in classes.items() if inspect.isclass(cls) and is_lightning_callback(cls)}
    called = {name for name, cls in ours.items() if refusal(cls) is None}
    assert called == {"Callback", "DeviceStatsMonitor", "LambdaCallback", "LearningRateMonitor", "SpikeDetection"}
    for name, text in INSTEAD.items():
        refused = refusal(classes[name])
        assert refused is not None
        assert name in refused.text
        assert (
            text.removeprefix("needs: ").removeprefix("try: ").partition(", without")[0]
            in f"{refused.text} {refused.remedy}"
        )


SAID = {
    "lightning.pytorch.callbacks.ModelCheckpoint": ["ModelCheckpoint (a Checkpoint)", INSTEAD["ModelCheckpoint"]],
    "lightning.pytorch.callbacks.RichProgressBar": ["RichProgressBar (a ProgressBar) is not offered"],
    "pytorch_lightning.callbacks.LearningRateFinder": ["LearningRateFinder is not offered", "-m optimizer.lr="],
    "callback_examples.MyCheckpoint": ["MyCheckpoint (a Checkpoint) is not offered"],
    "callback_examples.ReadsTheFitLoop": ["ReadsTheFitLoop reads trainer.fit_loop (", "callback_examples.py:"],
    "lightning.pytorch.callbacks.DeviceStatsMonitor logger=none": ["needs a logger", "try: logger=default"],
}  # fmt: skip


@pytest.mark.parametrize("command", SAID)
def test_refusals_are_said_before_the_start(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    target, *more = command.split()
    if target.endswith("Finder"):
        more.append("callbacks.mine.mode=linear")
    assert main([f"callbacks.mine._target_={target}", *more]) == 2
    printed = capsys.readouterr().err
    error = " ".join(printed.split())
    assert "callbacks.mine" in error
    for part in SAID[command]:
        assert part in error
    for remedy in shown(printed):
        assert works(remedy), remedy
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", [["strategy=ddp"], ["strategy=butterfly", "strategy.lazy=true"]], ids=["ddp", "lazy"]
)
def test_gradients_zeroed_after_the_forward_train_the_same(
    freeze: Freeze, pools: Callable[[int], Pool], strategy: list[str]
) -> None:
    two = [*POINTS, *strategy, "topology.devices_per_node=2", "trainer.accumulate_grad_batches=2"]
    runs = [freeze(name, *two, task(name)) for name in ("Plain", "ZeroGradHook")]
    for run_dir in runs:
        pools(2).run(run_dir)
    assert distance(*[weights(run_dir) for run_dir in runs]) == 0.0
