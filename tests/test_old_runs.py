"""Runs of an older release, stopped in the middle of an epoch, under the current code: list, evaluate, resume.

tests/old_runs/make.py has made them; expected.json next to it holds the figures of the older code itself.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pool import Pool
from runs import rows, states, summary
from slurm_cluster import NEEDS_SLURM, SlurmCluster

from leyden.trainer.cli.main import main
from leyden.trainer.config.reopen import open_run

HERE = Path(__file__).parent / "old_runs"
EXPECTED: dict[str, Any] = json.loads((HERE / "expected.json").read_text())
TEXT = {".csv", ".json", ".log", ".sh", ".txt", ".yaml"}
ONE_PROCESS = ["single", "monitors", "reconstruction", "changed", "asgd_simulated", "easgd_simulated"]
LOCKSTEP = [
    "ddp",
    "ddp_powersgd",
    "butterfly_eager",
    "butterfly_lazy",
    "hybrid",
    "spatial",
    "fsdp",
    "easgd",
    "local_sgd",
]
ASYNCHRONOUS = ["asgd", "easgd_server"]
"""Runs whose figures depend on the workers' relative speed."""
DROPS = ["single"]
"""Runs with dropout, whose masks are others since then: the same samples and steps, not the same figures."""
CHANGED = {"ddp": {"train/loss"}, "reconstruction": {f"{split}/unexplained" for split in ("train", "val", "test")}}
"""Metrics defined otherwise since then: what is logged by step is the mean over all parts of the step, and the
unexplained part is a ratio of sums."""

Unpack = Callable[[str], Path]


@pytest.fixture
def unpack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Unpack:
    """unpack("name") -> the folder of an old run or sweep, a subfolder of the working directory."""
    monkeypatch.chdir(tmp_path)
    # runs append their python_path
    monkeypatch.setattr(sys, "path", list(sys.path))

    def make(name: str) -> Path:
        with tarfile.open(HERE / "f55d825.tar.xz") as archive:
            members = [entry for entry in archive if entry.name.split("/")[0] == name]
            archive.extractall(tmp_path, members, filter="data")
        for path in (tmp_path / name).rglob("*"):
            if path.suffix in TEXT:
                text = path.read_text().replace("@RUNS@", str(tmp_path)).replace("@PYTHON@", sys.executable)
                path.write_text(text)
        return tmp_path / name

    return make


def assert_listed(capsys: pytest.CaptureFixture[str], run: Path, expected: dict[str, Any]) -> None:
    """`leyden status` shows the state and step in which the older code left or ended the run."""
    ended = {"done": "stopped early" if expected["stop_reason"] else "done"}
    found = states(capsys, run)[run.name]
    assert (found["state"], found["step"]) == (ended.get(expected["status"], expected["status"]), expected["steps"])


def assert_evaluated(run: Path, output: str, expected: dict[str, float]) -> None:
    """The same metrics, to the digits that are printed."""
    found = dict(re.findall(r"^((?:val|test)/\S+) +(\S+)$", output, re.MULTILINE))
    assert found.keys() == expected.keys()
    same = expected.keys() - CHANGED.get(run.name, set())
    assert {name: float(found[name]) for name in same} == pytest.approx({n: expected[n] for n in same}, rel=1e-5)


def assert_ended(run: Path, expected: dict[str, Any], same_figures: bool = True) -> None:
    """As under the older code: done at the same step, with the same metrics, every epoch logged once."""
    found = summary(run)
    for key in ("status", "steps", "epochs"):
        assert found[key] == expected[key], key
    metrics = {name.replace("ahead/", "local_update/"): value for name, value in expected["metrics"].items()}
    if same_figures:
        reason = expected["stop_reason"]
        assert found["stop_reason"] == (reason and reason.replace("ahead/", "local_update/"))
        same = metrics.keys() - CHANGED.get(run.name, set())
        assert {name: found["metrics"][name] for name in same} == pytest.approx({n: metrics[n] for n in same}, rel=1e-6)
    else:  # of workers that push when they like, the one that logs may have none to report
        metrics = {name: value for name, value in metrics.items() if not name.startswith("local_update/")}
    assert metrics.keys() <= found["metrics"].keys()
    steps = [int(row["step"]) for row in rows(run)]
    assert steps == sorted(set(steps))
    assert steps[-1] == expected["steps"]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", ONE_PROCESS)
def test_runs_of_one_process(name: str, unpack: Unpack, capsys: pytest.CaptureFixture[str]) -> None:
    run, expected = unpack(name), EXPECTED[name]
    assert_listed(capsys, run, expected["stopped"])
    assert main(["eval", name]) == 0
    assert_evaluated(run, capsys.readouterr().out, expected["eval"])
    assert main(["resume", name]) == 0
    assert_ended(run, expected["resumed"], same_figures=name not in DROPS)
    assert_listed(capsys, run, expected["resumed"])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LOCKSTEP, *ASYNCHRONOUS])
def test_runs_of_two_workers(
    name: str, unpack: Unpack, pools: Callable[[int], Pool], capsys: pytest.CaptureFixture[str]
) -> None:
    run, expected = unpack(name), EXPECTED[name]
    assert_listed(capsys, run, expected["stopped"])
    open_run(name).validated()
    assert_evaluated(run, pools(2).run(run, "eval"), expected["eval"])
    pools(2).run(run, "resume")
    assert_ended(run, expected["resumed"], same_figures=name not in ASYNCHRONOUS)
    assert_listed(capsys, run, expected["resumed"])


@pytest.mark.slow
def test_servers_under_the_command(unpack: Unpack, capfd: pytest.CaptureFixture[str]) -> None:
    """Agent, server and workers are processes of their own."""
    run, expected = unpack("asgd"), EXPECTED["asgd"]
    assert main(["resume", "asgd"]) == 0
    assert_ended(run, expected["resumed"], same_figures=False)
    assert_listed(capfd, run, expected["resumed"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sweep", "pipeline"])
def test_sweeps(name: str, unpack: Unpack, capfd: pytest.CaptureFixture[str]) -> None:
    sweep = unpack(name)
    trials = {sweep / run.partition("/")[2]: figures for run, figures in EXPECTED.items() if run.startswith(f"{name}/")}
    for trial, expected in trials.items():
        assert_listed(capfd, trial, expected["stopped"])
    assert {trial.name for trial in trials} <= states(capfd, sweep).keys()
    assert main(["resume", name]) == 0
    for trial, expected in trials.items():
        if "eval" in expected:  # the pipeline itself trains no model
            assert_ended(trial, expected["resumed"])
        assert_listed(capfd, trial, expected["resumed"])


def test_a_frozen_config_trains_from_the_beginning(unpack: Unpack) -> None:
    """A run that was killed before its first checkpoint."""
    run = unpack("single")
    shutil.rmtree(run / "checkpoints")
    assert main(["resume", "single"]) == 0
    assert_ended(run, EXPECTED["single"]["resumed"], same_figures=False)


def test_weights_for_another_run(unpack: Unpack, capsys: pytest.CaptureFixture[str]) -> None:
    run = unpack("single")
    mlp = ["dataset.image_size=8", "model=mlp", "model.hidden=[8]", "model.dropout=0.2"]
    assert main([*mlp, f"init_from={run}", "trainer.max_epochs=1", "hydra.run.dir=another"]) == 0
    assert "4 of 4 tensors" in capsys.readouterr().out


def job_commands(run: Path, code: int) -> Iterator[list[str]]:
    """The commands in a run's job script: the agent, then the requeue with the agent's exit code."""
    script = (run / "slurm" / "job.sh").read_text()
    for command in re.findall(r"\S+ -m leyden\.\S+\.slurm\.(?:agent|requeue) [^|\n]*", script):
        yield [str(code) if word == "$code" else word for word in shlex.split(command)]


def test_modules_that_a_queued_script_names(unpack: Unpack) -> None:
    """A job that starts after `leyden stop` has cancelled its run."""
    run = unpack("slurm")
    (run / "stop_requested").touch()
    codes = [subprocess.run(command, cwd=run.parent, check=False).returncode for command in job_commands(run, 0)]
    assert codes == [75, 0]


@pytest.mark.slow
def test_a_queued_script_without_slurm(unpack: Unpack) -> None:
    """Its commands, one after the other."""
    run = unpack("slurm")
    codes = [subprocess.run(command, cwd=run.parent, check=False).returncode for command in job_commands(run, 0)]
    assert codes == [0, 0]
    assert_ended(run, EXPECTED["slurm"]["resumed"])


@pytest.mark.slow
@NEEDS_SLURM
def test_a_queued_script_in_slurm(unpack: Unpack, slurm: SlurmCluster) -> None:
    run = unpack("slurm")
    job = slurm.run("sbatch", "--parsable", str(run / "slurm" / "job.sh")).strip()
    assert slurm.ended(job)["JobState"] == "COMPLETED", (run / "slurm" / "job.log").read_text()
    assert_ended(run, EXPECTED["slurm"]["resumed"])
