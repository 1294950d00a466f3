"""Runs through a real Slurm: two nodes on this machine. What needs no cluster is in test_slurm_script.py."""

import os
import random
import sys
from pathlib import Path

import pytest
from folders import MODULES
from runs import Freeze, distance, states, summary, wait_until, weights
from slurm_cluster import NEEDS_SLURM, SlurmCluster
from slurm_runs import (
    HELD,
    ONE_NODE,
    QUICK,
    STEPS_AN_EPOCH,
    TWO_NODES,
    assert_same,
    held,
    job_of,
    log,
    submitted,
    submitting_from,
    uninterrupted,
)

from leyden.trainer.cli.main import main
from leyden.trainer.runs import checkpoints

REQUEUES = int(os.environ.get("LEYDEN_REQUEUES", "10"))

pytestmark = [
    pytest.mark.slow,
    NEEDS_SLURM,
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return submitting_from(tmp_path, monkeypatch)


@pytest.fixture(scope="module", autouse=True)
def limited(slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run whose job has a minute. Slurm looks at the clock twice a minute: meanwhile the other tests run."""
    longer = 'test -z "$SLURM_RESTART_COUNT" || scontrol update JobId=$SLURM_JOB_ID TimeLimit=60'
    limit = ["topology.slurm.time_min=1", "topology.slurm.signal_s=50", f"topology.slurm.setup=['{longer}']"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(MODULES))
        patch.setattr(sys, "path", list(sys.path))
        here, elsewhere = tmp_path_factory.mktemp("limited"), "topology.slurm.exclude=n2"
        return submitted(here, *ONE_NODE, elsewhere, *limit, *held_once_an_epoch(1))


def held_once_an_epoch(times: int) -> list[str]:
    """Overrides for a run that is held after a random step of each of its first epochs.

    Args:
        times: number of these epochs.
    """
    rng = random.Random(0)
    # after a signal several workers make three more steps
    steps = [epoch * STEPS_AN_EPOCH + rng.randint(1, STEPS_AN_EPOCH - 4) for epoch in range(times)]
    return [*HELD, f"callbacks.holds.steps={steps}", f"trainer.max_epochs={times + 1}"]


@pytest.mark.campaign
@pytest.mark.timeout(300 + 60 * REQUEUES)
def test_two_nodes_are_one_run_however_often_they_are_stopped(slurm: SlurmCluster, here: Path, freeze: Freeze) -> None:
    """Requeued by hand, and at last preempted, while a node is slow to answer and the job is SIGNALING."""
    often = held_once_an_epoch(REQUEUES)
    run_dir, job = submitted(here, *TWO_NODES, *often)
    for _ in range(REQUEUES - 1):
        held(run_dir, workers=2)
        assert summary(run_dir)["status"] == "running"
        slurm.run("scontrol", "requeue", job)
    held(run_dir, workers=2)
    with slurm.slow_node("n2"), slurm.urgent_job("n2"):
        wait_until(lambda: slurm.job(job)["Restarts"] == str(REQUEUES))
    whole = uninterrupted(freeze, "strategy=ddp", "topology.devices_per_node=2", often[-1])
    ended = slurm.ended(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", str(REQUEUES)), log(run_dir)
    assert_same(run_dir, whole, epochs=REQUEUES + 1)


@pytest.mark.campaign
def test_a_run_makes_room_for_a_more_urgent_job(
    slurm: SlurmCluster, here: Path, freeze: Freeze, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice, the second time before it has made another step."""
    run_dir, job = submitted(here, *ONE_NODE, "topology.slurm.exclude=n1", *HELD, "callbacks.holds.steps=[5,0]")
    for times in (1, 2):
        held(run_dir)
        with slurm.urgent_job("n2") as urgent:
            wait_until(lambda: slurm.job(urgent)["JobState"] == "RUNNING")
            waiting = slurm.job(job)
            assert (waiting["JobState"], waiting["Restarts"]) == ("PENDING", str(times)), log(run_dir)
            assert log(run_dir).count("is queued again, to go on from step 5") == times
            seen = states(capsys, run_dir)["run"]
            assert (seen["state"], seen["step"]) == ("queued", 5)
    whole = uninterrupted(freeze)
    ended = slurm.ended(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "2"), log(run_dir)
    assert_same(run_dir, whole)


def test_two_nodes_of_two_workers_equal_one_worker_though_they_are_stopped_and_one_dies(
    slurm: SlurmCluster, here: Path, freeze: Freeze
) -> None:
    """Preempted while a node is slow to answer and the job is SIGNALING; and the bits are those of four workers."""
    often = ["callbacks.holds.steps=[5,25]", "callbacks.checkpoint.every_n_steps=10"]
    run_dir, job = submitted(here, *TWO_NODES, "topology.devices_per_node=2", *HELD, *often)
    held(run_dir, workers=4)
    with slurm.slow_node("n2"), slurm.urgent_job("n2"):
        wait_until(lambda: slurm.job(job)["Restarts"] == "1")
    held(run_dir, workers=4)
    slurm.kill_node("n2")
    alone = uninterrupted(freeze)
    whole = uninterrupted(freeze, "strategy=ddp", "topology.devices_per_node=4")
    wait_until(lambda: slurm.job(job)["Restarts"] == "2")
    slurm.start_node("n2")
    assert slurm.ended(job)["JobState"] == "COMPLETED", log(run_dir)
    assert summary(run_dir)["world_size"] == 4
    assert distance(weights(run_dir), weights(alone)) <= 1e-10
    assert_same(run_dir, whole)


def test_a_run_that_shall_stop_is_not_queued_again(
    slurm: SlurmCluster, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # a data loader's process receives the signals, too
    run_dir, job = submitted(here, *ONE_NODE, *HELD, "callbacks.holds.steps=[5]", "dataset.num_workers=1")
    held(run_dir)
    seen = states(capsys, run_dir)["run"]
    assert (seen["state"], seen["total_steps"]) == ("running", 2 * STEPS_AN_EPOCH)
    assert 1 <= seen["step"] <= 5
    assert seen["samples_per_second"] > 0
    assert seen["seconds_left"] > 0
    assert main(["resume", str(run_dir)]) == 2  # it is running
    assert main(["stop", str(run_dir)]) == 0
    ended = slurm.ended(job)
    assert (ended["JobState"], ended["Restarts"], ended["ExitCode"]) == ("FAILED", "0", "75:0")
    assert "not queued again: its run was asked to stop" in log(run_dir)
    seen = states(capsys, run_dir)["run"]
    assert (seen["state"], seen["step"], seen["checkpoint"]) == ("preempted", 5, "checkpoints/step=00000005.ckpt")

    # requeued by hand
    slurm.run("scontrol", "requeue", job)
    wait_until(lambda: slurm.job(job)["Restarts"] == "1")
    assert (slurm.ended(job)["ExitCode"], summary(run_dir)["steps"]) == ("75:0", 5)
    assert not list(run_dir.glob("held-*"))

    assert main(["resume", str(run_dir / "checkpoints/last.ckpt"), "trainer.max_steps=20"]) == 0
    assert not (run_dir / "stop_requested").exists()
    held(run_dir)
    slurm.run("scancel", again := job_of(run_dir))
    ended = slurm.ended(again)
    assert (ended["JobState"], ended["Restarts"]) == ("CANCELLED", "0")
    wait_until(lambda: summary(run_dir)["status"] == "preempted")
    assert checkpoints.step_of(checkpoints.saved_checkpoints(run_dir)[0]) == summary(run_dir)["steps"] == 6


def test_a_sweep_is_one_array(slurm: SlurmCluster, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    waits = [f"+callbacks.waits={{_target_: slurm_examples.WaitsAndMayFail, sign: {here}/sign, seed: 1}}"]
    assert main(["-m", *QUICK, *ONE_NODE, *waits, "seed=0,1,2", "hydra.sweep.dir=mine"]) == 0
    folders = [here / "mine" / name for name in "012"]
    jobs = [job_of(folder) for folder in folders]
    array = jobs[0].partition("_")[0]
    assert jobs == [f"{array}_{number}" for number in range(3)]
    assert f"job {array}_1" in capsys.readouterr().out
    # it has waited for none: they wait for the sign
    wait_until(lambda: all((folder / "waits").exists() for folder in folders))
    assert {run["state"] for run in states(capsys, here / "mine").values()} == {"running"}

    (one,) = [job for job in jobs if slurm.job(job)["JobId"] == array]  # by this number Slurm means them all, too
    slurm.run("scancel", "--signal=TERM", one)
    wait_until(lambda: slurm.job(one)["Restarts"] == "1")
    (here / "sign").touch()
    ended = [slurm.ended(job) for job in jobs]
    assert [job["JobState"] for job in ended] == ["COMPLETED", "FAILED", "COMPLETED"], log(folders[0])
    assert [job["Restarts"] for job in ended] == ["1" if job == one else "0" for job in jobs]
    assert ended[1]["ExitCode"] == "1:0"
    seen = states(capsys, here / "mine")
    assert [seen[name]["state"] for name in "012"] == ["done", "failed", "done"]
    assert seen["1"]["why"] == "rank 0: RuntimeError: on purpose"
    assert "on purpose" in log(folders[1])
    assert [job_of(folder) for folder in folders] == jobs


def test_a_sweep_over_topologies_is_several_jobs_and_all_or_none(
    slurm: SlurmCluster, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*QUICK, *ONE_NODE, "strategy=ddp", "topology.slurm.time_min=5,6", "hydra.sweep.dir=mine"]
    words += ["topology.slurm.sbatch=[--hold]"]
    assert main(["-m", *words, "topology.slurm.partition=all,nowhere"]) == 2
    assert not list(here.iterdir())
    assert "mine" not in slurm.run("squeue", "--noheader", "--format=%j")
    assert main(["-m", *words]) == 0
    one, other = [job_of(here / "mine" / name) for name in "01"]
    assert one.isdigit()
    assert int(other) == int(one) + 1

    seen = states(capsys, here / "mine")
    assert {run["state"] for run in seen.values()} == {"queued"}
    assert seen["0"]["why"] == f"Slurm's job {one}: JobHeldUser"
    assert main(["stop", "mine/0"]) == 0
    assert [slurm.job(job)["JobState"] for job in (one, other)] == ["CANCELLED", "PENDING"]
    seen = states(capsys, here / "mine")
    assert [seen[name]["state"] for name in "01"] == ["not started", "queued"]
    assert seen["0"]["why"].startswith(f"Slurm's job {one}: CANCELLED; leyden resume")
    assert main(["stop", "mine"]) == 0
    assert slurm.job(other)["JobState"] == "CANCELLED"
    assert main(["stop", "mine"]) == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("topology.slurm.partition=nowhere", "invalid partition specified: nowhere"),
        ("topology.nodes=3 batch_size=63", "topology.nodes = 3"),
        ("topology.slurm.gres=gpu:8", "topology.slurm.gres = gpu:8"),
        ("topology.slurm.constraint=h100", "topology.slurm.constraint = h100"),
        ("topology.slurm.exclude=n7", "topology.slurm.exclude = n7"),
        ("topology.slurm.sbatch=[--nonsense]", "unrecognized option '--nonsense'"),
    ],
)
def test_what_slurm_does_not_take_is_one_message(
    slurm: SlurmCluster, here: Path, capsys: pytest.CaptureFixture[str], wrong: str, message: str
) -> None:
    assert main([*QUICK, *ONE_NODE, "strategy=ddp", *wrong.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert wrong.partition("=")[0] in error
    assert not list(here.iterdir())


def test_the_time_limit_stops_a_run_that_then_goes_on(
    slurm: SlurmCluster, limited: tuple[Path, str], freeze: Freeze
) -> None:
    run_dir, job = limited
    ended = slurm.ended(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), log(run_dir)
    assert_same(run_dir, uninterrupted(freeze))
