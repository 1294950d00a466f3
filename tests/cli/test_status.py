"""How runs stand, and asking them to end: `leyden status`, `leyden stop`, and resuming what goes on already."""

import json
import os
import signal
import stat
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from runs import PATIENCE_S, TINY, Freeze, Processes, alive, children, states, summary, wait_until

from leyden.trainer.cli import status
from leyden.trainer.cli.main import main
from leyden.trainer.runs.lease_record import Lease

LONG = [*TINY, "trainer.max_epochs=5000", "callbacks.checkpoint.every_n_steps=20"]
WITHOUT_TORCH = """
import sys
from leyden.trainer.cli.main import main
code = main(sys.argv[1:])
assert not {"torch", "lightning", "hydra"} & set(sys.modules)
sys.exit(code)
"""


def made(folder: Path, summary: dict[str, Any] | None = None, lead: Lease | None = None, **files: Any) -> Path:
    """A run folder with what is said of it."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("seed: 0\n")
    contents = {"summary": summary, "agent": asdict(lead) if lead else None, **files}
    for name, content in contents.items():
        if content is not None:
            (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_every_state_is_told_apart_without_torch(tmp_path: Path) -> None:
    here, progress = Lease.own(), {"step": 7, "total_steps": 50, "samples_per_second": 9.0, "seconds_left": 61}
    made(tmp_path / "day/a-done", {"status": "done", "steps": 50})
    made(tmp_path / "day/b-early", {"status": "done", "steps": 5, "stop_reason": "val/acc has not improved"})
    made(tmp_path / "day/c-failed", {"status": "failed", "error": "RuntimeError: oh", "failed_rank": 1})
    made(tmp_path / "day/d-preempted", {"status": "preempted", "steps": 6})
    made(tmp_path / "day/e-running", {"status": "running"}, here, progress=progress)
    made(tmp_path / "day/f-starting", None, here)
    made(tmp_path / "day/g-gone", {"status": "running"}, replace(here, started=1), progress=progress)
    made(tmp_path / "day/h-elsewhere", {"status": "running"}, replace(here, host="elsewhere"))
    silent = made(tmp_path / "day/i-silent", {"status": "running"}, replace(here, host="elsewhere"))
    os.utime(silent / "agent.json", (1, 1))
    made(tmp_path / "day/j-new")
    command = [sys.executable, "-c", WITHOUT_TORCH, "status", str(tmp_path)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    found = {Path(run["run"]).name: run for run in json.loads(done.stdout)}
    assert {name[2:]: run["state"] for name, run in found.items()} == {
        "done": "done", "early": "stopped early", "failed": "failed", "preempted": "preempted", "running": "running",
        "starting": "starting", "gone": "crashed (no exit status)", "elsewhere": "running",
        "silent": "crashed (no exit status)", "new": "not started",
    }  # fmt: skip
    assert found["c-failed"]["why"] == "rank 1: RuntimeError: oh"
    assert (found["e-running"]["step"], found["e-running"]["total_steps"]) == (7, 50)
    assert "leyden resume" in found["g-gone"]["why"]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (row,) = [line for line in table.splitlines() if "e-running" in line]
    assert "7 of 50" in row
    assert "0:01:01" in row


def test_nothing_to_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["status"]) == 0
    assert capsys.readouterr().out == "no runs in outputs\n"
    assert main(["status", "nowhere"]) == 2
    assert main(["stop", "nowhere"]) == 2
    assert main(["stop"]) == 2


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The programs of Slurm that are asked, which note how they were called."""
    programs = tmp_path / "programs"
    programs.mkdir()
    answers = {
        "squeue": "11|PENDING|Priority\n12_4|RUNNING|None\n",
        "sacct": "13|CANCELLED by 1000|None\n13.batch|CANCELLED|None\n",
        "scancel": "",
        "scontrol": f"JobId=1 Command=(null) Comment=leyden:{tmp_path / 'sweep'} WorkDir=/\n",
    }
    for name, answer in answers.items():
        (programs / f"{name}.answer").write_text(answer)
        program = programs / name
        program.write_text(f'#!/bin/sh\necho "$@" >> "{programs}/{name}.calls"\ncat "{programs}/{name}.answer"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return programs


def test_slurm_is_asked_once_for_all_runs(slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, elsewhere = tmp_path / "runs", replace(Lease.own(), host="elsewhere")
    made(runs / "waits", None, slurm={"job_id": "11"})
    made(runs / "runs", {"status": "running"}, elsewhere, slurm={"job_id": "12_4"})
    made(runs / "cancelled", {"status": "running"}, elsewhere, slurm={"job_id": "13"})
    made(runs / "forgotten", {"status": "done", "steps": 5}, slurm={"job_id": "14"})
    found = states(capsys, runs)
    assert {name: run["state"] for name, run in found.items()} == {
        "waits": "queued", "runs": "running", "cancelled": "crashed (no exit status)", "forgotten": "done",
    }  # fmt: skip
    assert "CANCELLED" in found["cancelled"]["why"]
    assert "Priority" in found["waits"]["why"]
    assert (slurm / "squeue.calls").read_text().count("--jobs=11,12_4,13,14") == 1
    assert (slurm / "sacct.calls").read_text().count("--jobs=13,14") == 1


def test_stop_of_jobs(slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = tmp_path / "sweep"
    made(sweep / "0", None, slurm={"job_id": "11"})
    made(sweep / "1", {"status": "running"}, slurm={"job_id": "12_4"})
    made(sweep / "2", {"status": "done", "steps": 5}, slurm={"job_id": "13"})
    (sweep / "multirun.yaml").write_text("hydra: {}\n")
    assert main(["stop", str(sweep)]) == 0
    assert (slurm / "scancel.calls").read_text().splitlines() == ["11", "--signal=TERM 12_4"]
    assert [(sweep / name / "stop_requested").exists() for name in "012"] == [True, True, False]
    assert main(["stop", str(sweep / "2")]) == 2
    assert "it is done" in capsys.readouterr().err


def test_trials_of_a_pipeline_have_its_job(slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """But what has come to its end in it, or was begun by itself since, stands for itself."""
    sweep, around = tmp_path / "sweep", {"folder": "../pipeline"}
    made(sweep / "pipeline", {"status": "running"}, slurm={"job_id": "12_4", "submitted_at": "2026-01-02"})
    made(sweep / "0", {"status": "done", "steps": 5}, pipeline=around)
    made(sweep / "1", {"status": "failed", "error": "RuntimeError: oh", "failed_rank": 0}, pipeline=around)
    made(sweep / "2", {"status": "running"}, pipeline=around)
    made(sweep / "3", None, pipeline=around)
    made(sweep / "4", None, slurm={"job_id": "13", "submitted_at": "2026-01-01"}, pipeline=around)
    made(sweep / "5", None, slurm={"job_id": "11", "submitted_at": "2026-01-03"}, pipeline=around)
    (sweep / "multirun.yaml").write_text("hydra: {}\n")

    def seen() -> list[str]:
        return [run["state"] for name, run in sorted(states(capsys, sweep).items()) if name != "pipeline"]

    assert seen() == ["done", "failed", "running", "starting", "starting", "queued"]
    assert main(["stop", str(sweep / "2")]) == 2
    assert "leyden stop" in capsys.readouterr().err
    assert main(["stop", str(sweep)]) == 0
    assert sorted((slurm / "scancel.calls").read_text().splitlines()) == ["--signal=TERM 12_4", "11"]
    assert seen() == ["done", "failed", "stopping", "stopping", "stopping", "queued"]
    (slurm / "squeue.answer").write_text("12_4|PENDING|BeginTime\n")
    assert seen()[:5] == ["done", "queued", "queued", "queued", "queued"]
    (slurm / "squeue.answer").write_text("12_4|FAILED|NonZeroExitCode\n")
    (sweep / "pipeline" / "summary.json").write_text('{"status": "failed", "error": "no GPU", "failed_rank": 1}')
    assert seen()[:3] == ["done", "failed", "crashed (no exit status)"]
    assert f"its pipeline failed: no GPU; leyden resume {sweep}" in states(capsys, sweep)["2"]["why"]


def test_trials_of_a_pipeline_of_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, around = Lease.own(), {"folder": "../pipeline"}
    made(tmp_path / "pipeline", {"status": "running"}, here)
    made(tmp_path / "0", {"status": "done", "steps": 5}, here, pipeline=around)
    made(tmp_path / "1", {"status": "running"}, here, pipeline=around)
    assert [states(capsys, tmp_path)[name]["state"] for name in "01"] == ["done", "running"]


def test_stop_of_what_runs_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made(tmp_path / "run", {"status": "running"}, replace(Lease.own(), host="elsewhere", pid=77))
    assert main(["stop", str(run)]) == 2
    said = capsys.readouterr().err
    assert "process 77 on elsewhere" in said
    assert f"on elsewhere: leyden stop {run}" in said.replace("\n      ", " ")


@pytest.mark.slow
def test_a_run_is_seen_stopped_and_missed(
    freeze: Freeze, processes: Processes, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = freeze("run", *LONG, "strategy=ddp", "topology.devices_per_node=2")
    process = processes.start(run_dir)
    wait_until(lambda: (states(capsys, run_dir)["run"]["step"] or 0) >= 20)
    seen = states(capsys, run_dir)["run"]
    assert (seen["state"], seen["total_steps"]) == ("running", 18 * 5000)
    assert seen["seconds_left"] is None or seen["seconds_left"] > 0
    assert main(["resume", str(run_dir)]) == 2
    assert f"process {process.pid} on this host leads it" in capsys.readouterr().err
    assert main(["stop", str(run_dir)]) == 0
    assert f"preempted, saved at step {summary(run_dir)['steps']}" in capsys.readouterr().out
    assert process.wait(PATIENCE_S) == 75
    assert main(["stop", str(run_dir)]) == 2
    assert "it is preempted" in capsys.readouterr().err

    process = processes.start(run_dir, "resume")
    wait_until(lambda: states(capsys, run_dir)["run"]["state"] == "running")
    workers = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE_S)
    wait_until(lambda: not [pid for pid in workers if alive(pid)])
    missed = states(capsys, run_dir)["run"]
    assert missed["state"] == "crashed (no exit status)"
    assert f"process {process.pid}" in missed["why"]
    assert missed["checkpoint"] is not None


def test_on_a_narrow_terminal_runs_are_named_by_their_overrides(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*TINY, "trainer.max_epochs=1", "hydra.sweep.dir=sweep", "trainer.enable_progress_bar=false"]
    assert main(["-m", *words, "optimizer.lr=0.1,0.05"]) == 0
    (here / "sweep" / "1" / "summary.json").write_text("{")
    monkeypatch.setattr(status, "_WIDE", 80)
    capsys.readouterr()
    assert main(["status", "sweep"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "sweep:"
    row = next(line for line in lines if "optimizer.lr=0.1" in line)
    assert [part in row for part in ("0 optimizer.lr=0.1", "done", "│1 ", "val/acc 0.")] == [True] * 4
    assert any("damaged" in line for line in lines)
    assert lines[-1].startswith("1: summary.json: ")
    assert all(len(line) <= 80 for line in lines[:-1])
