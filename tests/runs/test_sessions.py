"""A run that has ended is not resumed; and what the sessions of a run took adds up."""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from runs import TINY, Freeze, Processes, cut_back, summary, wait_until

from leyden.trainer.cli.main import main
from leyden.trainer.entrypoints import slurm_agent
from leyden.trainer.entrypoints.start import start
from leyden.trainer.runs import checkpoints
from leyden.trainer.runs.sessions import merge_sessions, totals

QUICK = [*TINY, "trainer.max_epochs=1", "trainer.enable_progress_bar=false", "topology=cpu"]


def contents(run_dir: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}


def set_key(run_dir: Path, key: str, value: Any) -> None:
    """In the frozen config."""
    values = yaml.safe_load((run_dir / "config.yaml").read_text())
    *parents, last = key.split(".")
    node = values
    for parent in parents:
        node = node[parent]
    node[last] = value
    (run_dir / "config.yaml").write_text(yaml.safe_dump(values, sort_keys=False))


@pytest.mark.parametrize(
    ("limits", "said", "remedy", "steps"),
    [
        ([], "ended at epoch 1; raise trainer.max_epochs", ["trainer.max_epochs=2"], 36),
        (["trainer.max_steps=7"], "ended at step 7; raise trainer.max_steps", ["trainer.max_steps=14"], 14),
        (
            ["trainer.max_steps=18"],
            "ended at epoch 1, step 18; raise trainer.max_epochs and trainer.max_steps",
            ["trainer.max_epochs=2", "trainer.max_steps=36"],
            36,
        ),
    ],
)
def test_a_run_that_has_ended_is_not_resumed(
    limits: list[str], said: str, remedy: list[str], steps: int, freeze: Freeze, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = freeze("run", *QUICK, *limits)
    assert start(run_dir) == 0
    before, first = contents(run_dir), summary(run_dir)
    for more in ([], ["trainer.log_every_n_steps=3"], ["topology.launcher=node"]):
        capsys.readouterr()
        assert main(["resume", str(run_dir), *more]) == 2
        told = capsys.readouterr()
        assert said in told.err
        assert f"try: leyden resume {run_dir} {' '.join(remedy)}" in " ".join(told.err.split())
        assert "leyden node" not in told.out
    assert contents(run_dir) == before
    assert main(["resume", str(run_dir), *remedy]) == 0, "the remedy works"
    after = summary(run_dir)
    assert (after["steps"], after["samples_per_second"] > 0) == (steps, True)
    assert after["sessions"][0] == first["sessions"][0]
    assert [session["steps"] for session in after["sessions"]] == [first["steps"], steps - first["steps"]]
    assert after["totals"]["samples"] == after["samples"]
    assert after["totals"]["train_seconds"] == sum(session["train_seconds"] for session in after["sessions"])


def test_a_run_that_a_callback_stopped_is_not_resumed(freeze: Freeze, capsys: pytest.CaptureFixture[str]) -> None:
    stops = ["callbacks=[default,early_stopping]", "callbacks.early_stopping.monitor=val/loss",
             "callbacks.early_stopping.patience=1", "callbacks.early_stopping.min_delta=100"]  # fmt: skip
    run_dir = freeze("run", *QUICK, *stops, "trainer.max_epochs=9")
    assert start(run_dir) == 0
    assert summary(run_dir)["epochs"] == 2
    assert main(["resume", str(run_dir)]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "ended at epoch 2, where a callback stopped it early: val/loss has not improved" in error
    assert f"try: leyden resume {run_dir} trainer.max_epochs=18" in error
    assert slurm_agent.main([str(run_dir), "resume", ""]) == 0
    assert "where a callback stopped it early" in capsys.readouterr().out, "queued again: a word, and no training"
    set_key(run_dir, "topology.launcher", "slurm")
    (run_dir / "resume.yaml").write_text("- {at: now, changed: {trainer.max_epochs: 18}}\n")  # as `leyden resume` does
    set_key(run_dir, "topology.launcher", "local")
    assert slurm_agent.main([str(run_dir), "resume", ""]) == 0
    assert summary(run_dir)["epochs"] == 3, "asked for after the end: it goes on"
    assert slurm_agent.main([str(run_dir), "resume", ""]) == 0
    assert summary(run_dir)["epochs"] == 3


def test_a_run_that_stopped_early_goes_on_for_more_than_one_epoch(freeze: Freeze) -> None:
    stops = ["callbacks=[default,early_stopping]", "callbacks.early_stopping.patience=2",
             "callbacks.early_stopping.min_delta=100"]  # fmt: skip
    run_dir = freeze("run", *QUICK, *stops, "trainer.max_epochs=20", "trainer.limit_train_batches=2")
    assert start(run_dir) == 0
    assert summary(run_dir)["epochs"] == 3, "the first is the best"
    assert main(["resume", str(run_dir), "callbacks.early_stopping.patience=4"]) == 0
    assert summary(run_dir)["epochs"] == 5, "as if it had waited for four from the beginning"
    assert main(["resume", str(run_dir), "trainer.max_epochs=30"]) == 0
    assert summary(run_dir)["epochs"] == 9, "four more"


def test_the_ends_of_other_runs(freeze: Freeze, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By nodes and by Slurm; from an older checkpoint, which is another matter; of a run that keeps nothing."""
    run_dir = freeze("run", *QUICK, "callbacks.checkpoint.every_n_steps=9")
    assert start(run_dir) == 0
    set_key(run_dir, "topology.launcher", "node")
    assert main(["node", "--rendezvous", "localhost:0", str(run_dir)]) == 2
    assert "ended at epoch 1; raise trainer.max_epochs" in capsys.readouterr().err
    set_key(run_dir, "topology.launcher", "local")
    before = contents(run_dir)
    assert slurm_agent.main([str(run_dir), "resume", ""]) == 0
    assert "nothing is left to train: the run ended at epoch 1" in capsys.readouterr().out
    assert contents(run_dir) == before
    assert main(["resume", str(run_dir / "checkpoints" / "last.ckpt")]) == 2
    assert main(["resume", str(run_dir / "checkpoints" / "step=00000009.ckpt")]) == 0
    assert [session["steps"] for session in summary(run_dir)["sessions"]] == [18, 9]
    assert summary(run_dir)["totals"]["steps"] == 27, "nine of them twice"
    tried = freeze("tried", *QUICK, "trainer.fast_dev_run=true")
    assert start(tried) == 0
    assert main(["resume", str(tried)]) == 2
    assert "ended after its one step (trainer.fast_dev_run)" in capsys.readouterr().err


def test_a_trained_run_that_was_killed_before_its_end_is_tested(freeze: Freeze, tmp_path: Path) -> None:
    """There is nothing left to train, and no session of zero samples per second."""
    whole = freeze("whole", *QUICK)
    assert start(whole) == 0
    killed = cut_back(whole, tmp_path / "killed", 18)
    text = (killed / "summary.json").read_text()
    (killed / "summary.json").write_text(text.replace('"done"', '"running"'))
    assert start(killed, "resume") == 0
    told = summary(killed)
    assert told["status"] == "done"
    assert told["samples_per_second"] == told["sessions"][0]["samples_per_second"] > 0
    assert len(told["sessions"]) == 1


@pytest.mark.machine
@pytest.mark.slow
def test_sessions_survive_kills_and_failures(freeze: Freeze, processes: Processes) -> None:
    run_dir = freeze("run", *TINY, "trainer.max_epochs=4000", "callbacks.checkpoint.every_n_epochs=2000")
    process = processes.start(run_dir)
    wait_until(lambda: (run_dir / "progress.json").exists() and "session" in (run_dir / "progress.json").read_text())
    process.send_signal(signal.SIGKILL)  # before the first checkpoint: progress.json alone knows
    process.wait()
    assert not checkpoints.saved_checkpoints(run_dir)
    (run_dir / "resume.yaml").write_text("- {changed: {trainer.max_epochs: 2}}\n")
    shutil.copytree(run_dir, run_dir.with_name("failed"))
    assert start(run_dir, "resume") == 0
    first, second = summary(run_dir)["sessions"]
    assert first["steps"] >= 1
    assert first["train_seconds"] > 0
    assert (second["from_step"], second["steps"]) == (0, 36)
    failed = run_dir.with_name("failed")
    from leyden.trainer.runs.summary import mark_failed

    mark_failed(failed, "on purpose", 0)
    assert summary(failed)["sessions"] == [first]


def test_records_of_one_session_are_one() -> None:
    def record(at: str, steps: int) -> dict[str, Any]:
        return {"started_at": at, "steps": steps, "samples": 2 * steps, "train_seconds": 0.5 * steps}

    one, other = "2026-01-01T10:00:00.000+02:00", "2026-01-01T09:00:00.000+00:00"
    found = merge_sessions(
        [record(other, 3), record(one, 1)], [record(one, 4)], [record(one, 2), record("2026-01-02", 0)]
    )
    assert found == [record(one, 4), record(other, 3)], "in the order of time, wherever the clock stood"
    assert totals(found) == {"steps": 7, "samples": 14, "train_seconds": 3.5, "samples_per_second": 4.0}
    assert totals([])["samples_per_second"] == 0.0
