"""Several workers: equal to one; and launched as processes of their own, killed, stopped and resumed."""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from pool import Pool
from runs import PATIENCE_S, TINY, Freeze, Processes, alive, apart, by_rank, children, summary, wait_until

from leyden.trainer.entrypoints.start import start
from leyden.trainer.runs import checkpoints

KILLS = int(os.environ.get("LEYDEN_KILLS", "10"))
Pools = Callable[[int], Pool]
DDP = ["strategy=ddp", "topology.devices_per_node=2"]
LONG = [*TINY, "trainer.max_epochs=500", "trainer.log_every_n_steps=10", "callbacks.checkpoint.every_n_steps=20"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "precision", "tolerance"),
    [
        (["model=lenet5", "dataset.image_size=16"], "32-true", 1e-5),
        (["model=mlp", "model.hidden=[32]", "dataset.image_size=8"], "64-true", 1e-10),
        (["model=resnet20", "model.depth=8", "model.norm=group", "dataset.image_size=8"], "64-true", 1e-10),
    ],
    ids=["lenet5", "mlp", "resnet20-group"],
)
def test_two_workers_equal_one(
    freeze: Freeze, pools: Pools, model: list[str], precision: str, tolerance: float
) -> None:
    options = [*model, f"trainer.precision={precision}", "trainer.max_steps=5", "batch_size=48",
               "trainer.limit_val_batches=2", "trainer.limit_test_batches=2"]  # fmt: skip
    one, two = freeze("one", *options), freeze("two", *options, *DDP)
    assert start(one) == 0
    pools(2).run(two)
    assert summary(two)["world_size"] == 2
    assert summary(two)["samples"] == summary(one)["samples"] == 240
    assert apart(two, one) <= tolerance
    for name, value in summary(one)["metrics"].items():
        if name.startswith(("val/", "test/", "train/")):
            assert summary(two)["metrics"][name] == pytest.approx(value, rel=1e-4), name


@pytest.mark.slow
def test_batch_normalization_over_all_workers_equals_one(freeze: Freeze, pools: Pools) -> None:
    options = [
        "model=resnet20", "model.depth=8", "dataset.image_size=8", "trainer.precision=64-true", "trainer.max_steps=3",
        "batch_size=30", "trainer.sync_batchnorm=true", "trainer.limit_val_batches=2", "trainer.limit_test_batches=2",
    ]  # fmt: skip
    one, two = freeze("one", *options), freeze("two", *options, *DDP)
    assert start(one) == 0
    assert "statistics over all workers" in pools(2).run(two)
    assert apart(two, one) <= 1e-9


@pytest.mark.slow
def test_uneven_shares_are_exact_and_evaluation_pads_nothing(freeze: Freeze, pools: Pools) -> None:
    # 1150 training samples in batches of 191 leave 4 for the last: fewer than some workers would like.
    options = [*TINY, "trainer.precision=64-true", "trainer.max_epochs=1"]
    one = freeze("one", *options, "batch_size=383")
    three = freeze("three", *options, "batch_size=383", "strategy=ddp", "topology.devices_per_node=3")
    start(one)
    pools(3).run(three)
    assert summary(one)["steps"] == 4, "1150 = 3 * 383 + 1: the last batch has one sample, and three workers"
    assert apart(three, one) <= 1e-10
    for name in ("val/acc", "val/loss", "test/acc", "train/acc"):
        assert summary(three)["metrics"][name] == pytest.approx(summary(one)["metrics"][name], rel=1e-9), name


@pytest.mark.slow
def test_resume_on_another_number_of_workers(freeze: Freeze, pools: Pools) -> None:
    options = [*TINY, "trainer.precision=64-true", "callbacks.checkpoint.every_n_steps=5",
               "callbacks.checkpoint.keep_last=100"]  # fmt: skip
    whole = freeze("whole", *options)
    start(whole)
    for name, device_count, first in (("one", 1, DDP), ("two", 2, [])):
        run_dir = freeze(name, *options, *first)
        pools(2).run(run_dir) if first else start(run_dir)
        for path in checkpoints.saved_checkpoints(run_dir):
            if checkpoints.step_of(path) > 25:
                path.unlink()
        (run_dir / "checkpoints" / "last.ckpt").unlink()
        strategy = "ddp.DDP" if device_count > 1 else "single.Single"
        (run_dir / "resume.yaml").write_text(
            f"- changed: {{topology.devices_per_node: {device_count}, "
            f"strategy: {{_target_: leyden.trainer.strategies.{strategy}}}}}\n"
        )
        pools(2).run(run_dir, "resume") if device_count == 2 else start(run_dir, "resume")
        assert "step 25" in (run_dir / "run.log").read_text()
        assert summary(run_dir)["world_size"] == device_count
        assert apart(run_dir, whole) <= 1e-10
        for metric in ("train/acc", "val/loss"):
            assert summary(run_dir)["metrics"][metric] == pytest.approx(summary(whole)["metrics"][metric], rel=1e-9)


@pytest.mark.slow
def test_sigterm_to_the_launcher_saves_the_agreed_step(freeze: Freeze, processes: Processes) -> None:
    run_dir = freeze("run", *LONG, *DDP)
    process = processes.start(run_dir)
    wait_until(lambda: len(checkpoints.saved_checkpoints(run_dir)) > 0)
    workers = children(process.pid)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 75, output
    assert summary(run_dir)["status"] == "preempted"
    assert checkpoints.step_of(checkpoints.saved_checkpoints(run_dir)[0]) == summary(run_dir)["steps"]
    assert not [pid for pid in workers if alive(pid)]


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, pytest.param(KILLS, marks=pytest.mark.campaign)])
def test_a_killed_worker_is_the_root_cause_and_no_process_is_left(
    freeze: Freeze, processes: Processes, kills: int
) -> None:
    run_dir = freeze("run", *LONG, *DDP)
    rng = random.Random(0)
    for _ in range(kills):
        process = processes.start(run_dir, "resume")
        wait_until(lambda: "goes on" in _log(run_dir) or "steps an epoch" in _log(run_dir))
        start_step = _newest_step(run_dir)
        wait_until(lambda: _newest_step(run_dir) > start_step)  # noqa: B023
        workers = by_rank(process.pid)
        assert len(workers) == 2
        rank = rng.randrange(2)
        os.kill(workers[rank], signal.SIGKILL)
        output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1, output
        assert f"rank {rank} failed: killed by SIGKILL" in output
        assert "last good checkpoint" in output
        assert summary(run_dir)["failed_rank"] == rank
        assert not [pid for pid in workers.values() if alive(pid)]


@pytest.mark.slow
def test_a_survivor_that_answers_nothing_is_ended_within_ten_seconds(freeze: Freeze, processes: Processes) -> None:
    """As one that waits inside NCCL, which notices no death of a peer: here, one that is stopped."""
    run_dir = freeze("run", *LONG, *DDP)
    process = processes.start(run_dir, "resume")
    wait_until(lambda: _newest_step(run_dir) > 0)
    workers = by_rank(process.pid)
    os.kill(workers[1], signal.SIGSTOP)
    os.kill(workers[0], signal.SIGKILL)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, output
    assert "rank 0 failed: killed by SIGKILL" in output
    assert not [pid for pid in workers.values() if alive(pid)]


@pytest.mark.slow
def test_an_exception_in_one_worker_is_shown_with_its_rank(
    freeze: Freeze, processes: Processes, tmp_path: Path
) -> None:
    (tmp_path / "failing.py").write_text(
        "import torch.distributed as dist\n"
        "class Failing:\n"
        "    def on_step_end(self, state):\n"
        "        if state.step == 5 and dist.get_rank() == 1:\n"
        "            raise RuntimeError('the eleventh hour')\n"
    )
    run_dir = freeze("run", *LONG, *DDP, "+callbacks.failing._target_=failing.Failing", f"python_path=[{tmp_path}]")
    code, output = processes.run(run_dir)
    assert code == 1
    assert "rank 1 failed: RuntimeError: the eleventh hour" in output
    assert "in on_step_end" in output
    assert output.count("Traceback") == 1


@pytest.mark.slow
def test_killing_the_launcher_leaves_no_worker(freeze: Freeze, processes: Processes) -> None:
    run_dir = freeze("run", *LONG, *DDP)
    process = processes.start(run_dir)
    wait_until(lambda: len(checkpoints.saved_checkpoints(run_dir)) > 0)
    workers = children(process.pid)
    assert len(workers) == 2
    process.kill()
    process.wait()
    wait_until(lambda: not [pid for pid in workers if alive(pid)])


@pytest.mark.slow
def test_a_mistake_found_by_the_workers_is_one_message(freeze: Freeze, processes: Processes) -> None:
    run_dir = freeze("run", *TINY, *DDP, "optimizer.lr=-1.0")
    code, output = processes.run(run_dir)
    assert code == 2
    assert "error: optimizer.lr=-1.0: Invalid learning rate: -1.0" in output
    assert "Traceback" not in output
    assert not run_dir.exists()


def _log(run_dir: Path) -> str:
    path = run_dir / "run.log"
    return path.read_text() if path.exists() else ""


def _newest_step(run_dir: Path) -> int:
    found = checkpoints.saved_checkpoints(run_dir)
    return checkpoints.step_of(found[0]) if found else -1
