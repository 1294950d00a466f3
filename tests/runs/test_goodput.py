"""Goodput: what a run's life was spent on adds up to the whole, kills and pauses included."""

import signal
import time
from datetime import datetime
from typing import Any

import hang_examples
import pytest
from runs import HERE, PATIENCE_S, TINY, Freeze, Processes, rows, states, summary, wait_until

from leyden.trainer.base import heartbeat as heartbeat_module
from leyden.trainer.base.heartbeat import heartbeat
from leyden.trainer.entrypoints.start import start
from leyden.trainer.runs import checkpoints
from leyden.trainer.runs.goodput import Goodput, goodput
from leyden.trainer.runs.sessions import Record

CAUSES = ("start", "data", "waiting", "validation", "saving", "other", "train")


def session(began: float, steps: int, from_step: int = 0, **seconds: float) -> Record:
    spent = {cause: seconds.get(cause, 0.0) for cause in CAUSES}
    at = [datetime.fromtimestamp(t).astimezone().isoformat() for t in (began, began + sum(spent.values()))]
    return {"steps": steps, "from_step": from_step, "began_at": at[0], "ended_at": at[1], "seconds": spent}


def test_a_killed_run() -> None:
    """20 steps in 10 s, of which 5 are made again; 30 s in the queue; 15 more steps."""
    first = session(1000, steps=20, start=5, train=10, saving=1)
    second = session(1046, steps=15, from_step=15, start=4, train=6, validation=2)
    found = goodput([first, second])
    assert found == Goodput(
        kept=13.5,
        causes={"start": 9, "data": 0, "waiting": 0, "validation": 2, "saving": 1, "other": 0, "lost": 2.5, "down": 30},
    )
    assert found is not None
    assert found.seconds == 58
    assert str(found) == "23 % of 58 s; down 52 %, start 16 %, lost 4 %, validation 3 %, saving 2 %"


def test_sessions_that_did_not_count() -> None:
    old = {"steps": 3, "from_step": 0}
    assert goodput([]) is None
    assert goodput([old, session(0, 1)]) is None


class SleepingClock:
    """Clock of a run in which time passes while a sample is read, and hardly else."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-6
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SleepingClock:
    made = SleepingClock()
    monkeypatch.setattr(heartbeat_module, "perf_counter", made.perf_counter)
    monkeypatch.setattr(hang_examples, "time", made)
    return made


def in_process(freeze: Freeze, clock: SleepingClock, *options: str) -> dict[str, Any]:
    heartbeat.begin_run()  # its first run counts from the start of the process
    run_dir = freeze("run", *TINY, "trainer.enable_progress_bar=false", *options)
    began = clock.now
    assert start(run_dir) == 0
    found = summary(run_dir)["goodput"]
    assert found["seconds"] == pytest.approx(clock.now - began, abs=1e-3)
    assert found["seconds"] == pytest.approx(sum(found.values()) - found["seconds"] - found["share"])
    assert found["share"] == pytest.approx(found["kept"] / found["seconds"])
    assert float([row for row in rows(run_dir) if row["time/goodput"]][-1]["time/goodput"]) > 0
    return found


def test_slow_data_is_data(freeze: Freeze, clock: SleepingClock) -> None:
    slow = ["dataset._target_=hang_examples.Stuck", HERE, "+dataset.each_s=0.01",
            "batch_size=10", "trainer.max_steps=10", "trainer.limit_val_batches=0"]  # fmt: skip
    found = in_process(freeze, clock, *slow)
    assert found["data"] == pytest.approx(1.0, abs=1e-3)


def test_slow_validation_is_validation(freeze: Freeze, clock: SleepingClock) -> None:
    slow = ["dataset._target_=hang_examples.Stuck", HERE, "+dataset.each_s=0.005",
            "batch_size=10", "trainer.max_steps=2", "trainer.limit_val_batches=10"]  # fmt: skip
    found = in_process(freeze, clock, *slow)
    assert found["validation"] == pytest.approx(0.5, abs=1e-3)
    assert found["data"] == pytest.approx(0.1, abs=1e-3)


@pytest.mark.slow
def test_a_real_kill_and_a_pause(freeze: Freeze, processes: Processes, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = freeze("run", *TINY, "trainer.max_epochs=400", "callbacks.checkpoint.every_n_steps=50",
                     "dataset.num_workers=0")  # fmt: skip
    before = time.time()
    process = processes.start(run_dir)
    progress = run_dir / "progress.json"
    wait_until(lambda: len(checkpoints.saved_checkpoints(run_dir)) > 0 and progress.exists())
    written = progress.stat().st_mtime
    wait_until(lambda: progress.stat().st_mtime > written)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(2)
    second = processes.start(run_dir, "resume")
    killed_at = progress.stat().st_mtime
    wait_until(lambda: progress.stat().st_mtime > killed_at)
    second.send_signal(signal.SIGTERM)
    second.communicate(timeout=PATIENCE_S)
    found, sessions = summary(run_dir)["goodput"], summary(run_dir)["sessions"]
    assert len(sessions) == 2
    ended, began = (datetime.fromisoformat(text) for text in (sessions[0]["ended_at"], sessions[1]["began_at"]))
    assert found["down"] == pytest.approx((began - ended).total_seconds())
    assert found["down"] >= 2, "the pause, and what was trained after the last sign"
    first = datetime.fromisoformat(sessions[0]["began_at"]).timestamp()
    last = datetime.fromisoformat(sessions[1]["ended_at"]).timestamp()
    assert found["seconds"] == pytest.approx(last - first, abs=0.1)
    assert before - 1 < first < last < time.time()
    repeated = sessions[0]["from_step"] + sessions[0]["steps"] - sessions[1]["from_step"]
    assert found["lost"] == pytest.approx(sessions[0]["seconds"]["train"] * max(0, repeated) / sessions[0]["steps"])
    assert states(capsys, run_dir)[run_dir.name]["goodput"] == pytest.approx(found["share"])
