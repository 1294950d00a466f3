"""LightningModules written for Lightning's Trainer, under Leyden's loop: the same numbers, hooks and names."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning_examples as examples
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from pool import Failed, Pool
from runs import OWN_TASK, POINTS, Freeze, Processes, cut_back, distance, metrics, rows, summary, task, weights

from leyden.trainer.cli.main import main
from leyden.trainer.core.checkpoints import checkpoint_io
from leyden.trainer.core.configure_optimizers import read_configure_optimizers
from leyden.trainer.core.hooks import Hooks
from leyden.trainer.entrypoints.start import start
from leyden.trainer.runs import checkpoints

pytestmark = [pytest.mark.thinned(2), pytest.mark.usefixtures("seen")]


def trained_by_lightning(module: LightningModule, data: Any = None, **settings: Any) -> Trainer:
    """The same training under Lightning's own Trainer."""
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0, **settings,
    )  # fmt: skip
    trainer.fit(module, datamodule=data if data is not None else examples.Points())
    return trainer


def noted(kind: str) -> list[Any]:
    return [entry[1] for entry in examples.SEEN if entry[0] == kind]


@pytest.mark.parametrize("name", ["Classic", "Plain", "Plateau", "TupleOfLists"])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_weights_and_learning_rates_are_those_of_lightnings_trainer(
    freeze: Freeze, seen: list[Any], name: str, clip: float | None
) -> None:
    module = getattr(examples, name)()
    trainer = trained_by_lightning(module, gradient_clip_val=clip)
    expected_rates, expected_total = noted("lr"), noted("total")
    seen.clear()
    run_dir = freeze("run", *POINTS, task(name), f"trainer.gradient_clip_val={clip or 'null'}")
    assert start(run_dir) == 0
    assert noted("total") == expected_total
    assert noted("lr") == pytest.approx(expected_rates, rel=1e-12)
    assert distance(weights(run_dir), module.state_dict()) < 1e-6
    for metric in ("train_loss_step", "train_loss_epoch", "val_loss"):
        assert metrics(run_dir)[metric] == pytest.approx(float(trainer.callback_metrics[metric]), rel=1e-5), metric
    assert summary(run_dir)["steps"] == trainer.global_step == 12
    assert "decides: optimizer and schedule of the config are not used" in (run_dir / "run.log").read_text()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_hooks_come_in_lightnings_order_with_lightnings_arguments(
    freeze: Freeze, seen: list[Any], accumulate: int
) -> None:
    trained_by_lightning(examples.Hooked(), accumulate_grad_batches=accumulate)
    expected = [entry for entry in seen if "data" not in str(entry)]
    seen.clear()
    options = [f"trainer.accumulate_grad_batches={accumulate}", "+dataset.batch_size=8"]
    assert start(freeze("run", *POINTS, task("Hooked"), *options)) == 0
    assert [entry for entry in seen if "data" not in str(entry)] == expected


def test_zero_grad_hook_is_called_once_a_step(freeze: Freeze, seen: list[Any]) -> None:
    start(freeze("run", *POINTS, task("ZeroGradHook")))
    assert seen.count("on_before_zero_grad") == 12


def test_what_a_hook_logs_is_logged(freeze: Freeze) -> None:
    run_dir = freeze("run", *POINTS, task("Hooked"))
    start(run_dir)
    assert [row["val_from_hook"] for row in rows(run_dir) if row["val_from_hook"]] == ["0.25", "1.25"]


def test_everything_that_log_takes(freeze: Freeze, seen: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = freeze("run", *POINTS, task("Chatty"), "+dataset.samples=20")
    assert start(run_dir) == 0
    found = metrics(run_dir)
    sizes = [8, 8, 4]
    assert found["size"] == found["again"] == pytest.approx(sum(n * n for n in sizes) / 20)
    assert found["samples"] == 20
    assert found["unweighted"] == pytest.approx(20 / 3)
    assert found["largest"] == 2
    assert found["smallest"] == 4
    assert found["numpy_step"] == found["numpy_epoch"] == 0.5
    assert found["val_size"] == pytest.approx((4 * 5 * 5 + 3 * 3) / 23)
    assert found["from_epoch_start"] == 3
    assert found["from_epoch_end"] == 2
    assert found["hidden"] == 1.0
    assert "hidden" not in rows(run_dir)[0]
    assert capsys.readouterr().out.count("printed once a step") == 6
    assert [float(row["scale"]) for row in rows(run_dir)] == pytest.approx(noted("scale")), (
        "the value, not the parameter"
    )
    assert {str(device) for device in noted("device")} == {"cpu"}


def test_own_state_comes_back_from_the_checkpoint(freeze: Freeze, seen: list[Any], tmp_path: Path) -> None:
    options = ["callbacks.checkpoint.every_n_steps=1", "callbacks.checkpoint.keep_last=100"]
    run_dir = freeze("run", *POINTS, task("Chatty"), *options)
    start(run_dir)
    broken = cut_back(run_dir, tmp_path / "broken", 8)
    seen.clear()
    assert start(broken, "resume") == 0
    assert ("loaded", 1) in seen
    assert metrics(broken)["from_epoch_end"] == 2
    assert [row["loss"] for row in rows(broken)] == [row["loss"] for row in rows(run_dir)]


def test_a_foreign_object_in_a_checkpoint_is_refused_when_it_is_written(
    freeze: Freeze, capfd: pytest.CaptureFixture[str]
) -> None:
    run_dir = freeze("run", *POINTS, task("KeepsAForeigner"))
    assert start(run_dir) == 1
    error = capfd.readouterr().err
    assert "a checkpoint holds plain Python values and tensors only (lightning_examples.Noisy)" in error
    assert not checkpoints.saved_checkpoints(run_dir)


def test_frozen_layers_stay_in_evaluation_mode(freeze: Freeze, seen: list[Any]) -> None:
    run_dir = freeze("run", *POINTS, task("Frozen"))
    start(run_dir)
    assert set(seen) >= {("norm trains", False, "net trains", True), ("norm trains", False, "net trains", False)}
    assert not [entry for entry in seen if entry[:2] == ("norm trains", True)]
    assert int(weights(run_dir)["norm.num_batches_tracked"]) == 0


def test_modules_inside_modules_log_too_and_batches_pass_the_tasks_own_hook(freeze: Freeze, seen: list[Any]) -> None:
    run_dir = freeze("run", *POINTS, task("Outer"))
    start(run_dir)
    assert metrics(run_dir)["inner"] == 2.0
    assert noted("transferred").count(True) == 12
    assert noted("transferred").count(False) == 2 * 5 + 4, "validation twice, the test once"


def test_dtype_is_what_the_precision_makes_it(freeze: Freeze, seen: list[Any]) -> None:
    for precision, dtype in (("64-true", "torch.float64"), ("32-true", "torch.float32")):
        seen.clear()
        start(freeze(precision, *POINTS, task("Chatty"), f"trainer.precision={precision}"))
        assert {str(entry[3]) for entry in seen if entry[0] == "device"} == {dtype}


def test_the_tasks_own_loaders_are_said_to_be_unused(freeze: Freeze) -> None:
    run_dir = freeze("run", *POINTS, task("OwnLoaders"))
    assert start(run_dir) == 0
    assert "OwnLoaders.train_dataloader is not used" in (run_dir / "run.log").read_text()


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("every", [3, 2, 1])
def test_a_step_that_returns_none_skips_the_batch_as_in_lightning(
    freeze: Freeze, seen: list[Any], every: int, accumulate: int
) -> None:
    module = examples.Skips(every)
    trainer = trained_by_lightning(module, examples.Points(), accumulate_grad_batches=accumulate, gradient_clip_val=0.5)
    expected = [entry for entry in seen if (isinstance(entry, tuple) and len(entry) == 3) or entry in HOOKS]
    seen.clear()
    options = [f"trainer.accumulate_grad_batches={accumulate}", "+dataset.batch_size=8", f"+task.every={every}"]
    run_dir = freeze("run", *POINTS, task("Skips"), *options, "trainer.gradient_clip_val=0.5")
    assert start(run_dir) == int(every == 1), "without any loss nothing is trained"
    found = [entry for entry in seen if (isinstance(entry, tuple) and len(entry) == 3) or entry in HOOKS]
    # Lightning zeroes gradients after the forward, Leyden before it: counted, not compared in their order
    assert [e for e in found if e != "zero"] == [e for e in expected if e != "zero"]
    assert found.count("zero") == expected.count("zero")
    assert trainer.global_step == 12 // accumulate
    assert every == 1 or summary(run_dir)["steps"] == trainer.global_step
    assert distance(weights(run_dir), module.state_dict()) == 0.0
    assert (run_dir / "run.log").read_text().count("Skips.training_step returned None") == 1


HOOKS = ("step", "zero", "backward")


@pytest.mark.slow
def test_one_of_several_workers_cannot_skip_a_batch(freeze: Freeze, pools: Callable[[int], Pool]) -> None:
    run_dir = freeze("run", *POINTS, task("Skips"), "strategy=ddp", "topology.devices_per_node=2")
    words = r"Skips.training_step returned None to skip a batch, which one synchronous worker alone can do"
    with pytest.raises(Failed, match=words):
        pools(2).run(run_dir)


def test_loaders_inside_the_task_are_used_with_dataset_null(
    seen: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = examples.LoadersInside()
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(module)
    expected = [entry for entry in seen if "prepare" in entry or "setup(fit)" in entry or isinstance(entry, tuple)]
    seen.clear()
    monkeypatch.chdir(tmp_path)
    words = ["task._target_=lightning_examples.LoadersInside", "model=null", "dataset=null", "trainer.max_epochs=2"]
    assert main([*words, "hydra.run.dir=run", "trainer.enable_progress_bar=false"]) == 0
    assert [e for e in seen if "prepare" in e or "setup(fit)" in e or isinstance(e, tuple)] == expected
    assert distance(weights(tmp_path / "run"), module.state_dict()) == 0.0
    assert {"val_loss", "test_loss"} <= set(metrics(tmp_path / "run"))
    assert main(["eval", "run"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([task("Plain"), "model=null"], "is null, and the task Plain has no train_dataloader"),
        ([task("LoadersAndModel"), "model=mlp"], "with dataset=null the loaders are LoadersAndModel's"),
        ([task("LoadersInside"), "model=null", "dataset.partitions=2"], "dataset.partitions is for Leyden's datasets"),
    ],
)  # fmt: skip
def test_dataset_null_that_cannot_work_is_refused(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["dataset=null", *words, "trainer.enable_progress_bar=false"]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.rglob("config.yaml"))


def test_prog_bar_and_loss_are_shown(freeze: Freeze, capsys: pytest.CaptureFixture[str]) -> None:
    start(freeze("run", *POINTS, task("Plain"), "trainer.enable_progress_bar=true"))
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch 2 of 2"))
    assert "val_loss " in line
    assert "train_loss_epoch " in line


REFUSED = {
    "Manual": "manual optimization",
    "OwnClipping": "OwnClipping overrides configure_gradient_clipping",
    "OwnStep": "OwnStep overrides optimizer_step",
    "OwnBackward": "OwnBackward overrides backward",
    "OwnTransfer": "OwnTransfer overrides transfer_batch_to_device",
    "OwnModes": "OwnModes overrides on_validation_model_train",
    "TwoOptimizers": "TwoOptimizers.configure_optimizers must give exactly one optimizer, not 2",
    "NoOptimizer": "NoOptimizer.configure_optimizers must give exactly one optimizer, not 0",
    "NeedsClosure": "NeedsClosure.configure_optimizers gives LBFGS, whose step needs a closure",
    "NoTrainingStep": "NoTrainingStep has no training_step",
    "PlateauWithoutMonitor": "ReduceLROnPlateau needs a metric to monitor",
    "EndsEpochs": "EndsEpochs.training_epoch_end (Lightning 2 has removed it: ",
    "EndsTests": "EndsTests.test_epoch_end (Lightning 2 has removed it: keep outputs in an attribute",
    "Noisy": "task=Noisy: gives a Noisy, and a task is a LightningModule",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_loop_does_not_offer_is_refused_by_name_before_the_start(freeze: Freeze, name: str) -> None:
    run_dir = freeze("run", *POINTS, task(name), *(["+task.inner=null"] if name == "Noisy" else []))
    with pytest.raises(ValueError, match=re.escape(REFUSED[name])):
        start(run_dir)
    assert not run_dir.exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ReturnsNothing", "ReturnsNothing.training_step must return the loss"),
        ("SkipsEpoch", "on_train_batch_start returned -1"),
        ("LogsVector", "self.log('vector'): a tensor must hold a single number, not [3]"),
        ("PlateauOfNothing", "schedule.monitor=never_logged was not logged; logged so far: epoch, lr, "),
    ],
)
def test_what_shows_only_at_a_step_ends_the_run_by_name(
    freeze: Freeze, capfd: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    run_dir = freeze("run", *POINTS, task(name))
    assert start(run_dir) == 1
    assert message in capfd.readouterr().err
    assert message in summary(run_dir)["error"]


def test_a_monitor_that_is_not_strict_lets_the_training_go_on(freeze: Freeze) -> None:
    run_dir = freeze("run", *POINTS, task("PlateauOfPerhaps"))
    assert start(run_dir) == 0
    assert "schedule.monitor=never_logged was not logged" in (run_dir / "run.log").read_text()


def test_every_form_of_configure_optimizers() -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    step = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    for returned, expected in [
        (optimizer, []),
        ([optimizer], []),
        ((optimizer,), []),
        ({"optimizer": optimizer}, []),
        ([{"optimizer": optimizer, "lr_scheduler": step}], [("epoch", 1, None)]),
        (([optimizer], [step]), [("epoch", 1, None)]),
        (([optimizer], [step, {"scheduler": step, "interval": "step"}]), [("epoch", 1, None), ("step", 1, None)]),
        ({"optimizer": optimizer, "lr_scheduler": plateau, "monitor": "x"}, [("epoch", 1, "x")]),
        ({"optimizer": optimizer, "lr_scheduler": step, "monitor": "x"}, [("epoch", 1, None)]),
        ({"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "frequency": 3}, "monitor": "x"},
         [("epoch", 3, "x")]),
    ]:  # fmt: skip
        found, schedules = read_configure_optimizers(returned, "Task")
        assert found is optimizer
        assert [(entry.interval, entry.frequency, entry.monitor) for entry in schedules] == expected


def test_hooks_get_as_many_arguments_as_they_take() -> None:
    class Module(LightningModule):
        def on_train_batch_end(self, *arguments: Any) -> None:  # pyright: ignore
            got.append(arguments)

        def on_train_batch_start(self, batch: Any) -> None:  # pyright: ignore
            got.append((batch,))

    got: list[Any] = []
    hooks = Hooks(Module())
    hooks("on_train_batch_end", 1, 2, 3)
    hooks("on_train_batch_start", 1, 2)
    hooks("on_fit_start")
    assert got == [(1, 2, 3), (1,)]


def samples(count: int, seed: int) -> list[Any]:
    data = examples.points(count, seed)
    return [data[index] for index in range(count)]


def exact_accuracy(task_weights: dict[str, torch.Tensor], model: torch.nn.Module, data: list[Any]) -> float:
    model.load_state_dict({n.removeprefix("model."): w for n, w in task_weights.items() if n.startswith("model.")})
    model.eval()
    images, labels = torch.stack([x for x, _ in data]), torch.tensor([int(y) for _, y in data])
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).double().mean())


MEASURED = [task("Measured"), "callbacks.checkpoint.monitor=val_micro", "trainer.max_epochs=1"]


def test_metric_objects_are_exact_and_start_afresh_every_epoch(freeze: Freeze) -> None:
    run_dir = freeze("run", *POINTS, *MEASURED, "trainer.max_epochs=3", "+dataset.samples=21")
    assert start(run_dir) == 0
    found = metrics(run_dir)
    model = torch.nn.Linear(4, 3)
    train, val = samples(21, 1), samples(23, 2)
    assert found["train_acc_epoch"] == pytest.approx(exact_accuracy(weights(run_dir), model, train), abs=1e-7)
    assert found["val_micro"] == pytest.approx(exact_accuracy(weights(run_dir), model, val), abs=1e-7)
    assert found["val_mean_loss"] == pytest.approx(found["val_loss"], rel=1e-5)
    assert len({row["train_acc_epoch"] for row in rows(run_dir) if row["train_acc_epoch"]}) == 1
    last = exact_accuracy(weights(run_dir), model, train[16:])
    assert found["train_acc_step"] == pytest.approx(last, abs=1e-7), "the last step's own value"


@pytest.mark.slow
def test_metric_objects_are_exact_over_uneven_shares(
    freeze: Freeze, pools: Callable[[int], Pool], tmp_path: Path
) -> None:
    # 1150 training samples: the last batch has one, for three workers; 287 validation samples are uneven too.
    options = ["model=mlp", "model.hidden=[8]", "dataset.image_size=8", "augment=none", *MEASURED,
               *OWN_TASK, "batch_size=383", "trainer.precision=64-true", "trainer.log_every_n_steps=1",
               "callbacks.checkpoint.every_n_steps=1", "callbacks.checkpoint.keep_last=100", POINTS[-1]]  # fmt: skip
    one = freeze("one", *options)
    three = freeze("three", *options, "strategy=ddp", "topology.devices_per_node=3")
    assert start(one) == 0
    pools(3).run(three)
    assert metrics(one).keys() == {name for name in metrics(three) if not name.startswith(("comm/", "workers/"))}
    of_steps = ("train_acc_epoch", "train_acc_step", "train_auroc")
    for name in (*of_steps, "val_micro", "val_acc", "val_f1", "val_mean_loss", "val_loss"):
        assert metrics(three)[name] == pytest.approx(metrics(one)[name], rel=1e-5), name
    steps = [[float(row["train_acc_step"]) for row in rows(run_dir)] for run_dir in (one, three)]
    assert steps[1] == pytest.approx(steps[0], abs=1e-6)
    # the second worker has gathered nothing after it, in neither list of the exact curve
    resumed = cut_back(three, tmp_path / "resumed", 3)
    (resumed / "resume.yaml").write_text("- changed: {topology.devices_per_node: 2}\n")
    pools(2).run(resumed, "resume")
    for name in of_steps:
        assert metrics(resumed)[name] == pytest.approx(metrics(three)[name], rel=1e-5), name


@pytest.mark.slow
def test_a_worker_without_a_validation_sample_takes_part(freeze: Freeze, processes: Processes) -> None:
    run_dir = freeze("run", *POINTS, *MEASURED, "+dataset.val_samples=2", "strategy=ddp", "topology.devices_per_node=3")
    code, output = processes.run(run_dir)
    assert code == 0, output
    val = samples(2, 2)
    model = torch.nn.Linear(4, 3)
    assert metrics(run_dir)["val_micro"] == exact_accuracy(weights(run_dir), model, val)
    with torch.no_grad():
        loss = F.cross_entropy(model(torch.stack([x for x, _ in val])), torch.stack([y for _, y in val]))
    assert metrics(run_dir)["val_loss"] == pytest.approx(float(loss), rel=1e-5)
    assert "before the ``update`` method" not in output


def test_metric_objects_survive_a_resumption_at_every_step(freeze: Freeze, tmp_path: Path) -> None:
    options = ["callbacks.checkpoint.every_n_steps=1", "callbacks.checkpoint.keep_last=100"]
    whole = freeze("whole", *POINTS, *MEASURED, *options)
    start(whole)
    for step in (3, 6):  # 6: the epoch's last step, before validation
        broken = cut_back(whole, tmp_path / f"broken{step}", step)
        if step == 6:
            content = checkpoint_io.read(checkpoints.saved_checkpoints(broken)[0])
            assert content["position"]["epoch"] == 1, "the epoch's end overwrites it"
        assert start(broken, "resume") == 0
        for name in ("train_acc_epoch", "train_auroc", "val_micro", "val_f1"):
            assert metrics(broken)[name] == metrics(whole)[name], (step, name)


def test_no_value_of_leydens_replaces_one_that_the_module_logs(freeze: Freeze) -> None:
    """Those that it does not log keep their names; what a schedule monitors is the module's."""
    examples.SEEN.clear()
    run_dir = freeze("run", *POINTS, "task._target_=failing_examples.LogsOurNames")
    assert start(run_dir) == 0
    found = metrics(run_dir)
    assert (found["lr"], found["epoch"], found["samples_per_second"]) == (8.0, 42.0, 1.5)
    assert found["leyden/lr"] == 0.1
    assert found["leyden/epoch"] == 1.0
    assert found["leyden/samples_per_second"] > 2
    assert "time/data_ms" in found
    assert "leyden/time/data_ms" not in found
    assert ("best", 7.0) in examples.SEEN
    steps = [row for row in rows(run_dir) if row["leyden/lr"]]
    assert {row["lr"] for row in steps[:6]} == {"7.0"}
