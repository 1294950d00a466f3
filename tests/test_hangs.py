"""Runs in which nothing moves any more: they end, and say who is behind."""

import os
import signal
from pathlib import Path

import pytest
from runs import TINY, Freeze, Processes, alive, children, summary, wait_until

from leyden.trainer import checkpoint
from leyden.trainer.config import load
from leyden.trainer.launch.hang import Standing, Stillness, judged
from leyden.trainer.launch.roles import Role
from leyden.trainer.pulse import BACKWARD, DATA, EVALUATION, MEETING, PREPARATION, Beat

DATASET = ["dataset._target_=hang_examples.Stuck", f"python_path=[{Path(__file__).parent}]"]
TWO = ["strategy=ddp", "topology.devices_per_node=2"]
HOST = os.uname().nodename


@pytest.mark.slow
def test_a_worker_stuck_in_its_data_is_named_and_all_start_again(freeze: Freeze, processes: Processes) -> None:
    # an epoch reads 719 samples of each worker: 575 in 18 steps, 144 to validate
    stuck = [*DATASET, "+dataset.rank=1", "+dataset.after=800", "trainer.hang_timeout=5"]
    run_dir = freeze("run", *TINY, *TWO, *stuck, "topology.max_restarts=1")
    code, output = processes.run(run_dir)
    assert code == 0, output
    assert f"rank 1 failed: nothing has moved for 5 s (trainer.hang_timeout): rank 1 on {HOST} is behind" in output
    assert "is behind, in data, at step 21;" in output
    assert "restart 1 of 1 from step=00000018.ckpt" in output
    assert summary(run_dir)["resumed_from_step"] == 18
    stacks = {rank: (run_dir / "hang" / f"rank-{rank}.txt").read_text() for rank in (0, 1)}
    assert "hang_examples.py" in stacks[1]
    assert "backward" in stacks[0]


@pytest.mark.slow
def test_a_stopped_worker_is_named_and_nothing_is_left(freeze: Freeze, processes: Processes) -> None:
    long = ["trainer.max_epochs=5000", "callbacks.checkpoint.every_n_steps=20", "trainer.hang_timeout=5"]
    run_dir = freeze("run", *TINY, *TWO, *long)
    process = processes.start(run_dir)
    wait_until(lambda: len(checkpoint.saved(run_dir)) > 0)
    workers = children(process.pid)
    os.kill(workers[0], signal.SIGSTOP)
    environment = Path(f"/proc/{workers[0]}/environ").read_bytes().split(b"\0")
    rank = int(next(value for value in environment if value.startswith(b"RANK=")).removeprefix(b"RANK="))
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1, output
    assert f"rank {rank} on {HOST} was stopped by a signal, " in output
    assert f"last good checkpoint: {run_dir}" in output
    assert summary(run_dir)["failed_rank"] == rank
    assert "it did not answer" in (run_dir / "hang" / f"rank-{rank}.txt").read_text()
    assert not [pid for pid in workers if alive(pid)]


@pytest.mark.slow
def test_one_worker_alone_ends_itself(freeze: Freeze, processes: Processes) -> None:
    stuck = [*DATASET, "+dataset.rank=0", "+dataset.after=1500", "trainer.hang_timeout=3"]
    run_dir = freeze("run", *TINY, *stuck)
    code, output = processes.run(run_dir)
    assert code == 1, output
    assert f"rank 0 on {HOST} is behind, in data, at step 19;" in output
    assert f"last good checkpoint: {run_dir}" in output
    assert summary(run_dir)["status"] == "failed"
    assert "hang_examples.py" in (run_dir / "hang" / "rank-0.txt").read_text()


@pytest.mark.slow
def test_an_elastic_worker_that_is_stuck_is_started_again(freeze: Freeze, processes: Processes, tmp_path: Path) -> None:
    asgd = ["strategy=asgd", "strategy.elastic=true", "topology.devices_per_node=2", "topology.max_restarts=2"]
    stuck = [*DATASET, "+dataset.rank=1", "+dataset.after=100", f"+dataset.once={tmp_path}/stuck"]
    run_dir = freeze("run", *TINY, *asgd, *stuck, "trainer.hang_timeout=5", "trainer.max_epochs=5000")
    process = processes.start(run_dir)
    log = run_dir / "run.log"
    wait_until(lambda: log.exists() and "worker 1 joins again" in log.read_text(), seconds=120)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 75, output
    assert f"worker 1 on {HOST} is behind, in data, " in output
    assert "; restart 1 of 2" in output


@pytest.mark.slow
def test_a_slow_run_is_left_alone(freeze: Freeze, processes: Processes) -> None:
    # each step reads for a second
    slow = [*DATASET, "+dataset.each_s=0.1", "trainer.hang_timeout=4", "batch_size=10", "trainer.max_steps=7"]
    code, output = processes.run(freeze("run", *TINY, *slow, "trainer.limit_val_batches=1"))
    assert code == 0, output
    assert "nothing has moved" not in output


def stands(rank: int, step: int, phase: int, still_s: float = 9.0, state: str = "S") -> Standing:
    return Standing(Role("worker", rank), "here", step, phase, still_s, state)


@pytest.mark.parametrize(
    ("standings", "behind"),
    [
        ([stands(0, 7, BACKWARD), stands(1, 7, DATA), stands(2, 7, BACKWARD)], [1]),
        ([stands(0, 7, DATA), stands(1, 6, BACKWARD)], [1]),
        ([stands(0, 7, MEETING), stands(1, 7, EVALUATION)], [1]),
        ([stands(0, 7, BACKWARD, state="T"), stands(1, 7, DATA)], [0]),
        ([stands(0, 7, BACKWARD), stands(1, 7, BACKWARD)], [0, 1]),
    ],
)
def test_who_is_behind(standings: list[Standing], behind: list[int], freeze: Freeze) -> None:
    run_dir = freeze("run", *TINY)
    assert [role.number for role in judged(standings, load(run_dir), run_dir).behind] == behind


def test_workers_by_their_own_clocks_that_wait_are_not_behind(freeze: Freeze) -> None:
    run_dir = freeze("run", *TINY, "strategy=asgd", "topology.devices_per_node=2")
    standings = [stands(0, 5, MEETING, still_s=30), stands(1, 9, DATA, still_s=20)]
    assert [role.number for role in judged(standings, load(run_dir), run_dir).behind] == [1]


def test_a_watcher_that_was_stopped_itself_does_not_count_that_time() -> None:
    stillness = Stillness(every_s=1.0)
    assert stillness.look(Beat(1, 0, DATA), 1.0) == 0
    assert stillness.look(Beat(1, 0, DATA), 1.0) == 1
    assert stillness.look(Beat(1, 0, DATA), 3600.0) == 3
    assert stillness.look(Beat(2, 0, BACKWARD), 1.0) == 0
    assert stillness.look(Beat(2, 0, PREPARATION), 100.0) == 0, "data may have to be fetched: no limit"
