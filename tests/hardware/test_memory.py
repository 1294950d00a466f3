"""How much memory is left, on recorded machines and on this one, and what is done with what a step has freed."""

import subprocess
import sys
from pathlib import Path

import pytest
from runs import POINTS, Freeze, Processes, summary, task

from leyden.trainer.entrypoints.start import start
from leyden.trainer.hardware.discovery.memory import free_bytes, memory_gb, oom_kills
from leyden.trainer.hopping.snapshot import short_of_memory

MEMINFO = "MemTotal:       24000000 kB\nMemFree:         100000 kB\nMemAvailable:   20000000 kB\n"
HOST = 20_000_000 * 1024


def machine(root: Path, **files: str) -> Path:
    """A tree of /proc and /sys. `files`: by path, / being __."""
    for name, text in {"proc__meminfo": MEMINFO, **files}.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def limited(root: Path, version: int) -> Path:
    """8 GB for a job, 6 of them taken, of which 1 is of files that were read; its task may take what it wants."""
    if version == 2:
        job = root / "sys/fs/cgroup/slurm/job_7"
        files = {"memory.max": "8000000000", "memory.current": "6000000000", "memory.stat": "inactive_file 1000000000"}
        task = {"memory.max": "max", "memory.current": "6000000000"}
        named = "0::/slurm/job_7/task_0\n"
    else:
        job = root / "sys/fs/cgroup/memory/slurm/job_7"
        files = {
            "memory.limit_in_bytes": "8000000000", "memory.usage_in_bytes": "6000000000",
            "memory.stat": "inactive_file 5\ntotal_inactive_file 1000000000",
        }  # fmt: skip
        task = {"memory.limit_in_bytes": "9223372036854771712", "memory.usage_in_bytes": "6000000000"}
        named = "5:cpu:/elsewhere\n4:memory:/slurm/job_7/task_0\n0::/\n"
    (job / "task_0").mkdir(parents=True)
    for folder, contents in ((job, files), (job / "task_0", task)):
        for name, text in contents.items():
            (folder / name).write_text(text + "\n")
    return machine(root, proc__self__cgroup=named)


def test_memory_that_is_left(tmp_path: Path) -> None:
    assert free_bytes(machine(tmp_path / "host")) == HOST
    assert memory_gb(tmp_path / "host") == 22.9
    assert free_bytes(tmp_path / "nothing") is None


@pytest.mark.parametrize("version", [1, 2])
def test_a_job_has_less_than_its_host(version: int, tmp_path: Path) -> None:
    root = limited(tmp_path, version)
    assert free_bytes(root) == 3_000_000_000
    assert not short_of_memory(300_000_000, workers=2, root=root)
    assert short_of_memory(300_000_000, workers=3, root=root)


@pytest.mark.parametrize("version", [1, 2])
def test_processes_that_the_kernel_has_killed(version: int, tmp_path: Path) -> None:
    root = limited(tmp_path, version)
    assert oom_kills(root) == oom_kills(tmp_path / "nothing") == 0, "it says nothing of them"
    file, before = ("memory.oom_control", "oom_kill_disable 7\n") if version == 1 else ("memory.events", "oom 9\n")
    (task,) = root.rglob("task_0")
    (task / file).write_text(f"{before}oom_kill 3\n")
    assert oom_kills(root) == 3


def test_this_machine() -> None:
    free, total = free_bytes(), memory_gb()
    assert free is not None
    assert total is not None
    assert 0 < free <= total * 2**30


STEPS = """
import resource
from leyden.trainer.base.process import keep_freed_memory
{}
def step():
    return [b"x" * 30_000_000 for _ in range(3)]
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_memory_of_a_step_is_used_in_the_next() -> None:
    pages = 5 * 90_000_000 // 4096
    faults = {call: _faults(call) for call in ("", "keep_freed_memory()")}
    if faults[""] < pages / 2:
        pytest.skip("this C library keeps it by itself")
    assert faults["keep_freed_memory()"] < pages / 20


def _faults(call: str) -> int:
    return int(subprocess.run([sys.executable, "-c", STEPS.format(call)], capture_output=True, check=True).stdout)


LESS = ["try: trainer.accumulate_grad_batches=2", "trainer.precision=bf16-mixed"]


def test_a_run_without_memory_says_what_needs_less(freeze: Freeze, capfd: pytest.CaptureFixture[str]) -> None:
    run_dir = freeze("run", *POINTS, task("NeedsTooMuch"))
    assert start(run_dir) == 1
    error = capfd.readouterr().err
    assert "out of memory in step 3: " in error
    assert "tried to allocate" in error
    assert all(words in error for words in LESS)
    assert "strategy=fsdp" not in error, "of one worker nothing can be divided"
    assert "Traceback" not in error
    assert summary(run_dir)["status"] == "failed"


@pytest.mark.slow
def test_of_two_workers_without_memory_it_is_said_once(freeze: Freeze, processes: Processes) -> None:
    two = ["topology.devices_per_node=2", "strategy=ddp", "trainer.accumulate_grad_batches=4"]
    run_dir = freeze("run", *POINTS, task("NeedsTooMuch"), *two)
    code, output = processes.run(run_dir)
    assert code == 1
    assert "out of memory in step" in output
    assert "strategy=fsdp (" in output
    assert "accumulate_grad_batches=8" not in output, "8 samples of two workers cannot be 8 parts"
    assert "Traceback" not in output
