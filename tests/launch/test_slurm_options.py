"""Keys of topology.slurm in a real Slurm: containers, wrappers, arrays, dependencies; and jobs in an allocation."""

import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from runs import TINY, Freeze, metrics, states, summary, wait_until, weights
from slurm_cluster import NEEDS_SLURM, SlurmCluster
from slurm_runs import (
    HELD,
    ONE_NODE,
    QUICK,
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

pytestmark = [
    pytest.mark.slow,
    NEEDS_SLURM,
]

RECORDS = """#!/bin/sh
printf '%s\\n' "$*" >> {record}
exec "$@"
"""
PYXIS = """#!/bin/bash
# srun of a cluster with pyxis, as far as its options go
if [ "$1" = --help ]; then echo "--container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH"; exit; fi
for word in "$@"; do
  case "$word" in --container-*) echo "$word" >> {record} ;; *) words+=("$word") ;; esac
done
exec /usr/bin/srun "${{words[@]}}"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return submitting_from(tmp_path, monkeypatch)


def program(folder: Path, name: str, text: str) -> Path:
    """An executable that writes into folder/NAME.txt."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text.format(record=folder / f"{name}.txt"))
    path.chmod(0o755)
    return path


@pytest.mark.campaign
@pytest.mark.parametrize("starts", [1, 2])
def test_two_nodes_in_a_container_by_a_wrapper(
    slurm: SlurmCluster, here: Path, freeze: Freeze, monkeypatch: pytest.MonkeyPatch, starts: int
) -> None:
    """No path of this interpreter is in the script; the wrapper finds python3 by PATH, and no Slurm. Preempted, it goes
    on as a job without a container does."""
    bin_folder = here / "bin"
    wrapper = program(bin_folder, "wrapper", RECORDS)
    program(bin_folder, "srun", PYXIS)
    environment = here / "environment"
    environment.mkdir()
    for name in ("python3", "env", "sh"):
        (environment / name).write_text(
            f'#!/bin/sh\nexec {sys.executable if name == "python3" else f"/bin/{name}"} "$@"\n'
        )
        (environment / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:/usr/bin:/bin:/usr/sbin:/sbin")
    words = [f"topology.slurm.wrapper=[{wrapper},env,'PATH={environment}']", "topology.slurm.container_image=image"]
    words += [f"topology.slurm.container_mounts=[{here}:{here}]", "topology.slurm.srun=[--label]"]
    run_dir, job = submitted(here, *TWO_NODES, *words, *HELD, f"callbacks.holds.steps={[5] * (starts - 1)}")
    assert sys.executable not in (run_dir / "slurm/job.sh").read_text()
    if starts == 2:
        held(run_dir, workers=2)
        with slurm.urgent_job("n2"):
            wait_until(lambda: slurm.job(job)["Restarts"] == "1")
    ended = slurm.ended(job)
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), log(run_dir)
    assert_same(run_dir, uninterrupted(freeze, "strategy=ddp", "topology.devices_per_node=2"))
    agent = f"env PATH={environment} python3 -P -m leyden.trainer.entrypoints.slurm_agent {run_dir} resume "
    requeue = f"env PATH={environment} python3 -P -m leyden.trainer.entrypoints.slurm_requeue {run_dir} resume"
    assert sorted((bin_folder / "wrapper.txt").read_text().splitlines()) == [
        *[agent] * 2 * starts, *[f"{requeue} 0 RUNNING ", f"{requeue} 75 RUNNING  PreemptTime=2"][:starts]
    ]  # fmt: skip
    options = ["--container-image=image", f"--container-mounts={here}:{here},{run_dir}:{run_dir}"]
    assert (bin_folder / "srun.txt").read_text().splitlines() == options * 2 * starts


@pytest.mark.campaign
def test_trials_of_an_array_one_after_the_other(slurm: SlurmCluster, here: Path) -> None:
    """The cluster's arrays have 5 tasks: the sixth trial is another job, which waits for them."""
    words = ["-m", *QUICK, *ONE_NODE, "trainer.max_steps=1", "hydra.sweep.dir=mine", "topology.slurm.comment=any text"]
    assert main([*words, "seed=range(6)", "topology.slurm.array_parallelism=1", "topology.slurm.sbatch=[--hold]"]) == 0
    jobs = [job_of(here / "mine" / str(number)) for number in range(6)]
    array = jobs[0].partition("_")[0]
    assert jobs == [*(f"{array}_{number}" for number in range(5)), str(int(array) + 1)]
    assert slurm.job(array)["ArrayTaskThrottle"] == "1"
    assert slurm.job(jobs[5])["Dependency"] == f"afterany:{array}_*(unfulfilled)"
    slurm.run("scancel", *(f"{array}_{number}" for number in range(4)))
    slurm.run("scontrol", "release", array)
    slurm.run("scontrol", "release", jobs[5])
    ended = [slurm.ended(jobs[number]) for number in (4, 5)]
    assert [job["JobState"] for job in ended] == ["COMPLETED"] * 2, log(here / "mine/4")
    times = [datetime.fromisoformat(job[key]) for job in ended for key in ("StartTime", "EndTime")]
    assert times == sorted(times)


def test_a_job_that_waits_for_another(slurm: SlurmCluster, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = slurm.run("sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=true").strip()
    words = [*ONE_NODE, "trainer.max_steps=1", "topology.slurm.job_name=mine"]
    run_dir, job = submitted(here, *words, f"topology.slurm.dependency=afterok:{first}")
    assert slurm.job(job)["JobName"] == "mine"
    assert states(capsys, run_dir)["run"]["why"] == f"Slurm's job {job}: Dependency"
    assert slurm.job(job)["Dependency"] == f"afterok:{first}(unfulfilled)"
    assert main(["stop", str(run_dir)]) == 0
    slurm.run("scancel", first)

    failed = slurm.run("sbatch", "--parsable", "--output=/dev/null", "--wrap=false").strip()
    assert slurm.ended(failed)["JobState"] == "FAILED"
    assert main([*QUICK, *words, f"topology.slurm.dependency=afterok:{failed}", "hydra.run.dir=never"]) == 2
    assert f"topology.slurm.dependency = afterok:{failed}" in capsys.readouterr().err
    assert not (here / "never").exists()


def test_the_status_says_why_a_job_waits_and_for_how_long(
    slurm: SlurmCluster, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = slurm.run("sbatch", "--parsable", "--nodes=2", "--exclusive", "--time=10", "--output=/dev/null",
                     "--wrap=sleep 600").strip()  # fmt: skip
    try:
        wait_until(lambda: slurm.job(busy)["JobState"] == "RUNNING")
        ends = slurm.job(busy)["EndTime"]
        run_dir, job = submitted(here, *ONE_NODE, "topology.slurm.time_min=3")
        wait_until(lambda: states(capsys, run_dir)["run"]["expected_start"] is not None)
        seen = states(capsys, run_dir)["run"]
        assert (seen["state"], seen["expected_start"]) == ("queued", ends)
        assert seen["why"] == f"Slurm's job {job}: Resources; expected to start {ends.replace('T', ' ')}"
        assert main(["stop", str(run_dir)]) == 0
    finally:
        slurm.run("scancel", busy)


def test_steps_of_an_allocation_are_the_workers_of_one_run(slurm: SlurmCluster, here: Path, freeze: Freeze) -> None:
    """`srun` in somebody's `salloc`: topology.launcher=external."""
    alone = freeze("alone", *TINY, "strategy=ddp", "topology=cpu", "topology.devices_per_node=2")
    from leyden.trainer.entrypoints.start import start

    assert start(alone) == 0
    words = [*TINY, "strategy=ddp", "topology=cpu", "topology.launcher=external", "hydra.run.dir=mine"]
    command = ["salloc", "--nodes=1", "--ntasks=2", "srun", "--ntasks=2", sys.executable, "-m", "leyden", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=slurm.environment)
    assert done.returncode == 0, done.stderr
    assert summary(here / "mine")["world_size"] == 2
    assert metrics(here / "mine")["val/loss"] == metrics(alone)["val/loss"]
    assert all((weights(here / "mine")[name] == value).all() for name, value in weights(alone).items())
