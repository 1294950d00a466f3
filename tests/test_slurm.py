"""Runs through a real Slurm: two nodes on this machine. What needs no cluster is in test_slurm_script.py."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from runs import TINY, Freeze, distance, rows, summary, wait_until, weights
from slurm_cluster import SlurmCluster, available

from leyden.trainer import checkpoint, cli
from leyden.trainer.launch import start

HERE = Path(__file__).parent
QUICK = [*TINY, "trainer.precision=64-true", "trainer.max_steps=40", "trainer.enable_progress_bar=false"]
HELD = ["+callbacks.holds._target_=slurm_examples.Holds"]
TWO_NODES = ["topology=slurm", "topology.device.kind=cpu", "topology.nodes=2", "strategy=ddp"]
ONE_NODE = ["topology=slurm", "topology.device.kind=cpu"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not available(), reason="needs root, slurmctld, slurmd and munged"),
]


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    with pytest.MonkeyPatch.context() as patch:
        cluster = SlurmCluster()
        patch.setenv("SLURM_CONF", str(cluster.config))
        yield cluster
        cluster.stop()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, from which Slurm's jobs import slurm_examples."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    # a worker alone on its node would compute with more threads than one of two, and sum in another order
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


@pytest.fixture(scope="module", autouse=True)
def limited(slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run whose job has a minute. Slurm looks at the clock twice a minute: meanwhile the other tests run."""
    longer = 'test -z "$SLURM_RESTART_COUNT" || scontrol update JobId=$SLURM_JOB_ID TimeLimit=60'
    limit = ["topology.slurm.time_min=1", "topology.slurm.signal_s=50", f"topology.slurm.setup=['{longer}']"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE))
        patch.setattr(sys, "path", list(sys.path))
        return submitted(tmp_path_factory.mktemp("limited"), *ONE_NODE, *limit, *HELD, "callbacks.holds.steps=[5]")


def submitted(here: Path, *overrides: str) -> tuple[Path, str]:
    """A run that Slurm has taken, and its job's number."""
    run_dir = here / "run"
    assert cli.main([*QUICK, *overrides, f"hydra.run.dir={run_dir}"]) == 0
    return run_dir, json.loads((run_dir / "slurm.json").read_text())["job_id"]


def log(run_dir: Path) -> str:
    path = run_dir / "slurm" / "job.log"
    return path.read_text() if path.exists() else ""


def held(run_dir: Path, step: int, workers: int = 1) -> None:
    try:
        wait_until(lambda: len(list(run_dir.glob(f"held-{step}-*"))) == workers, 120)
    except AssertionError:
        raise AssertionError(log(run_dir)) from None


def unbroken(freeze: Freeze, *overrides: str) -> Path:
    """The same run, never stopped, without Slurm."""
    run_dir = freeze(f"unbroken-{len(overrides)}", *QUICK, *HELD, "+callbacks.holds.steps=[]", *overrides)
    assert start(run_dir) == 0
    return run_dir


def assert_same(run_dir: Path, whole: Path) -> None:
    """Bit for bit, and logged as one run."""
    ours, theirs = weights(run_dir), weights(whole)
    assert all((ours[name] == theirs[name]).all() for name in theirs)
    assert_one_run(run_dir)


def assert_one_run(run_dir: Path) -> None:
    """Done, one TensorBoard run, every epoch logged once."""
    assert summary(run_dir)["status"] == "done"
    assert {path.parent for path in run_dir.rglob("events.out.tfevents.*")} == {run_dir}
    epochs = [row["epoch"] for row in rows(run_dir) if row.get("val/acc")]
    assert len(epochs) == len(set(epochs)) == 2


def test_two_nodes_are_one_run_however_often_they_are_stopped(slurm: SlurmCluster, here: Path, freeze: Freeze) -> None:
    run_dir, job = submitted(here, *TWO_NODES, *HELD, "callbacks.holds.steps=[5,12]")
    held(run_dir, 5, workers=2)
    slurm.run("scontrol", "requeue", job)
    held(run_dir, 12, workers=2)
    assert summary(run_dir)["status"] == "running"
    slurm.run("scancel", "--signal=TERM", job)  # what preemption with GraceTime does
    ended = slurm.ended(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "2"), log(run_dir)
    assert summary(run_dir)["world_size"] == 2
    assert distance(weights(run_dir), weights(unbroken(freeze))) <= 1e-10
    assert_same(run_dir, unbroken(freeze, "strategy=ddp", "topology.devices_per_node=2"))


def test_a_node_that_dies(slurm: SlurmCluster, here: Path, freeze: Freeze) -> None:
    run_dir, job = submitted(
        here, *TWO_NODES, *HELD, "callbacks.holds.steps=[25]", "callbacks.checkpoint.every_n_steps=10"
    )
    held(run_dir, 25, workers=2)
    slurm.kill_node("n2")
    wait_until(lambda: slurm.job(job)["Restarts"] == "1", 120)
    slurm.start_node("n2")
    assert slurm.ended(job)["JobState"] == "COMPLETED", log(run_dir)
    assert distance(weights(run_dir), weights(unbroken(freeze))) <= 1e-10
    assert_one_run(run_dir)


def test_a_run_that_shall_stop_is_not_queued_again(slurm: SlurmCluster, here: Path) -> None:
    run_dir, job = submitted(here, *ONE_NODE, *HELD, "callbacks.holds.steps=[5]")
    held(run_dir, 5)
    assert cli.main(["resume", str(run_dir)]) == 2  # it is running
    (run_dir / "stop_requested").touch()
    slurm.run("scancel", "--signal=TERM", job)
    ended = slurm.ended(job)
    assert (ended["JobState"], ended["Restarts"], ended["ExitCode"]) == ("FAILED", "0", "75:0")
    assert summary(run_dir)["status"] == "preempted"
    assert "not queued again: its run was asked to stop" in log(run_dir)

    (run_dir / "held-5-0").unlink()
    assert cli.main(["resume", str(run_dir / "checkpoints/last.ckpt"), "trainer.max_steps=6"]) == 0
    assert not (run_dir / "stop_requested").exists()
    again = json.loads((run_dir / "slurm.json").read_text())["job_id"]
    assert slurm.ended(again)["JobState"] == "COMPLETED", log(run_dir)
    assert summary(run_dir)["steps"] == 6


def test_a_cancelled_job_saves_and_is_gone(slurm: SlurmCluster, here: Path) -> None:
    # a process that reads data hears the signal, too
    run_dir, job = submitted(here, *ONE_NODE, *HELD, "callbacks.holds.steps=[5]", "dataset.num_workers=1")
    held(run_dir, 5)
    slurm.run("scancel", job)
    ended = slurm.ended(job)
    assert (ended["JobState"], ended["Restarts"]) == ("CANCELLED", "0")
    wait_until(lambda: summary(run_dir)["status"] == "preempted")
    assert checkpoint.step_of(checkpoint.saved(run_dir)[0]) == summary(run_dir)["steps"] == 5


FAILS = """
class Fails:
    def on_step_end(self, state):
        if state.config.seed == 2 and state.step == 3:
            raise RuntimeError("on purpose")
"""


def test_a_sweep_is_one_array(slurm: SlurmCluster, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "failing.py").write_text(FAILS)
    words = [*QUICK, *ONE_NODE, "+callbacks.fails._target_=failing.Fails", "seed=0,1,2", "hydra.sweep.dir=mine"]
    assert cli.main(["-m", *words]) == 0
    folders = [here / "mine" / name for name in "012"]
    jobs = [json.loads((folder / "slurm.json").read_text())["job_id"] for folder in folders]
    array = jobs[0].partition("_")[0]
    assert jobs == [f"{array}_{number}" for number in range(3)]
    assert f"job {array}_1" in capsys.readouterr().out
    assert not any((folder / "summary.json").exists() for folder in folders)  # it has waited for none

    ended = [slurm.ended(job) for job in jobs]
    assert [job["JobState"] for job in ended] == ["COMPLETED", "COMPLETED", "FAILED"], log(folders[0])
    assert ended[2]["ExitCode"] == "1:0"
    assert [summary(folder)["status"] for folder in folders] == ["done", "done", "failed"]
    assert "on purpose" in log(folders[2])
    assert [json.loads((folder / "slurm.json").read_text())["job_id"] for folder in folders] == jobs


def test_a_sweep_over_topologies_is_several_jobs_and_all_or_none(slurm: SlurmCluster, here: Path) -> None:
    words = [*QUICK, *ONE_NODE, "strategy=ddp", "topology.slurm.time_min=5,6", "hydra.sweep.dir=mine"]
    words += ["topology.slurm.sbatch=[--hold]"]
    assert cli.main(["-m", *words, "topology.slurm.partition=all,nowhere"]) == 2
    assert not list(here.iterdir())
    assert "mine" not in slurm.run("squeue", "--noheader", "--format=%j")
    assert cli.main(["-m", *words]) == 0
    one, other = [json.loads((here / "mine" / name / "slurm.json").read_text())["job_id"] for name in "01"]
    assert one.isdigit()
    assert int(other) == int(one) + 1
    slurm.run("scancel", one, other)


@pytest.mark.parametrize(
    ("wrong", "told"),
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
    slurm: SlurmCluster, here: Path, capsys: pytest.CaptureFixture[str], wrong: str, told: str
) -> None:
    assert cli.main([*QUICK, *ONE_NODE, "strategy=ddp", *wrong.split()]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert wrong.partition("=")[0] in error
    assert not list(here.iterdir())


def test_the_time_limit_stops_a_run_that_then_goes_on(
    slurm: SlurmCluster, limited: tuple[Path, str], freeze: Freeze
) -> None:
    run_dir, job = limited
    ended = slurm.ended(job)
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), log(run_dir)
    assert_same(run_dir, unbroken(freeze))
