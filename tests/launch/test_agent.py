"""The agent: restarts, signals at any time, and a store that other hosts cannot reach."""

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from pool import Pool
from runs import HERE, TINY, Freeze, Processes, children, summary, wait_until, weights

from leyden.trainer.config.job import JobSpec
from leyden.trainer.entrypoints.start import worker_spec
from leyden.trainer.launch.agent import failure_of
from leyden.trainer.launch.error_files import ErrorRecord
from leyden.trainer.launch.process import ProcessExit
from leyden.trainer.launch.roles import Role
from leyden.trainer.launch.root_cause import Failure, root_cause
from leyden.trainer.launch.worker_group import RunResult
from leyden.trainer.runs.checkpoints import path_of
from leyden.trainer.runs.summary import write_summary

TWO = [*TINY, "strategy=ddp", "topology.devices_per_node=2", "callbacks.checkpoint.every_n_steps=10"]


def killed(tmp_path: Path, rank: int, steps: str, restarts: int, once: bool = True) -> list[str]:
    options = {"_target_": "agent_examples.Killed", "rank": rank, "steps": steps, "notes": tmp_path, "once": once}
    callback = [f"+callbacks.killed.{name}={value}" for name, value in options.items()]
    return [*callback, HERE, f"topology.max_restarts={restarts}"]


@pytest.mark.slow
def test_a_run_whose_workers_were_killed_equals_an_uninterrupted_one(
    freeze: Freeze, processes: Processes, pools: Callable[[int], Pool], tmp_path: Path
) -> None:
    start = freeze("start", *TWO, "seed=5", "trainer.max_steps=3")
    pools(2).run(start)
    uninterrupted = freeze("uninterrupted", *TWO, f"init_from={start}")
    pools(2).run(uninterrupted)
    # at step 5 nothing has been saved yet
    killed_run = freeze("killed", *TWO, f"init_from={start}", *killed(tmp_path, 1, "[5,25]", restarts=2))
    process = processes.start(killed_run, OMP_NUM_THREADS="1")
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert "rank 1 failed: killed by SIGKILL; restart 1 of 2 from its beginning" in output
    assert "rank 1 failed: killed by SIGKILL; restart 2 of 2 from step=00000020.ckpt" in output
    assert summary(killed_run)["resumed_from_step"] == 20
    one, other = weights(killed_run), weights(uninterrupted)
    assert one.keys() == other.keys()
    assert all(bool((one[name] == other[name]).all()) for name in one)


@pytest.mark.slow
def test_a_restart_passes_over_a_checkpoint_that_was_damaged_meanwhile(
    freeze: Freeze, processes: Processes, tmp_path: Path
) -> None:
    """Also where the user resumed from an older one, so that the newer ones from before are none of this history."""
    callback = [f"+callbacks.dies.{key}" for key in ("_target_=agent_examples.DamagesAndDies", "step=9",
                                                     f"notes={tmp_path}")]  # fmt: skip
    often = ["callbacks.checkpoint.every_n_steps=2", "callbacks.checkpoint.keep_last=9", "trainer.max_steps=12"]
    run_dir = freeze("run", *TINY, *often, *callback, HERE, "topology.max_restarts=1")
    assert processes.run(run_dir)[0] == 0
    whole = weights(run_dir)
    (tmp_path / "armed").touch()
    process = processes.start(run_dir, "resume", checkpoint=path_of(run_dir, 4))
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert "killed by SIGKILL; restart 1 of 1 from step=00000006.ckpt" in output
    assert f"{path_of(run_dir, 8)} is damaged" in output
    assert summary(run_dir)["resumed_from_step"] == 6
    assert all(torch.equal(value, whole[name]) for name, value in weights(run_dir).items())


@pytest.mark.slow
def test_a_run_without_restarts_left_fails(freeze: Freeze, processes: Processes, tmp_path: Path) -> None:
    run_dir = freeze("run", *TWO, *killed(tmp_path, 0, "[15]", restarts=1, once=False))
    code, output = processes.run(run_dir)
    assert code == 1
    assert "rank 0 failed: killed by SIGKILL; restart 1 of 1 from step=00000010.ckpt" in output
    assert f"rank 0 failed: killed by SIGKILL\nlast good checkpoint: {run_dir}" in output
    assert summary(run_dir)["failed_rank"] == 0


@pytest.mark.machine
@pytest.mark.slow
def test_a_signal_before_workers_are_ready_is_not_lost_and_only_the_loopback_is_listened_on(
    freeze: Freeze, processes: Processes
) -> None:
    run_dir = freeze("run", *TWO, "trainer.max_epochs=500")
    process = processes.start(run_dir)
    wait_until(lambda: len(children(process.pid)) == 2)
    process.send_signal(signal.SIGTERM)
    listening: set[str] = set()
    while process.poll() is None:
        listening |= _listening(process.pid)
        time.sleep(0.05)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 75, output
    assert summary(run_dir)["status"] == "preempted"
    assert listening
    assert listening == {"127.0.0.1"}


@pytest.mark.slow
def test_a_single_worker_is_restarted(freeze: Freeze, processes: Processes, tmp_path: Path) -> None:
    run_dir = freeze("run", *TINY, *killed(tmp_path, 0, "[5]", restarts=1))
    code, output = processes.run(run_dir)
    assert code == 0, output
    assert "restart 1 of 1 from its beginning" in output
    assert summary(run_dir)["steps"] == 36


def _listening(pid: int) -> set[str]:
    """Addresses that a process listens on; none where it has ended."""
    with suppress(psutil.Error):
        found = psutil.Process(pid).net_connections("tcp")
        return {connection.laddr[0] for connection in found if connection.status == psutil.CONN_LISTEN}
    return set()


def test_the_root_cause_is_the_exit_without_an_error_not_the_peer_that_noticed() -> None:
    def exit_of(
        rank: int, code: int, when: float, error: ErrorRecord | None = None, by_agent: bool = False
    ) -> ProcessExit:
        return ProcessExit(Role("worker", rank), code, when, by_agent, error)

    noticed = ErrorRecord(1.0, "RuntimeError: Connection closed by peer", False, "Traceback")
    aborted, ended = exit_of(0, -signal.SIGABRT, 1.0), exit_of(3, -signal.SIGKILL, 5.0, by_agent=True)
    assert str(root_cause([aborted, exit_of(1, 1, 1.1, noticed), exit_of(2, -9, 1.2), ended])) == (
        "rank 2 failed: killed by SIGKILL"
    )
    assert str(root_cause([aborted, exit_of(1, 1, 1.1, noticed), exit_of(2, 3, 1.2), ended])) == (
        "rank 2 failed: exit code 3"
    )
    earlier = ErrorRecord(0.9, "ValueError: the first", False, "Traceback")
    assert str(root_cause([aborted, exit_of(1, 1, 1.1, noticed), exit_of(2, 1, 1.2, earlier), ended])) == (
        "rank 2 failed: ValueError: the first"
    )


def test_a_run_whose_workers_have_all_ended_is_done_though_an_agent_was_silent(freeze: Freeze) -> None:
    """On an overloaded machine one agent took the other for lost, after the last step."""
    run_dir = freeze("run", *TWO)
    write_summary(run_dir, {"status": "done"})
    job = worker_spec(JobSpec.load(run_dir))

    def after(*codes: int) -> Failure | None:
        exits = [ProcessExit(Role("worker", rank), code, 1.0, code != 0, None) for rank, code in enumerate(codes)]
        return failure_of(job, RunResult(True, exits))

    assert after(0, 0) is None
    for codes in ((0,), (0, -signal.SIGKILL)):
        assert "one of them was silent for too long" in str(after(*codes))
    write_summary(run_dir, {"status": "running"})
    assert after(0, 0) is not None
