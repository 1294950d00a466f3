"""One worker: what a run leaves behind, and that a resumed run is the unbroken one, bit for bit."""

import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from killed_examples import WAITING
from runs import HERE, PATIENCE_S, TINY, Freeze, Processes, cut_back, rows, summary, wait_until, weights
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from leyden.trainer.core.checkpoints import checkpoint_io
from leyden.trainer.entrypoints.start import start
from leyden.trainer.runs import checkpoints


def losses(run_dir: Path) -> dict[int, tuple[str, ...]]:
    names = ("train/loss", "train/acc", "val/loss", "val/acc", "lr")
    return {int(row["step"]): tuple(row.get(name, "") for name in names) for row in rows(run_dir)}


def test_a_run_leaves_what_the_design_promises(freeze: Freeze) -> None:
    run_dir = freeze("run", *TINY)
    assert start(run_dir) == 0
    told = summary(run_dir)
    assert told["status"] == "done"
    assert told["steps"] == 36
    assert told["world_size"] == 1
    assert told["samples"] == 2 * 1150
    assert {"val/acc", "val/loss", "test/acc", "test/loss", "train/loss"} <= set(told["metrics"])
    assert told["samples_per_second"] > 0
    parts = told["step_time"]
    assert parts["total"] == pytest.approx(sum(v for k, v in parts.items() if k != "total"))
    assert all(value >= 0 for value in parts.values())
    assert {"torch", "lightning", "python"} <= set(told["versions"])
    assert [row["step"] for row in rows(run_dir)] == ["18", "36"]
    loaded = torch.load(run_dir / "checkpoints" / "last.ckpt", weights_only=True)
    assert loaded["position"]["step"] == 36
    assert "done" in (run_dir / "run.log").read_text()


def test_tensorboard_has_scalars_config_and_one_hparams_row(freeze: Freeze) -> None:
    run_dir = freeze("run", *TINY)
    start(run_dir)
    events = EventAccumulator(str(run_dir))
    events.Reload()
    tags = events.Tags()
    assert {"train/loss", "val/acc", "lr", "samples_per_second", "time/data_ms"} <= set(tags["scalars"])
    assert "config/text_summary" in tags["tensors"]
    assert events.PluginTagToContent("hparams").keys() >= {"_hparams_/experiment", "_hparams_/session_start_info"}
    for event in events.Scalars("time/total_ms"):
        parts = [
            next(e.value for e in events.Scalars(f"time/{part}_ms") if e.step == event.step)
            for part in ("data", "compute", "communication", "other")
        ]
        assert sum(parts) == pytest.approx(event.value, rel=1e-4)


def test_a_resumed_run_is_the_unbroken_one(freeze: Freeze, tmp_path: Path) -> None:
    whole = freeze(
        "whole", *TINY, "callbacks=[default,ema]", "model.dropout=0.3",
        "trainer.log_every_n_steps=5", "callbacks.checkpoint.every_n_steps=1", "callbacks.checkpoint.keep_last=100",
    )  # fmt: skip
    start(whole)
    for stop_at in (18, 25, 0):  # an epoch's end, in its middle, before any checkpoint
        broken = cut_back(whole, tmp_path / f"broken{stop_at}", stop_at)
        assert start(broken, "resume") == 0
        assert losses(broken) == losses(whole), stop_at
        assert len(rows(broken)) == len(losses(broken)), "a step was logged twice"
        assert _scalars(broken, "train/loss") == _scalars(whole, "train/loss"), stop_at
        for name, value in weights(whole).items():
            assert torch.equal(value, weights(broken)[name]), (stop_at, name)
        one, other = (
            checkpoint_io.read(run / "checkpoints" / "last.ckpt")["callbacks"]["ema"] for run in (broken, whole)
        )
        assert one["updates"] == other["updates"]
        for name, value in other["average"].items():
            assert torch.equal(one["average"][name], value), (stop_at, name)


def test_killed_and_resumed_is_bit_identical(
    freeze: Freeze, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")  # with the threads of this machine: other tests have one
    options = [*TINY, "trainer.max_epochs=4", "trainer.log_every_n_steps=5", "callbacks=[default,ema]",
               "callbacks.checkpoint.every_n_steps=7", "model.dropout=0.3", HERE,
               "+callbacks.waits._target_=killed_examples.WaitsAtStep"]  # fmt: skip
    whole, broken = freeze("whole", *options), freeze("broken", *options)
    assert start(whole) == 0
    process = processes.start(broken, WAITS_AT_STEP="52")
    wait_until((broken / WAITING).exists)
    process.kill()
    process.wait()
    assert summary(broken)["status"] == "running"
    assert start(broken, "resume") == 0
    first, second = summary(broken)["sessions"]
    assert first["steps"] >= second["from_step"] >= 40, "what the killed session did is known"
    assert second["from_step"] + second["steps"] == summary(broken)["steps"]
    assert losses(broken) == losses(whole)
    assert len(rows(broken)) == len(losses(broken)), "a step was logged twice"
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(broken)[name]), name
    for tag in ("train/loss", "val/acc"):
        assert _scalars(broken, tag) == _scalars(whole, tag)


def _scalars(run_dir: Path, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(run_dir), size_guidance={"scalars": 0}, purge_orphaned_data=False)
    events.Reload()
    # Files of one second are read in the order of their process ids.
    return sorted((event.step, event.value) for event in events.Scalars(tag))


@pytest.mark.slow
def test_sigterm_saves_and_exits_75_and_resume_goes_on(freeze: Freeze, processes: Processes) -> None:
    options = [*TINY, "trainer.max_epochs=200", "trainer.log_every_n_steps=10"]
    run_dir = freeze("run", *options)
    process = processes.start(run_dir)
    wait_until(lambda: len(checkpoints.saved_checkpoints(run_dir)) > 0)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 75, output
    told = summary(run_dir)
    assert told["status"] == "preempted"
    assert checkpoints.step_of(checkpoints.saved_checkpoints(run_dir)[0]) == told["steps"]
    assert "preempted at step" in output
    (run_dir / "resume.yaml").write_text(f"- {{changed: {{trainer.max_steps: {told['steps'] + 10}}}}}\n")
    assert start(run_dir, "resume") == 0
    assert summary(run_dir)["steps"] == told["steps"] + 10
    assert summary(run_dir)["resumed_from_step"] == told["steps"]


@pytest.mark.slow
def test_ctrl_c_leaves_a_checkpoint_and_exits_130(freeze: Freeze, processes: Processes) -> None:
    run_dir = freeze("run", *TINY, "trainer.max_epochs=200")
    process = processes.start(run_dir)
    wait_until(lambda: len(checkpoints.saved_checkpoints(run_dir)) > 0)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert summary(run_dir)["status"] == "interrupted"


def test_a_damaged_newest_checkpoint_is_passed_over(freeze: Freeze, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = freeze("run", *TINY, "trainer.max_epochs=3")
    start(run_dir)
    newest, before = checkpoints.saved_checkpoints(run_dir)[:2]
    with open(newest, "r+b") as file:
        file.seek(newest.stat().st_size // 2)
        file.write(b"\xff" * 64)
    with pytest.raises(checkpoint_io.DamagedCheckpoint):
        checkpoint_io.read(newest)
    capsys.readouterr()
    assert start(run_dir, "resume") == 0
    output = capsys.readouterr().out
    assert "damaged" in output
    assert f"goes on from {before}" in output


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 truncated"])
def test_checkpoints_that_are_none_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.ckpt"
    path.write_bytes(content)
    with pytest.raises(checkpoint_io.DamagedCheckpoint, match=r"damaged|not a zip file"):
        checkpoint_io.read(path)


def test_a_pickle_is_never_executed(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "executed"),)

    torch.save({"format": 1, "model": Evil()}, tmp_path / "x.ckpt")
    with pytest.raises(checkpoint_io.DamagedCheckpoint):
        checkpoint_io.read(tmp_path / "x.ckpt")
    assert not (tmp_path / "executed").exists()


def test_a_full_disk_leaves_the_old_checkpoint(freeze: Freeze, tmp_path: Path) -> None:
    import resource

    run_dir = freeze("run", *TINY)
    start(run_dir)
    path = checkpoints.saved_checkpoints(run_dir)[0]
    content = checkpoint_io.read(path)
    content["model"]["ballast"] = torch.zeros(1 << 20)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(OSError, match=r"could not write|File too large"):
            checkpoint_io.write(content, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert checkpoint_io.read(path)["position"]["step"] == 36
    assert not list(path.parent.glob(".*"))


def test_nan_stops_with_step_and_learning_rate(freeze: Freeze, capfd: pytest.CaptureFixture[str]) -> None:
    run_dir = freeze("run", *TINY, "optimizer.lr=1e30", "schedule=constant")
    assert start(run_dir) == 1
    error = capfd.readouterr().err
    assert "the loss is" in error
    assert "learning rate 1e+30" in error
    assert "at step" in error
    assert summary(run_dir)["status"] == "failed"
    assert not checkpoints.saved_checkpoints(run_dir)


@pytest.mark.parametrize(("every", "last"), [(4, 7), (50, 18)])
def test_nan_is_said_with_its_own_step_and_rate(
    every: int, last: int, freeze: Freeze, capfd: pytest.CaptureFixture[str]
) -> None:
    """Seen at the next log, or at the epoch's end, where the rate is another one."""
    poison = "+callbacks.poison._target_=training_examples.Poison"
    run_dir = freeze("run", *TINY, "trainer.max_epochs=1", f"trainer.log_every_n_steps={every}", poison, HERE)
    assert start(run_dir) == 1
    rate = 0.02 * (1 + math.cos(math.pi * 6 / 18)) / 2
    assert f"the loss is nan at step 7, learning rate {rate:.3g}" in capfd.readouterr().err
    assert int((run_dir / "poisoned").read_text().split()[-1]) == last, "the log of step 8 comes before its callbacks"


def test_fast_dev_run_takes_one_step_and_saves_nothing(freeze: Freeze) -> None:
    run_dir = freeze("run", *TINY, "trainer.fast_dev_run=true")
    assert start(run_dir) == 0
    assert summary(run_dir)["steps"] == 1
    assert "test/acc" in summary(run_dir)["metrics"]
    assert not (run_dir / "checkpoints").exists()


def test_accumulation_equals_the_whole_batch(freeze: Freeze) -> None:
    often = [*TINY, "trainer.log_every_n_steps=1"]
    whole, parts = freeze("whole", *often), freeze("parts", *often, "trainer.accumulate_grad_batches=4")
    start(whole)
    start(parts)
    # of the whole batch, not of the last part
    for one, other in zip(rows(whole), rows(parts), strict=True):
        assert float(other["train/loss"] or 0) == pytest.approx(float(one["train/loss"] or 0), rel=1e-5)
    assert summary(parts)["steps"] == summary(whole)["steps"] == 36
    for name, value in weights(whole).items():
        assert float((value - weights(parts)[name]).norm() / value.norm()) < 1e-5, name


def test_early_stopping_ends_the_run_and_says_why(freeze: Freeze) -> None:
    run_dir = freeze(
        "run", *TINY, "callbacks=[default,early_stopping]", "trainer.max_epochs=50",
        "callbacks.early_stopping.patience=2", "callbacks.early_stopping.min_delta=100",
    )  # fmt: skip
    assert start(run_dir) == 0
    told = summary(run_dir)
    assert told["epochs"] == 3
    assert "val/loss has not improved" in told["stop_reason"]


def test_ema_is_what_is_evaluated(freeze: Freeze) -> None:
    plain = freeze("plain", *TINY)
    averaged = freeze("averaged", *TINY, "callbacks=[default,ema]", "callbacks.ema.decay=0.99")
    start(plain)
    start(averaged)
    for name, value in weights(plain).items():
        assert torch.equal(value, weights(averaged)[name]), "EMA must not change the training"
    assert summary(plain)["metrics"]["val/loss"] != summary(averaged)["metrics"]["val/loss"]


def test_limits_count_optimizer_steps(freeze: Freeze) -> None:
    run_dir = freeze("run", *TINY, "trainer.limit_train_batches=5", "trainer.accumulate_grad_batches=2")
    start(run_dir)
    assert summary(run_dir)["steps"] == 10


def test_init_from_takes_what_fits(freeze: Freeze, capsys: pytest.CaptureFixture[str]) -> None:
    first = freeze("first", *TINY)
    start(first)
    capsys.readouterr()
    second = freeze("second", *TINY, f"init_from={first}", "trainer.max_steps=1", "optimizer.lr=1e-12")
    start(second)
    assert "4 of 4 tensors" in capsys.readouterr().out
    for name, value in weights(first).items():
        assert torch.allclose(value, weights(second)[name], atol=1e-6)


def test_eval_prints_the_metrics_of_the_checkpoint(freeze: Freeze, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = freeze("run", *TINY)
    start(run_dir)
    before = {p: p.stat().st_mtime_ns for p in run_dir.rglob("*") if p.name != "run.log"}
    capsys.readouterr()
    assert start(run_dir, "eval") == 0
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(("val/", "test/")))
    assert float(printed["val/acc"]) == pytest.approx(summary(run_dir)["metrics"]["val/acc"], rel=1e-4)
    assert float(printed["test/loss"]) == pytest.approx(summary(run_dir)["metrics"]["test/loss"], rel=1e-4)
    assert before == {p: p.stat().st_mtime_ns for p in run_dir.rglob("*") if p.name != "run.log"}


def test_a_users_mistake_found_late_leaves_nothing(freeze: Freeze) -> None:
    run_dir = freeze("run", *TINY, "optimizer.lr=-1.0")
    with pytest.raises(ValueError, match="learning rate"):
        start(run_dir)
    assert not run_dir.exists()
