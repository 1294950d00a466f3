"""Runs on a cluster of Slurm's: submitted, held half-way, compared with uninterrupted ones."""

import json
from pathlib import Path

import pytest
from folders import MODULES
from runs import TINY, Freeze, rows, summary, wait_until, weights

from leyden.trainer.cli.main import main
from leyden.trainer.entrypoints.start import start

QUICK = [*TINY, "trainer.precision=64-true", "trainer.enable_progress_bar=false"]
STEPS_AN_EPOCH = 18
HELD = ["+callbacks.holds._target_=slurm_examples.Holds"]
ONE_NODE = ["topology=slurm", "topology.device.kind=cpu"]
TWO_NODES = [*ONE_NODE, "topology.nodes=2", "strategy=ddp"]


def submitting_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes it the current folder, from which Slurm's jobs import slurm_examples."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(MODULES))
    # a worker alone on its node would compute with more threads than one of two, and sum in another order
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return folder


def submitted(here: Path, *overrides: str) -> tuple[Path, str]:
    """A run that Slurm has taken, and its job's number."""
    run_dir = here / "run"
    assert main([*QUICK, *overrides, f"hydra.run.dir={run_dir}"]) == 0
    return run_dir, job_of(run_dir)


def job_of(run_dir: Path) -> str:
    return json.loads((run_dir / "slurm.json").read_text())["job_id"]


def log(run_dir: Path) -> str:
    path = run_dir / "slurm" / "job.log"
    return path.read_text() if path.exists() else ""


def held(run_dir: Path, workers: int = 1) -> None:
    """Waits until all workers are held. Those that hold them after another start are then waited for anew."""
    try:
        wait_until(lambda: len(list(run_dir.glob("held-*"))) == workers)
    except AssertionError:
        raise AssertionError(log(run_dir)) from None
    for path in run_dir.glob("held-*"):
        path.unlink()


def uninterrupted(freeze: Freeze, *overrides: str) -> Path:
    """The same run without Slurm, from start to end."""
    run_dir = freeze(f"uninterrupted-{len(overrides)}", *QUICK, *HELD, "+callbacks.holds.steps=[]", *overrides)
    assert start(run_dir) == 0
    return run_dir


def assert_same(run_dir: Path, whole: Path, epochs: int = 2) -> None:
    """Bit for bit, and logged as one run."""
    ours, theirs = weights(run_dir), weights(whole)
    assert all((ours[name] == theirs[name]).all() for name in theirs)
    assert_one_run(run_dir, epochs)


def assert_one_run(run_dir: Path, epochs: int = 2) -> None:
    """Done, one TensorBoard run, every epoch logged once."""
    assert summary(run_dir)["status"] == "done"
    assert {path.parent for path in run_dir.rglob("events.out.tfevents.*")} == {run_dir}
    logged = [row["epoch"] for row in rows(run_dir) if row.get("val/acc")]
    assert len(logged) == len(set(logged)) == epochs
