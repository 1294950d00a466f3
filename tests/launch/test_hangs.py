"""Runs that make no progress: they end, and name the stragglers."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from runs import HERE, PATIENCE_S, TINY, Freeze, Processes, alive, by_rank, summary, wait_until

from leyden.trainer.base.heartbeat import (
    BACKWARD,
    CALLBACKS,
    CHECKPOINT,
    DATA,
    EVALUATION,
    FORWARD,
    PREPARATION,
    START,
    SYNCHRONIZATION,
    Heartbeat,
    HeartbeatReading,
)
from leyden.trainer.config.job import JobSpec
from leyden.trainer.config.schema import load
from leyden.trainer.launch.hangs import detector
from leyden.trainer.launch.hangs.diagnosis import StallTimer, diagnose, stacks_folder, warning
from leyden.trainer.launch.hangs.storage_watch import StorageProbe, StorageWatch
from leyden.trainer.launch.hangs.suspicion import Suspicion, cpu_seconds_of
from leyden.trainer.launch.hangs.watchdog import Watchdog
from leyden.trainer.launch.peers import NoPeers
from leyden.trainer.launch.progress_report import ProgressReport
from leyden.trainer.launch.roles import Role
from leyden.trainer.runs import checkpoints
from leyden.trainer.runs.summary import write_summary

DATASET = ["dataset._target_=hang_examples.Stuck", HERE]
TWO = ["strategy=ddp", "topology.devices_per_node=2"]
HOST = os.uname().nodename


@pytest.mark.machine
@pytest.mark.slow
def test_a_worker_that_hangs_in_its_data_is_named_and_all_restart(freeze: Freeze, processes: Processes) -> None:
    # an epoch reads 719 samples of each worker: 575 in 18 steps, 144 to validate
    stuck = [*DATASET, "+dataset.rank=1", "+dataset.after=800", "trainer.hang_timeout=5"]
    run_dir = freeze("run", *TINY, *TWO, *stuck, "topology.max_restarts=1")
    code, output = processes.run(run_dir)
    assert code == 0, output
    assert f"rank 1 failed: no progress for 5 s (trainer.hang_timeout): rank 1 on {HOST} is behind" in output
    assert "is behind, in data, at step 21;" in output
    assert "restart 1 of 1 from step=00000018.ckpt" in output
    assert summary(run_dir)["resumed_from_step"] == 18
    stacks = {rank: (run_dir / "hang" / f"rank-{rank}.txt").read_text() for rank in (0, 1)}
    assert "hang_examples.py" in stacks[1]
    assert "backward" in stacks[0]


@pytest.mark.machine
@pytest.mark.slow
def test_a_stopped_worker_is_named_and_nothing_is_left(freeze: Freeze, processes: Processes) -> None:
    long = ["trainer.max_epochs=5000", "callbacks.checkpoint.every_n_steps=20", "trainer.hang_timeout=5"]
    run_dir = freeze("run", *TINY, *TWO, *long)
    process = processes.start(run_dir)
    wait_until(lambda: len(checkpoints.saved_checkpoints(run_dir)) > 0)
    workers = by_rank(process.pid)
    rank = min(workers)
    os.kill(workers[rank], signal.SIGSTOP)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1, output
    assert f"rank {rank} on {HOST} was stopped by a signal, " in output
    assert f"last good checkpoint: {run_dir}" in output
    assert summary(run_dir)["failed_rank"] == rank
    assert "it did not answer" in (run_dir / "hang" / f"rank-{rank}.txt").read_text()
    assert not [pid for pid in workers.values() if alive(pid)]


@pytest.mark.machine
@pytest.mark.slow
def test_an_elastic_worker_that_hangs_is_restarted(freeze: Freeze, processes: Processes, tmp_path: Path) -> None:
    asgd = [
        "strategy=asgd",
        "strategy.execution.elastic=true",
        "topology.devices_per_node=2",
        "topology.max_restarts=2",
    ]
    stuck = [*DATASET, "+dataset.rank=1", "+dataset.after=100", f"+dataset.once={tmp_path}/stuck"]
    run_dir = freeze("run", *TINY, *asgd, *stuck, "trainer.hang_timeout=5", "trainer.max_epochs=5000")
    process = processes.start(run_dir)
    log = run_dir / "run.log"
    wait_until(lambda: log.exists() and "worker 1 joins again" in log.read_text())
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 75, output
    assert f"worker 1 on {HOST} is behind, in data, " in output
    assert "; restart 1 of 2" in output


@pytest.mark.machine
@pytest.mark.slow
def test_a_slow_run_is_left_alone(freeze: Freeze, processes: Processes) -> None:
    # each step reads for a second
    slow = [*DATASET, "+dataset.each_s=0.1", "trainer.hang_timeout=4", "batch_size=10", "trainer.max_steps=5"]
    code, output = processes.run(freeze("run", *TINY, *slow, "trainer.limit_val_batches=1"))
    assert code == 0, output
    assert "no progress" not in output


@pytest.mark.slow
def test_a_stopped_worker_is_said_and_the_run_goes_on(freeze: Freeze, processes: Processes) -> None:
    """Long before trainer.hang_timeout, and without an end: the worker may only have been stopped for a while."""
    run_dir = freeze("run", *TINY, *TWO, "trainer.max_epochs=5000", "trainer.hang_timeout=600")
    process = processes.start(run_dir)
    wait_until((run_dir / "progress.json").exists)
    stopped = by_rank(process.pid)[1]
    os.kill(stopped, signal.SIGSTOP)
    assert process.stdout is not None
    line = next(line for line in process.stdout if "leyden: warning: no progress" in line)
    assert f"rank 1 on {HOST} was stopped by a signal, in " in line
    assert "the run ends after 600 s (trainer.hang_timeout)" in line
    os.kill(stopped, signal.SIGCONT)
    assert "without progress" in next(line for line in process.stdout if "leyden: the run goes on" in line)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 75


@pytest.mark.slow
def test_a_single_worker_whose_data_is_stuck_says_so_and_the_watchdog_ends_it(
    freeze: Freeze, processes: Processes
) -> None:
    stuck = [*DATASET, "+dataset.rank=0", "+dataset.after=1500", "trainer.hang_timeout=14"]
    run_dir = freeze("run", *TINY, *stuck)
    code, output = processes.run(run_dir)
    assert code == 1, output
    assert f"ever before: rank 0 on {HOST} is behind, in data, at step 19; the run ends after 14 s" in output
    assert output.count(f"rank 0 on {HOST} is behind, in data, at step 19;") == 2, "it says so, and why it ends"
    assert f"last good checkpoint: {run_dir}" in output
    assert summary(run_dir)["status"] == "failed"
    assert "hang_examples.py" in (run_dir / "hang" / "rank-0.txt").read_text()


class FakeProcess:
    """Readings of a process once a second, and its CPU time."""

    def __init__(self, cores: float = 0.0):
        self.clock = self.cpu = 0.0
        self.cores = cores
        self.number = 0
        self.suspicion = Suspicion(lambda: self.cpu)

    def stall(self, monkeypatch: pytest.MonkeyPatch, phase: int, seconds: int) -> int | None:
        """A heartbeat, and then none for so many seconds. Returns the second of the first suspicion."""
        monkeypatch.setattr("leyden.trainer.launch.hangs.suspicion.time.monotonic", lambda: self.clock)
        self.number += 1
        found = None
        for second in range(seconds + 1):
            self.clock += 1
            self.cpu += self.cores
            if self.suspicion.update(HeartbeatReading(self.number, 1, phase), float(second)) and found is None:
                found = second
        return found


@pytest.mark.parametrize(
    ("phase", "before", "seconds", "expected"),
    [
        (DATA, 0, 30, 10),
        (DATA, 5, 30, 20),
        (BACKWARD, 5, 30, 20),
        (CHECKPOINT, 0, 90, 60),
        (PREPARATION, 0, 500, None),
        (START, 0, 500, None),
    ],
)
def test_suspicion_is_learned_from_each_phase(
    monkeypatch: pytest.MonkeyPatch, phase: int, before: int, seconds: int, expected: int | None
) -> None:
    process = FakeProcess()
    assert process.stall(monkeypatch, phase, before) is None
    assert process.stall(monkeypatch, SYNCHRONIZATION, 3) is None, "of another phase"
    assert process.stall(monkeypatch, phase, seconds) == expected
    assert not process.suspicion.busy


@pytest.mark.slow
def test_one_that_waits_for_a_core_computes_and_one_that_sleeps_does_not() -> None:
    """On a shared machine a worker may hardly get a core."""
    core = min(os.sched_getaffinity(0))
    begin = f"import os, time; os.sched_setaffinity(0, {{{core}}})"
    last = "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))"
    wait, compute = "print(flush=True); time.sleep(60)", "print(flush=True)\nwhile True: pass"
    programs = {"neighbour": [begin, compute], "computes": [begin, last, compute], "sleeps": [begin, last, wait]}
    started = {
        name: subprocess.Popen([sys.executable, "-c", "; ".join(lines)], stdout=subprocess.PIPE)
        for name, lines in reversed(programs.items())
    }
    try:
        for process in started.values():
            assert process.stdout is not None
            process.stdout.readline()
        before = {name: cpu_seconds_of(process.pid) for name, process in started.items()}
        spent, end = dict.fromkeys(started, 0.0), time.monotonic() + 60
        # the kernel adds a wait for a core when it ends, which can take seconds for the last in the queue
        while spent["computes"] <= 1.0 and time.monotonic() < end:
            time.sleep(0.5)
            spent = {name: cpu_seconds_of(process.pid) - before[name] for name, process in started.items()}
    finally:
        for process in started.values():
            process.kill()
            process.communicate()
    assert spent["computes"] > 1.0
    assert spent["sleeps"] < 0.3


def test_a_process_that_computes_is_busy(monkeypatch: pytest.MonkeyPatch, freeze: Freeze) -> None:
    """A compilation pauses all workers: nothing is said before it has taken five minutes."""
    process = FakeProcess(cores=1.0)
    process.stall(monkeypatch, FORWARD, 30)
    assert process.suspicion.busy
    config = load(freeze("run", *TINY))
    waits = report(0, 1, BACKWARD, stalled_s=30)
    compiles = replace(report(1, 1, FORWARD, stalled_s=30), busy=True)
    assert warning([waits, compiles], config) is None
    assert "rank 1 on here is behind, in forward" in str(warning([waits, replace(compiles, busy=False)], config))
    assert "rank 1 on here is behind, in forward" in str(warning([waits, replace(compiles, stalled_s=301)], config))
    spins = replace(waits, busy=True)
    assert "rank 1" in str(warning([spins, replace(compiles, busy=False)], config)), (
        "one that waits may keep a core busy"
    )


@dataclass
class Spell:
    """Seconds for which a worker of a test gives no heartbeat."""

    seconds: int
    phase: int
    first_time: bool = False
    status: str = "sleeping"


class FakeWorker:
    """A worker that goes through spells, once a second of the test's clock."""

    exit = None
    has_begun = True

    def __init__(self, rank: int, spells: list[Spell]):
        self.role, self.pid = Role("worker", rank), rank
        self._spells = [(number, spell) for number, spell in enumerate(spells) for _ in range(spell.seconds)]
        self.second = 0

    @property
    def spell(self) -> Spell:
        return self._spells[self.second][1]

    def heartbeat(self) -> HeartbeatReading:
        number, spell = self._spells[self.second]
        return HeartbeatReading(number, 1, spell.phase, spell.first_time)


def said_in_second(freeze: Freeze, monkeypatch: pytest.MonkeyPatch, workers: list[list[Spell]]) -> int | None:
    """The second in which the detector of these workers says that they make no progress; None: not at all."""
    found: Any = [FakeWorker(rank, spells) for rank, spells in enumerate(workers)]
    clock = [0.0]
    monkeypatch.setattr(detector, "cpu_seconds_of", lambda pid: 0.0)
    monkeypatch.setattr(detector, "_status_of", lambda pid: found[pid].spell.status)
    monkeypatch.setattr(StorageProbe, "silent_s", lambda self: 0.0)
    run_dir = freeze("run", *TINY)
    with monkeypatch.context() as patched:
        patched.setattr(detector.time, "monotonic", lambda: clock[0])
        watch = detector.HangDetector(JobSpec.load(run_dir), NoPeers(), run_dir)
        for second in range(len(found[0]._spells)):
            clock[0] += 1.0
            for worker in found:
                worker.second = second
            watch.poll(found)
            if watch._warned_at is not None:
                return second
    return None


STEP = Spell(3, FORWARD)
"""Phases that take a second or three before, and what of them is learned."""


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        ([[STEP, Spell(200, EVALUATION, True)]], 120),
        ([[STEP, Spell(200, EVALUATION, True)]] * 2, 120),
        ([[STEP, Spell(200, SYNCHRONIZATION, True)]] * 3, 120),
        ([[STEP, Spell(200, CHECKPOINT, True)]] * 2, 120),
        ([[STEP, Spell(200, EVALUATION)]], 10),
        ([[STEP, Spell(200, EVALUATION)]] * 2, 10),
        ([[STEP, Spell(200, EVALUATION, True)], [STEP, Spell(200, EVALUATION)]], 10),
        ([[STEP, Spell(200, SYNCHRONIZATION)], [STEP, Spell(200, EVALUATION, True)]], 10),
        ([[STEP, Spell(200, BACKWARD, True)], [STEP, Spell(200, DATA, True)]], 10),
        ([[STEP, Spell(200, CHECKPOINT, True)], [STEP, Spell(200, SYNCHRONIZATION)]], 60),
        ([[STEP, Spell(200, DATA, True, psutil.STATUS_STOPPED)]], 10),
        ([[STEP, Spell(200, DATA, True, psutil.STATUS_STOPPED)], [STEP, Spell(200, DATA, True)]], 10),
        ([[Spell(9, DATA), Spell(200, DATA, status=psutil.STATUS_STOPPED)], [Spell(9, BACKWARD), Spell(200, BACKWARD)]],
         10 + 9 - STEP.seconds),
    ],
    ids=["alone in a first validation", "both in it", "all in a first exchange", "both in a first save",
         "alone where it was before", "both where they were before", "one of them for the first time",
         "one waits for the other's first validation", "one waits for the other's first batch",
         "one waits for the other's save", "stopped alone", "stopped in a first batch", "stopped, after long waits"],
)  # fmt: skip
def test_a_first_time_is_left_alone_unless_somebody_waits(
    freeze: Freeze, monkeypatch: pytest.MonkeyPatch, workers: list[list[Spell]], expected: int
) -> None:
    """The second counts from the beginning of the last spell, which the first reading finds."""
    assert said_in_second(freeze, monkeypatch, workers) == expected + STEP.seconds


@pytest.mark.parametrize(
    "workers",
    [
        [[Spell(14, DATA, True), Spell(1, FORWARD, True), Spell(1, BACKWARD, True)]],
        [[Spell(13, DATA, True), Spell(6, BACKWARD, True)], [Spell(17, DATA, True), Spell(2, BACKWARD, True)]],
        [[*[STEP] * 3, Spell(15, EVALUATION, True), *[Spell(2, EVALUATION, True)] * 3, Spell(14, CALLBACKS, True)]] * 2,
        [[STEP, Spell(50, CHECKPOINT, True), STEP], [STEP, Spell(50, SYNCHRONIZATION), STEP]],
        [[Spell(14, DATA, True), STEP, Spell(30, DATA)]] * 2,
    ],
    ids=["a first read", "first reads, one slower", "a validation and its end", "a save", "a read of the next epoch"],
)
def test_a_slow_run_raises_no_alarm(
    freeze: Freeze, monkeypatch: pytest.MonkeyPatch, workers: list[list[Spell]]
) -> None:
    assert said_in_second(freeze, monkeypatch, workers) is None


def test_a_worker_that_has_yet_to_be_forked_raises_no_alarm(freeze: Freeze, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fork server imports, from a slow file system."""
    monkeypatch.setattr(FakeWorker, "has_begun", False)
    assert said_in_second(freeze, monkeypatch, [[STEP, Spell(200, EVALUATION)]]) is None


def test_an_alarm_though_a_worker_could_not_be_forked(freeze: Freeze, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an elastic run, which goes on without it."""
    monkeypatch.setattr(FakeWorker, "has_begun", property(lambda self: self.role.number == 0))
    monkeypatch.setattr(FakeWorker, "exit", property(lambda self: None if self.role.number == 0 else "killed"))
    assert said_in_second(freeze, monkeypatch, [[STEP, Spell(200, EVALUATION)]] * 2) == 10 + STEP.seconds


def test_a_phase_has_a_first_time_on_each_occasion() -> None:
    heartbeat = Heartbeat()

    def is_first() -> bool:
        return HeartbeatReading.read(heartbeat.memory).first_time

    heartbeat.at(CALLBACKS, 0)
    assert is_first()
    for expected in (True, False):
        with heartbeat.phase(EVALUATION, "val"):
            heartbeat.beat()
            assert is_first() is expected, "its batches are beats of the same time"
        assert not is_first(), "back where it was"
    with heartbeat.phase(EVALUATION, "test"):
        assert is_first()
    heartbeat.begin_run()
    with heartbeat.phase(EVALUATION, "val"):
        assert is_first()


def report(rank: int, step: int, phase: int, stalled_s: float = 9.0, status: str = "sleeping") -> ProgressReport:
    return ProgressReport(Role("worker", rank), "here", step, phase, stalled_s, status)


@pytest.mark.parametrize(
    ("reports", "stragglers"),
    [
        ([report(0, 7, BACKWARD), report(1, 7, DATA), report(2, 7, BACKWARD)], [1]),
        ([report(0, 7, DATA), report(1, 6, BACKWARD)], [1]),
        ([report(0, 7, SYNCHRONIZATION), report(1, 7, EVALUATION)], [1]),
        ([report(0, 7, BACKWARD, status=psutil.STATUS_STOPPED), report(1, 7, DATA)], [0]),
        ([report(0, 7, BACKWARD), report(1, 7, BACKWARD)], [0, 1]),
    ],
)
def test_stragglers(reports: list[ProgressReport], stragglers: list[int], freeze: Freeze) -> None:
    run_dir = freeze("run", *TINY)
    assert [role.number for role in diagnose(reports, load(run_dir), run_dir).stragglers] == stragglers


def test_asynchronous_workers_that_wait_are_no_stragglers(freeze: Freeze) -> None:
    run_dir = freeze("run", *TINY, "strategy=asgd", "topology.devices_per_node=2")
    reports = [report(0, 5, SYNCHRONIZATION, stalled_s=30), report(1, 9, DATA, stalled_s=20)]
    assert [role.number for role in diagnose(reports, load(run_dir), run_dir).stragglers] == [1]


def test_time_in_which_the_agent_itself_was_stopped_does_not_count() -> None:
    timer = StallTimer(interval_s=1.0)
    assert timer.update(HeartbeatReading(1, 0, DATA), 1.0) == 0
    assert timer.update(HeartbeatReading(1, 0, DATA), 1.0) == 1
    assert timer.update(HeartbeatReading(1, 0, DATA), 3600.0) == 3
    assert timer.update(HeartbeatReading(2, 0, BACKWARD), 1.0) == 0
    assert timer.update(HeartbeatReading(2, 0, PREPARATION), 100.0) == 0, "preparation has no limit"


@pytest.mark.parametrize("verb", ["eval", "resume"])
def test_only_a_training_that_hangs_is_recorded_in_its_folder(freeze: Freeze, verb: str) -> None:
    run_dir = freeze("run", *TINY)
    write_summary(run_dir, {"status": "done"})
    folder = stacks_folder(JobSpec.load(run_dir, verb))
    Watchdog(JobSpec.load(run_dir, verb), 3.0)._record(report(0, 7, EVALUATION), "no progress", folder, "its stacks")
    assert summary(run_dir)["status"] == ("done" if verb == "eval" else "failed")
    assert (folder == run_dir / "hang") is (verb != "eval")
    assert (run_dir / "hang").exists() is (verb != "eval")
    assert "its stacks" in (folder / "rank-0.txt").read_text()


def waiting_for_disk(stalled_s: float, phase: int = CALLBACKS, status: str = "sleeping") -> ProgressReport:
    return replace(report(0, 7, phase, stalled_s=stalled_s), status=status)


@pytest.mark.parametrize(
    ("told", "silent_s", "said"),
    [
        (waiting_for_disk(6), 6, True),
        (waiting_for_disk(6, CHECKPOINT), 6, True),
        (waiting_for_disk(6, DATA, psutil.STATUS_DISK_SLEEP), 6, True),
        (waiting_for_disk(6, BACKWARD), 6, False),
        (waiting_for_disk(4), 6, False),
        (waiting_for_disk(6), 0.1, False),
    ],
    ids=["logging", "saving", "disk sleep", "computing", "not for long", "it answers"],
)
def test_a_file_system_is_asked_where_a_process_waits_for_it(
    freeze: Freeze, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    told: ProgressReport, silent_s: float, said: bool,
) -> None:  # fmt: skip
    run_dir = freeze("run", *TINY)
    watch = StorageWatch(load(run_dir), run_dir, writes=True)
    monkeypatch.setattr(StorageProbe, "silent_s", lambda self: silent_s)
    for _ in range(2):
        watch.update([told])
    assert capsys.readouterr().err.count(f"and the file system of {run_dir} does not answer") == said


def test_a_question_to_a_file_system_changes_nothing(freeze: Freeze) -> None:
    run_dir = freeze("run", *TINY)
    before = run_dir.stat().st_mtime_ns, sorted(run_dir.iterdir())
    probe = StorageProbe(run_dir, writes=True)
    probe._ask()
    assert (run_dir.stat().st_mtime_ns, sorted(run_dir.iterdir())) == before
    probe.silent_s()
    time.sleep(0.2)
    assert probe.silent_s() < 0.2, "answered, and asked again"
