"""Goodput: what a run's life was spent on adds up to the whole, kills and pauses included."""

import signal
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from runs import TINY, Freeze, Processes, rows, states, summary, wait_until

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


def in_process(freeze: Freeze, *options: str) -> dict[str, Any]:
    heartbeat.begin_run()  # its first run counts from the start of the process
    run_dir = freeze("run", *TINY, "trainer.enable_progress_bar=false", *options)
    began = time.time()
    assert start(run_dir) == 0
    found = summary(run_dir)["goodput"]
    assert found["seconds"] == pytest.approx(time.time() - began, abs=0.3)
    assert found["seconds"] == pytest.approx(sum(found.values()) - found["seconds"] - found["share"])
    assert found["share"] == pytest.approx(found["kept"] / found["seconds"])
    assert float([row for row in rows(run_dir) if row["time/goodput"]][-1]["time/goodput"]) > 0
    return found


def test_slow_data_is_data(freeze: Freeze) -> None:
    slow = ["dataset._target_=hang_examples.Stuck", f"python_path=[{Path(__file__).parent}]", "+dataset.each_s=0.01",
            "batch_size=10", "trainer.max_steps=10", "trainer.limit_val_batches=0"]  # fmt: skip
    found = in_process(freeze, *slow)
    assert found["data"] >= 1.0
    assert found["data"] > 0.5 * found["seconds"]


def test_slow_validation_is_validation(freeze: Freeze) -> None:
    slow = ["dataset._target_=hang_examples.Stuck", f"python_path=[{Path(__file__).parent}]", "+dataset.each_s=0.005",
            "batch_size=10", "trainer.max_steps=2", "trainer.limit_val_batches=10"]  # fmt: skip
    found = in_process(freeze, *slow)
    assert found["validation"] >= 0.5
    assert found["validation"] > found["data"]


@pytest.mark.slow
def test_a_real_kill_and_a_pause(freeze: Freeze, processes: Processes, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = freeze("run", *TINY, "trainer.max_epochs=400", "callbacks.checkpoint.every_n_steps=50",
                     "dataset.num_workers=0")  # fmt: skip
    before = time.time()
    process = processes.start(run_dir)
    wait_until(lambda: len(checkpoints.saved(run_dir)) > 0 and (run_dir / "progress.json").exists())
    time.sleep(6)  # progress.json is written every 5 s
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(2)
    second = processes.start(run_dir, "resume")
    progress = run_dir / "progress.json"
    killed_at = progress.stat().st_mtime
    wait_until(lambda: progress.stat().st_mtime > killed_at)
    second.send_signal(signal.SIGTERM)
    second.communicate(timeout=60)
    found, sessions = summary(run_dir)["goodput"], summary(run_dir)["sessions"]
    assert len(sessions) == 2
    assert found["seconds"] == pytest.approx(time.time() - before, abs=2.5)
    assert 2 <= found["down"] <= 8, "the pause, and what was trained after the last sign"
    repeated = sessions[0]["from_step"] + sessions[0]["steps"] - sessions[1]["from_step"]
    assert found["lost"] == pytest.approx(sessions[0]["seconds"]["train"] * max(0, repeated) / sessions[0]["steps"])
    assert states(capsys, run_dir)[run_dir.name]["goodput"] == pytest.approx(found["share"])
