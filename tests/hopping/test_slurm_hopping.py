"""Model hopping under a real Slurm of two nodes: one job trains all trials of a sweep, across requeues and stops."""

import json
from pathlib import Path

import pytest
import torch
from runs import Freeze, states, summary, wait_until, weights
from slurm_cluster import NEEDS_SLURM, SlurmCluster
from slurm_runs import HELD, QUICK, job_of, log, submitting_from

from leyden.trainer.cli.main import main
from leyden.trainer.entrypoints.start import start

PIPELINE = ["-m", "hydra/launcher=pipeline", "hydra.launcher.scheduler=ring", "hydra.sweep.dir=mine"]
TWO_NODES = ["topology=slurm", "topology.device.kind=cpu", "topology.nodes=2"]
RATES = ("0.1", "0.03", "0.01", "0.003")
TRIALS = ("0", "1", "2", "3")

pytestmark = [
    pytest.mark.slow,
    NEEDS_SLURM,
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return submitting_from(tmp_path, monkeypatch)


def held(sweep: Path) -> set[str]:
    """Wait until both workers are held. Returns the trials that they train, and makes the next call wait anew."""
    try:
        wait_until(lambda: len(list(sweep.glob("?/held-0"))) == 2)
    except AssertionError:
        raise AssertionError(log(sweep / "pipeline")) from None
    found = list(sweep.glob("?/held-0"))
    for path in found:
        path.unlink()
    return {path.parent.name for path in found}


def assert_as_alone(trial: Path, rate: str, freeze: Freeze, *overrides: str) -> None:
    """Bit for bit as from one worker, never stopped and without Slurm, over the same partitions in the same order."""
    orders = json.dumps(summary(trial)["partition_orders"]).replace(" ", "")
    order = ["dataset.partitions=2", f"dataset.partition_order={orders}"]
    alone = freeze(f"alone-{trial.name}", *QUICK, f"optimizer.lr={rate}", *overrides, *order)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert start(alone) == 0
    torch.set_num_threads(threads)
    ours, theirs = weights(trial), weights(alone)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_pipeline_is_one_job_that_goes_on(
    slurm: SlurmCluster, here: Path, freeze: Freeze, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep, often = here / "mine", ["trainer.max_epochs=4", *HELD, "+callbacks.holds.steps=[20,40]"]
    assert main([*PIPELINE, *QUICK, *TWO_NODES, f"optimizer.lr={','.join(RATES)}", *often]) == 0
    output, job = capsys.readouterr().out, job_of(sweep / "pipeline")
    assert output.count(f"job {job}") == len(TRIALS)
    for line in (f"squeue --jobs {job}", "tail -F mine/pipeline/slurm/job.log", "leyden status mine"):
        assert line in output

    held(sweep)
    seen = states(capsys, sweep)
    assert {seen[name]["state"] for name in TRIALS} == {"running"}
    # all of them have begun, and are saved wherever they are
    slurm.run("scontrol", "requeuehold", job)
    wait_until(lambda: slurm.job(job)["JobState"] == "PENDING")
    seen = states(capsys, sweep)
    assert {run["state"] for run in seen.values()} == {"queued"}
    steps = {name: seen[name]["step"] for name in TRIALS}
    assert min(steps.values()) >= 9
    assert {summary(sweep / name)["status"] for name in TRIALS} == {"preempted"}
    slurm.run("scontrol", "release", job)

    held(sweep)
    assert main(["resume", "mine"]) == 2  # the job runs
    assert main(["resume", "mine/3"]) == 2
    assert main(["stop", "mine/3"]) == 2
    capsys.readouterr()
    assert main(["stop", "mine"]) == 0
    assert capsys.readouterr().out.count(f"job {job} was requested to save and end") == 1
    ended = slurm.ended(job)
    assert (ended["JobState"], ended["Restarts"], ended["ExitCode"]) == ("FAILED", "1", "75:0"), log(sweep / "pipeline")
    seen = states(capsys, sweep)
    assert {run["state"] for run in seen.values()} == {"preempted"}
    assert all(seen[name]["step"] > steps[name] for name in TRIALS)

    # what Slurm has begun, this machine can end
    assert main(["resume", "mine", "topology=cpu"]) == 0
    for name, rate in zip(TRIALS, RATES, strict=True):
        assert states(capsys, sweep)[name]["state"] == "done"
        assert_as_alone(sweep / name, rate, freeze, *often)


def test_a_pipeline_in_the_queue(slurm: SlurmCluster, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two batches, both held, so that none ever runs."""
    sweep, hold = here / "mine", "topology.slurm.sbatch=[--hold]"
    words = [*PIPELINE, *QUICK, *TWO_NODES, hold, "seed=1,2,3", "hydra.sweeper.max_batch_size=2"]
    assert main([*words, "topology.slurm.constraint=h100"]) == 2
    assert "topology.slurm.constraint = h100" in capsys.readouterr().err
    assert not list(here.iterdir())
    assert main(words) == 0
    first, second = job_of(sweep / "pipeline"), job_of(sweep / "pipeline-2")
    assert first.partition("_")[0] == second.partition("_")[0]
    seen = states(capsys, sweep)
    assert {run["state"] for run in seen.values()} == {"queued"}
    assert seen["1"]["why"] == f"Slurm's job {first}: JobHeldUser"
    assert seen["2"]["why"] == f"Slurm's job {second}: JobHeldUser"

    around = {"resume mine": "pipeline", "resume mine/1": "pipeline", "resume mine/pipeline-2": "pipeline-2"}
    for refused, pipeline in {**around, "stop mine/1": "pipeline"}.items():
        assert main(refused.split()) == 2
        assert f"leyden stop mine/{pipeline}" in capsys.readouterr().err
    assert main(["stop", "mine/pipeline"]) == 0
    seen = states(capsys, sweep)
    assert [seen[name]["state"] for name in "012"] == ["not started", "not started", "queued"]
    assert main(["resume", "mine"]) == 2  # the other is there still
    assert main(["stop", "mine"]) == 0

    # one by itself: then not with the others
    assert main(["resume", "mine/1"]) == 0
    alone = job_of(sweep / "1")
    assert slurm.job(alone)["NumNodes"] == "1-1"
    assert main(["resume", "mine"]) == 2
    assert main(["stop", "mine/1"]) == 0
    assert main(["resume", "mine"]) == 0
    assert job_of(sweep / "pipeline") != first
    assert {run["state"] for run in states(capsys, sweep).values()} == {"queued"}
    assert main(["stop", "mine"]) == 0


@pytest.mark.campaign
def test_a_trial_fails_in_a_job_of_one_node(
    slurm: SlurmCluster, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    often = "trainer.log_every_n_steps=1"
    assert main([*PIPELINE, *QUICK, *TWO_NODES[:-1], often, "optimizer.lr=0.1,1e30"]) == 0
    ended = slurm.ended(job_of(here / "mine" / "pipeline"))
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", "1:0"), log(here / "mine" / "pipeline")
    seen = states(capsys, here / "mine")
    assert [seen[name]["state"] for name in ("0", "1", "pipeline")] == ["done", "failed", "done"]
    assert "the loss is" in seen["1"]["why"]
