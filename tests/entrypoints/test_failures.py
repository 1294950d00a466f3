"""What a failed run leaves: the user's frames on the screen, the whole traceback in run.log, how to go on."""

import signal
import sys
from importlib import import_module
from typing import Any

import pytest
from runs import HERE, POINTS, TINY, Freeze, summary

from leyden.trainer.base.errors import CannotStart
from leyden.trainer.entrypoints import fork_server
from leyden.trainer.entrypoints.start import start

OURS = "task._target_=failing_examples.{}"


def test_the_screen_shows_the_users_frames_and_run_log_all(freeze: Freeze, capfd: pytest.CaptureFixture[str]) -> None:
    run_dir = freeze("run", *POINTS, OURS.format("FailsInForward"))
    assert start(run_dir) == 1
    screen, kept = capfd.readouterr().err, (run_dir / "run.log").read_text()
    assert "in _divide" in screen
    assert "in training_step" in screen
    assert "ZeroDivisionError: division by zero" in screen
    assert "/trainer/" not in screen
    assert "/torch/" not in screen
    for text in ("in _divide", "in training_step", "RuntimeError: the third batch is bad", "/trainer/engine/loop.py"):
        assert text in kept
    assert kept.rstrip().endswith("no checkpoint had been written")
    assert screen.rstrip().endswith("no checkpoint had been written")
    assert summary(run_dir)["error"] == "RuntimeError: the third batch is bad"


@pytest.mark.parametrize("saved", [False, True])
def test_a_loss_that_is_not_finite_is_one_sentence(
    saved: bool, freeze: Freeze, capfd: pytest.CaptureFixture[str]
) -> None:
    run_dir = freeze("run", *TINY, "optimizer.lr=1e6", "schedule=constant", "trainer.log_every_n_steps=1", *(
        ["+callbacks.poison._target_=training_examples.Poison", "optimizer.lr=0.01", "trainer.max_epochs=1", HERE,
         "callbacks.checkpoint.every_n_steps=4", "trainer.async_checkpoint=false"] if saved else []))  # fmt: skip
    assert start(run_dir) == 1
    told = [line for line in capfd.readouterr().err.splitlines() if "Warning" not in line]
    helps = "a smaller learning rate or trainer.gradient_clip_val=1 may prevent it in a new run"
    if saved:
        assert told[0].startswith("the loss is nan at step 7, learning rate 0.01: ")
        assert told[0].endswith(
            f"{helps}, which begins with the last checkpoint's weights by model.pretrained={run_dir}"
        )
        assert told[1] == f"last good checkpoint: {run_dir}/checkpoints/step=00000004.ckpt"
        assert told[2:] == [f"continue with: leyden resume {run_dir}"]
    else:
        assert told[0].startswith("the loss is ")
        assert told[0].endswith(f", learning rate 1e+06: {helps}")
        assert told[1:] == ["no checkpoint had been written"]
    kept = (run_dir / "run.log").read_text()
    assert all(line in kept for line in told)
    assert "File " not in kept


def test_weights_that_are_not_finite_are_one_sentence(freeze: Freeze, capfd: pytest.CaptureFixture[str]) -> None:
    poison = "+callbacks.poison._target_=training_examples.Poison"
    run_dir = freeze("run", *TINY, poison, HERE, "trainer.max_steps=6", "callbacks.checkpoint.every_n_steps=5")
    assert start(run_dir) == 1
    told = capfd.readouterr().err
    assert " has NaN or infinite values: not saved at step 6; a smaller learning rate or " in told
    assert f"model.pretrained={run_dir}\nlast good checkpoint: {run_dir}/checkpoints/step=00000005.ckpt" in told
    assert "File " not in told


def test_a_run_begins_with_the_weights_of_one_that_has_diverged(freeze: Freeze) -> None:
    poison = "+callbacks.poison._target_=training_examples.Poison"
    diverged = freeze("one", *TINY, poison, HERE, "trainer.log_every_n_steps=1", "callbacks.checkpoint.every_n_steps=2")
    assert start(diverged) == 1
    assert start(freeze("two", *TINY, "trainer.max_steps=1", f"model.pretrained={diverged}")) == 0


class Interrupts:
    """Import hook: a Ctrl-C comes while a module is imported."""

    def __init__(self, name: str):
        self.name = name

    def find_spec(self, name: str, *_: Any) -> None:
        if name == self.name:
            signal.raise_signal(signal.SIGINT)


def test_an_interruption_of_the_imports_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "leyden.trainer.cli.main"
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Interrupts(name), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        import_module("leyden.__main__").entry_point()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "leyden: interrupted, nothing was started\n"


def test_an_interruption_of_the_fork_servers_imports_comes_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []

    def interrupted(name: str) -> None:
        signal.raise_signal(signal.SIGINT)
        imported.append(name)

    monkeypatch.setattr(fork_server.importlib, "import_module", interrupted)
    with pytest.raises(KeyboardInterrupt):
        vars(fork_server)["_preload"]()
    assert imported == list(vars(fork_server)["_PRELOADED"])


NONE = "NoLoss.training_step returned no loss"


def test_a_training_without_a_loss_has_failed(freeze: Freeze, capfd: pytest.CaptureFixture[str]) -> None:
    run_dir = freeze("run", *POINTS, OURS.format("NoLoss"))
    assert start(run_dir) == 1
    told = capfd.readouterr()
    assert told.out.count(f"{NONE} in a whole epoch: ") == 1
    assert f"{NONE} in the whole training, and no parameter has changed: return the loss" in told.err
    assert "File " not in told.err
    assert summary(run_dir)["status"] == "failed"


@pytest.mark.parametrize("trains", ["+task.until=1", "+task.by_hand=true"])
def test_what_trains_all_the_same_is_warned_of(trains: str, freeze: Freeze, capfd: pytest.CaptureFixture[str]) -> None:
    run_dir = freeze("run", *POINTS, OURS.format("NoLoss"), trains)
    assert start(run_dir) == 0
    assert capfd.readouterr().out.count(f"{NONE} in a whole epoch: ") == 1


PLATEAU = ["schedule=plateau", "trainer.max_epochs=4", *TINY[:-1]]
VALIDATED = "trainer.check_val_every_n_epoch=2"
OWN = [*POINTS, OURS.format("PlateauOfValidation")]
EARLY: dict[str, tuple[list[str], str, str]] = {
    "every epoch": ([*PLATEAU, VALIDATED], "schedule.frequency", "schedule.frequency=2"),
    "every step": ([*PLATEAU, "schedule.interval=step"], "schedule.frequency",
                   "schedule.interval=epoch schedule.frequency=1"),
    "steps over epochs": ([*PLATEAU, "trainer.check_val_every_n_epoch=null", "trainer.val_check_interval=40"],
                          "schedule.frequency", "schedule.frequency=3"),
    "no validation": ([*PLATEAU, "trainer.limit_val_batches=0.0"], "trainer.limit_val_batches",
                      "trainer.limit_val_batches=1.0"),
    "the module's": ([*OWN, VALIDATED], "task",
                     "trainer.check_val_every_n_epoch=1 trainer.val_check_interval=null"),
    "the module's by step": ([*OWN, "+task.interval=step"], "task", ""),
}  # fmt: skip


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", EARLY)
def test_a_monitor_before_the_first_validation_is_refused_before_the_first_step(name: str, freeze: Freeze) -> None:
    words, key, remedy = EARLY[name]
    run_dir = freeze("run", *words)
    with pytest.raises(CannotStart) as caught:
        start(run_dir)
    problem = caught.value.problem
    assert problem is not None
    assert (problem.key, problem.remedy) == (key, remedy) or (not remedy and "configure_optimizers" in problem.remedy)
    assert not run_dir.exists()
    if remedy:
        assert start(freeze("remedied", *words, *remedy.split())) == 0


@pytest.mark.parametrize(
    "words",
    [[VALIDATED, "schedule.frequency=3"], [VALIDATED, "trainer.max_epochs=1"], ["trainer.val_check_interval=4"]],
)
def test_a_monitor_that_is_there_in_time_is_taken(words: list[str], freeze: Freeze) -> None:
    assert start(freeze("run", *PLATEAU, *words)) == 0


def test_a_metric_of_the_training_needs_no_validation(freeze: Freeze) -> None:
    assert start(freeze("run", *POINTS, "task._target_=lightning_examples.Plateau", VALIDATED)) == 0


def test_a_resumption_that_would_compare_too_early_is_told_the_keys_that_may_change(freeze: Freeze) -> None:
    run_dir = freeze("run", *PLATEAU, "trainer.max_epochs=1")
    assert start(run_dir) == 0
    (run_dir / "resume.yaml").write_text("- changed: {trainer.max_epochs: 4, trainer.check_val_every_n_epoch: 2}\n")
    with pytest.raises(CannotStart) as caught:
        start(run_dir, "resume")
    assert caught.value.problem is not None
    assert caught.value.problem.remedy == "trainer.check_val_every_n_epoch=1 trainer.val_check_interval=null"
    assert run_dir.exists()
