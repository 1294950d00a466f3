"""The threads of a worker: what it gets, who decides, and that a resumed run has those of its checkpoint."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from machines import build, dgx_like, minwa_like, topology_config
from runs import Freeze, Processes, cut_back, summary, wait_until, weights
from taken_cores import taken_cores

from leyden.trainer.base.log import log
from leyden.trainer.config.schema import load
from leyden.trainer.core import threads
from leyden.trainer.core.checkpoints import checkpoint_io
from leyden.trainer.core.threads import OF_AGENT, OMP, Threads, initial_threads, share_of
from leyden.trainer.entrypoints.start import start
from leyden.trainer.hardware import cpu_contention
from leyden.trainer.hardware.affinity import allowed_cores
from leyden.trainer.hardware.cpu_contention import CpuTime, FamilyTime
from leyden.trainer.hardware.discovery.cpus import cpu_quota, physical_cores
from leyden.trainer.launch.roles import LocalNode, Role, environment_of

CORES = len(os.sched_getaffinity(0))
NET = ["model=lenet5", "topology=cpu", "trainer.enable_progress_bar=false", "trainer.log_every_n_steps=1",
       "callbacks.checkpoint.every_n_steps=3", "callbacks.checkpoint.keep_last=9"]  # fmt: skip
several_cores = pytest.mark.skipif(CORES < 2, reason="needs two cores")


@pytest.fixture(autouse=True)
def nobody_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (OMP, OF_AGENT):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def as_before() -> Iterator[None]:
    kept = threads._start, threads._used, torch.get_num_threads()
    yield
    threads._start, threads._used = kept[:2]
    torch.set_num_threads(kept[2])


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000", "sys/fs/cgroup/a/cpu.max":
          "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "4:memory:/\n1:cpu,cpuacct:/j\n0::/\n",
          "sys/fs/cgroup/cpu,cpuacct/j/cpu.cfs_quota_us": "-1\n",
          "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000",
          "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000"}, 4.0),
    ],
)  # fmt: skip
def test_what_control_groups_allow(files: dict[str, str], quota: float | None, tmp_path: Path) -> None:
    assert cpu_quota(build(tmp_path, files).root) == quota


def test_hyperthreads_of_a_core_are_one_core(tmp_path: Path) -> None:
    """Two sockets of four cores with two threads each: 0 to 3 and 8 to 11 on the first."""
    root = dgx_like(tmp_path).root
    assert physical_cores(range(16), root) == 8
    assert physical_cores({0, 8, 1}, root) == 2
    assert physical_cores({0, 8, 1}, tmp_path / "nowhere") == 3


def test_cores_are_divided_by_the_workers_that_share_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = minwa_like(tmp_path).root
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    cores = physical_cores(range(16), root)
    plain = ["topology.launcher=local", "topology.nodes=1", "topology.device.kind=cpu"]

    def share(*words: str, rank: int = 0) -> int:
        return share_of(topology_config("topology=cpu", *plain, *words), rank, root)

    assert share() == cores
    assert share("topology.devices_per_node=4", "strategy=ddp") == cores // 4
    assert share("topology.devices_per_node=64", "strategy=ddp") == 1
    simulated = ["strategy=easgd", "strategy.execution.simulate=true", "topology.devices_per_node=64"]
    assert share(*simulated) == cores, "one process acts all workers"
    three_to_one = ["topology.devices_per_node=4", "strategy=ddp", "topology.device.sockets=[0,0,0,1]"]
    one_socket = physical_cores(allowed_cores(topology_config(*three_to_one).topology, 4, root)[3], root)
    assert one_socket < cores
    assert [share(*three_to_one, rank=rank) for rank in range(4)] == [max(1, one_socket // 3)] * 3 + [one_socket]
    limited = tmp_path / "limited"
    build(limited, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "350000 100000\n"})
    assert share_of(topology_config("topology=cpu"), 0, limited / "root") == 3


def test_who_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    config = topology_config("topology=cpu")
    share = share_of(config, 0)
    assert initial_threads(config, 0, {}) == Threads(share, "cores", share)
    assert initial_threads(config, 0, {OMP: "7"}) == Threads(7, OMP, share)
    assert initial_threads(config, 0, {OMP: "3,2"}).count == 3
    assert initial_threads(config, 0, {OMP: "many"}).source == initial_threads(config, 0, {OMP: ""}).source == "cores"
    assert initial_threads(config, 0, {OMP: "5", OF_AGENT: "5"}) == Threads(5, "cores", 5), (
        "set by the agent, not by the user"
    )
    worker = environment_of(Role("worker", 0), config, LocalNode())
    assert worker[OMP] == worker[OF_AGENT] == str(share)
    assert environment_of(Role("server", 0), config, LocalNode())[OMP] == "1"
    monkeypatch.setenv(OMP, "7")
    assert not {OMP, OF_AGENT} & environment_of(Role("worker", 0), config, LocalNode()).keys()


@pytest.mark.parametrize(
    ("at_start", "recorded", "workers", "count", "told"),
    [
        (Threads(4, "cores", 4), [2], 1, 2, ""),
        (Threads(4, "cores", 4), [], 1, 4, ""),
        (Threads(4, "cores", 4), [2, 2], 1, 4, ""),
        (Threads(4, "cores", 4), [8], 1, 4, "with 8 threads a worker (this machine has 4 for it), this session"),
        (Threads(1, OMP, 4), [2], 1, 1, "for the same bits: unset OMP_NUM_THREADS"),
        (Threads(1, OMP, 1), [2], 1, 1, "for the same bits: OMP_NUM_THREADS=2"),
        (Threads(2, OMP, 1), [2], 1, 2, ""),
    ],
)
def test_what_a_resumed_run_computes_with(
    at_start: Threads, recorded: list[int], workers: int, count: int, told: str, as_before: None,
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(log, "propagate", True)
    threads._start = at_start
    threads.restore(recorded, 0, workers, silent=False)
    assert threads.current().count == torch.get_num_threads() == count
    assert (told in caplog.text) if told else not caplog.text


def on(processes: Processes, run_dir: Path, verb: str, **environment: str) -> str:
    process = processes.start(run_dir, verb, **environment)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return output


def same_bits(one: Path, other: Path) -> bool:
    theirs = weights(other)
    return all(torch.equal(value, theirs[name]) for name, value in weights(one).items())


@several_cores
@pytest.mark.slow
def test_a_resumed_run_has_the_threads_of_its_checkpoint(
    freeze: Freeze, processes: Processes, tmp_path: Path, as_before: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained with one thread, resumed on a machine that would give it all cores; or with a word where it may not."""
    whole = freeze("whole", *NET, "trainer.max_steps=12", "trainer.limit_val_batches=0", "trainer.limit_test_batches=0")
    said = on(processes, whole, "train", OMP_NUM_THREADS="1")
    assert "1 worker on cpu, 1 thread (OMP_NUM_THREADS), batch" in said
    assert (summary(whole)["threads"], summary(whole)["threads_from"]) == (1, OMP)
    broken, other = (cut_back(whole, tmp_path / name, 6) for name in ("broken", "other"))
    assert checkpoint_io.newest(broken)[1]["threads"] == [1]  # pyright: ignore[reportOptionalSubscript]
    assert share_of(load(broken), 0) > 1
    said = on(processes, broken, "resume")
    assert "1 thread (as in the checkpoint)" in said
    assert "bit for bit" not in said
    assert same_bits(broken, whole)
    monkeypatch.setenv(OMP, "2")
    assert start(other, "resume") == 0
    said = (other / "run.log").read_text()
    assert "the checkpoint was computed with 1 thread a worker, this session computes with 2 threads" in said
    assert "for the same bits: unset OMP_NUM_THREADS" in said
    assert not same_bits(other, whole), "the number of threads makes no difference here: the test shows nothing"


def test_a_process_is_left_as_it_was(as_before: None, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setenv(OMP, "2")
    with threads.hold_threads(topology_config("topology=cpu"), 0):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 1


# other processes


@pytest.mark.parametrize(
    ("others", "processors", "count", "workers", "told"),
    [
        (0.0, 2, 2, 1, None),
        (0.4, 2, 2, 1, None),
        (0.9, 2, 1, 1, None),
        (1.9, 2, 2, 1, "OMP_NUM_THREADS=1"),
        (20.0, 64, 8, 8, "OMP_NUM_THREADS=5"),
        (1.9, 2, 1, 2, "topology.devices_per_node=1"),
        (2.0, 2, 1, 1, "Expect it to be slower"),
    ],
)
def test_a_busy_machine_gets_a_remedy(
    others: float, processors: int, count: int, workers: int, told: str | None
) -> None:
    said = cpu_contention.warning(others, processors, count, workers)
    assert (said is None) if told is None else (said is not None and said.endswith(told))


def test_threads_sleep_before_there_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "Passive")
    fewer = cpu_contention.warning(2.0, 2, 2, 1) or ""
    monkeypatch.delenv("OMP_WAIT_POLICY")
    asleep = cpu_contention.warning(2.0, 2, 2, 1) or ""
    assert fewer.endswith("OMP_NUM_THREADS=1")
    assert asleep.endswith("OMP_WAIT_POLICY=passive")


def measured(folder: Path, ticks: list[int], moment: float, family: FamilyTime) -> CpuTime:
    """Processors 0 and 1, of as many as there are ticks."""
    stat = "".join(f"cpu{n} {busy} 0 0 99 99 0 0 0 0 0\n" for n, busy in enumerate(ticks))
    root = build(folder / str(moment), {"proc/stat": f"cpu {sum(ticks)} 0 0 9 9 0 0 0 0 0\n{stat}"}).root
    return replace(CpuTime.now({0, 1}, os.getpid(), root), at=moment, family=family)


def ours(*seconds: float, reaped: float = 0.0) -> FamilyTime:
    """A family of processes that have used so many seconds; children of the first have used `reaped`."""
    return {(pid, 0.0): (used, 0.0 if pid else reaped) for pid, used in enumerate(seconds)}


def test_only_other_processes_are_counted(tmp_path: Path) -> None:
    before = measured(tmp_path, [100, 100, 0], 0.0, ours(0.6))
    after = measured(tmp_path, [300, 200, 200], 2.0, ours(1.6))
    assert after.others_since(before) == pytest.approx(1.0), "of three seconds on both cores one was ours, in two"
    assert measured(tmp_path, [110, 100, 0], 0.1, ours(0.6)).others_since(before) is None


@pytest.mark.parametrize(
    ("before", "after", "others"),
    [
        (ours(0.6, 600.0), ours(0.6), 1.5),  # nobody of the family has waited for the second: it is not in `reaped`
        (ours(0.6, 600.0), ours(0.6, reaped=601.0), 1.0),
        (ours(0.6), ours(0.6, 0.5), 1.25),
    ],
    ids=["lost", "reaped", "new"],
)
def test_processes_of_the_family_that_end_are_no_load(
    tmp_path: Path, before: FamilyTime, after: FamilyTime, others: float
) -> None:
    """Their time before the interval is in no difference: 300 of 2 cores were once said to be kept by others."""
    one, other = measured(tmp_path, [100, 100], 0.0, before), measured(tmp_path, [300, 200], 2.0, after)
    assert other.others_since(one) == pytest.approx(others)


@pytest.mark.parametrize("ticks", [[60_000, 100], [0, 0]])
def test_a_counter_that_jumps_is_no_measurement(tmp_path: Path, ticks: list[int]) -> None:
    before = measured(tmp_path, [100, 100], 0.0, ours(0.6))
    assert measured(tmp_path, ticks, 2.0, ours(0.6)).others_since(before) is None


SPIN = "import time\nwhile time.process_time() < 0.5: pass\n"


def test_the_family_is_this_process_its_descendants_and_their_ended_children() -> None:
    start_child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {SPIN!r}])\n"
    family = f"{start_child}print(flush=True)\n{SPIN}input()"
    before = cpu_contention._family(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", family], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        wait_until(lambda: sum(map(sum, cpu_contention._family(child.pid).values())) >= 0.9)
        assert cpu_contention._growth(before, cpu_contention._family(os.getpid())) >= 0.9
    finally:
        child.kill()
        child.communicate()


def test_a_process_that_leaves_the_family_takes_no_time_with_it(tmp_path: Path) -> None:
    """A grandchild whose parent is killed becomes another's child, with all that it has used."""
    idle = build(tmp_path, {"proc/stat": "cpu 0 0 0 9 9 0 0 0 0 0\ncpu0 0 0 0 99 99 0 0 0 0 0\n"}).root
    grandchild = f"{SPIN}print(flush=True)\ntime.sleep(9)"
    child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {grandchild!r}])\n"
    with subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        before = CpuTime.now({0}, os.getpid(), idle)
        process.kill()
        process.wait()
        after = replace(CpuTime.now({0}, os.getpid(), idle), at=before.at + 1.0)
        os.killpg(process.pid, signal.SIGKILL)
    assert after.others_since(before) == 0.0


@pytest.mark.slow
def test_a_machine_that_is_really_busy(
    freeze: Freeze, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    measured = cpu_contention.warning_since_start

    def warning_since_start(threads: int, workers: int) -> str | None:
        time.sleep(1)  # a run in this process starts at once: all is imported
        return measured(threads, workers)

    monkeypatch.setattr(cpu_contention, "warning_since_start", warning_since_start)
    run_dir = freeze("run", *NET, "trainer.max_steps=1")
    own = (os.getpid(), 0.0)
    # the others are this test's children
    monkeypatch.setattr(cpu_contention, "_family", lambda ancestor: {own: (time.process_time(), 0.0)})
    with taken_cores(CORES):
        assert start(run_dir) == 0
    assert "this machine is busy: other processes kept" in capfd.readouterr().out
