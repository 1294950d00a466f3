"""The agent: workers started again, signals at any time, and a store that strangers cannot reach."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from pool import Pool
from runs import TINY, Freeze, Processes, children, summary, wait_until, weights

TWO = [*TINY, "strategy=ddp", "topology.devices_per_node=2", "callbacks.checkpoint.every_n_steps=10"]
HERE = Path(__file__).parent


def killed(tmp_path: Path, rank: int, steps: str, restarts: int, once: bool = True) -> list[str]:
    options = {"_target_": "agent_examples.Killed", "rank": rank, "steps": steps, "notes": tmp_path, "once": once}
    callback = [f"+callbacks.killed.{name}={value}" for name, value in options.items()]
    return [*callback, f"python_path=[{HERE}]", f"topology.max_restarts={restarts}"]


@pytest.mark.slow
def test_a_run_whose_workers_were_killed_ends_as_the_unbroken_one(
    freeze: Freeze, processes: Processes, pools: Callable[[int], Pool], tmp_path: Path
) -> None:
    start = freeze("start", *TWO, "seed=5", "trainer.max_steps=3")
    pools(2).run(start)
    unbroken = freeze("unbroken", *TWO, f"init_from={start}")
    pools(2).run(unbroken)
    # at step 5 nothing has been saved yet
    broken = freeze("broken", *TWO, f"init_from={start}", *killed(tmp_path, 1, "[5,25]", restarts=2))
    process = processes.start(broken, OMP_NUM_THREADS="1")
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert "rank 1 failed: killed by SIGKILL; restart 1 of 2 from its beginning" in output
    assert "rank 1 failed: killed by SIGKILL; restart 2 of 2 from step=00000020.ckpt" in output
    assert summary(broken)["resumed_from_step"] == 20
    one, other = weights(broken), weights(unbroken)
    assert one.keys() == other.keys()
    assert all(bool((one[name] == other[name]).all()) for name in one)


@pytest.mark.slow
def test_a_run_without_restarts_left_fails(freeze: Freeze, processes: Processes, tmp_path: Path) -> None:
    run_dir = freeze("run", *TWO, *killed(tmp_path, 0, "[15]", restarts=1, once=False))
    code, output = processes.run(run_dir)
    assert code == 1
    assert "rank 0 failed: killed by SIGKILL; restart 1 of 1 from step=00000010.ckpt" in output
    assert f"rank 0 failed: killed by SIGKILL\nlast good checkpoint: {run_dir}" in output
    assert summary(run_dir)["failed_rank"] == 0


@pytest.mark.slow
def test_a_signal_before_workers_listen_is_not_lost_and_nobody_else_can_connect(
    freeze: Freeze, processes: Processes
) -> None:
    run_dir = freeze("run", *TWO, "trainer.max_epochs=500")
    process = processes.start(run_dir)
    wait_until(lambda: len(children(process.pid)) == 2)
    process.send_signal(signal.SIGTERM)
    listening = _listening(process.pid)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 75, output
    assert summary(run_dir)["status"] == "preempted"
    assert listening
    assert {address for address, _ in listening} == {"0100007F"}, "127.0.0.1, as the kernel writes it"


@pytest.mark.slow
def test_one_worker_is_started_again_too(freeze: Freeze, processes: Processes, tmp_path: Path) -> None:
    run_dir = freeze("run", *TINY, *killed(tmp_path, 0, "[5]", restarts=1))
    code, output = processes.run(run_dir)
    assert code == 0, output
    assert "restart 1 of 1 from its beginning" in output
    assert summary(run_dir)["steps"] == 36


def _listening(pid: int) -> set[tuple[str, int]]:
    """Addresses and ports that a process listens on, the addresses as hexadecimal numbers."""
    own = {file.readlink().name for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink()}
    found: set[tuple[str, int]] = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                address, port = fields[1].split(":")
                found.add((address, int(port, 16)))
    return found
