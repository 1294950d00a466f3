"""The agent of a node in a Slurm job, as its batch script starts it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from runs import TINY, Freeze, summary

from leyden.trainer.entrypoints import slurm_requeue
from leyden.trainer.launch.slurm.batch_script import folder
from leyden.trainer.launch.slurm.submit import REQUEUES
from leyden.trainer.runs import checkpoints


def agent(run_dir: Path, verb: str, node: int = 0) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", "-m", "leyden.trainer.entrypoints.slurm_agent", str(run_dir), verb, ""]
    environment = {**os.environ, "SLURM_NODEID": str(node), "SLURM_JOB_ID": "7"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.yaml", "- a list\n"),
        ("config.yaml", "model: {"),
        ("config.yaml", None),
        ("resume.yaml", "changed: everything\n"),
        ("summary.json", "{"),
    ],
)
def test_a_damaged_run_is_one_error(freeze: Freeze, file: str, content: str | None) -> None:
    """A worker of the run would say the same; between submission and start of a job there may be days."""
    run_dir = freeze("run", *TINY)
    (run_dir / file).unlink(missing_ok=True)
    if content is not None:
        (run_dir / file).write_text(content)
    done = agent(run_dir, "resume")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert str(run_dir / file) in done.stderr
    failed = summary(run_dir)
    assert failed["status"] == "failed"
    assert file in failed["error"]


@pytest.mark.parametrize(("damaged", "queued"), [(True, False), (False, True)])
def test_a_damaged_checkpoint_is_no_progress(
    freeze: Freeze, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], damaged: bool, queued: bool
) -> None:
    """The job that wrote it did not get beyond the one before: queued again, it would do so for ever."""
    run_dir = freeze("run", *TINY)
    for step in (18, 36):
        path = checkpoints.path_of(run_dir, step)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    if damaged:
        checkpoints.note_damaged(checkpoints.path_of(run_dir, 36), "truncated")
    folder(run_dir).mkdir()
    (folder(run_dir) / REQUEUES).write_text("[18]")
    done = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(slurm_requeue, "run_command", lambda *words: done)
    monkeypatch.setattr(slurm_requeue, "state_of", lambda job: "RUNNING")
    monkeypatch.setattr(slurm_requeue, "is_being_preempted", lambda job: False)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert slurm_requeue.main(run_dir, "resume", 75) == 75
    said = "is queued again, to go on from step 36" if queued else "is not queued again: it has made no step since"
    assert said in capsys.readouterr().out


def test_only_the_first_node_records_it(freeze: Freeze) -> None:
    run_dir = freeze("run", *TINY)
    (run_dir / "config.yaml").write_text("- a list\n")
    done = agent(run_dir, "resume", node=1)
    assert done.returncode == 2
    assert not (run_dir / "summary.json").exists()
