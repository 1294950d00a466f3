"""Batch scripts, and configs that are refused without a cluster; test_slurm.py has a real one."""

import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from machines import topology_config
from runs import TINY

from leyden.trainer.cli.main import main
from leyden.trainer.config.schema import Config
from leyden.trainer.entrypoints import slurm_requeue
from leyden.trainer.launch.slurm.batch_script import array_script, job_script, options
from leyden.trainer.launch.slurm.errors import sbatch_error
from leyden.trainer.launch.worker_group import JobSpec

RUN = Path("/runs/50% done/it's")
PIPELINE = "-m hydra/launcher=pipeline topology=slurm topology.device.kind=cpu topology.nodes=2"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on a machine without Slurm."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def script(config: Config, **environment: str) -> list[str]:
    job = JobSpec(config, RUN, "resume", None)
    return job_script(job, "it's", "/venv/bin/python", environment).splitlines()


def sbatch_options(lines: list[str]) -> list[str]:
    """Options as sbatch reads them."""
    return [shlex.split(line)[1] for line in lines if line.startswith("#SBATCH ")]


def test_the_script_requests_the_topology() -> None:
    words = ["strategy=ddp", "topology=slurm", "topology.nodes=4", "topology.devices_per_node=8", "batch_size=64"]
    keys = ["device.kind=cuda", "host.sockets=2", "host.cores_per_socket=28", "slurm.time_min=90", "slurm.qos=long"]
    keys += ["slurm.setup=[module load cuda]", "slurm.sbatch=['--time=3']"]
    lines = script(topology_config(*words, *(f"topology.{key}" for key in keys)), PYTHONPATH="/my code:/b")
    assert sbatch_options(lines) == [
        "--job-name=it's", "--output=/runs/50%% done/it's/slurm/job.log", "--nodes=4", "--ntasks-per-node=1",
        "--cpus-per-task=56", "--gres=gpu:8", "--qos=long", "--time=90", "--signal=TERM@120", "--requeue",
        "--open-mode=append", "--time=3",
    ]  # fmt: skip
    assert lines.index("export PYTHONPATH='/my code:/b'") < lines.index("module load cuda") < lines.index("code=0")
    assert "srun --nodes=4 --ntasks-per-node=1" in "\n".join(lines)


def test_the_script_requests_nothing_that_the_topology_leaves_out() -> None:
    assert sbatch_options(script(topology_config("topology=slurm")))[2:] == [
        "--nodes=1", "--ntasks-per-node=1", "--signal=TERM@120", "--requeue", "--open-mode=append"
    ]  # fmt: skip


def test_gres_as_given_and_an_array_of_trials() -> None:
    config = topology_config("topology=slurm", "topology.device.kind=cuda", "topology.slurm.gres=gpu:h100:1")
    lines = array_script(
        "sweep", Path("/s/slurm"), {0: Path("/s/0/slurm/job.sh"), 7: Path("/s/7/a b.sh")}, options(config)
    )
    assert "--gres=gpu:h100:1" in sbatch_options(lines.splitlines())
    assert "--array=0,7" in sbatch_options(lines.splitlines())
    assert "--output=/s/slurm/%a.log" in sbatch_options(lines.splitlines())
    assert "\n7) exec bash '/s/7/a b.sh' ;;\n" in lines


@pytest.mark.parametrize(
    ("stderr", "key"),
    [
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
         "topology.slurm.account"),
        ("sbatch: error: Batch job submission failed: Invalid qos specification", "topology.slurm.qos"),
        ("sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
         "topology.slurm.time_min"),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", "topology.launcher"),
    ],
)  # fmt: skip
def test_the_key_of_an_sbatch_error(stderr: str, key: str) -> None:
    error = sbatch_error(stderr, topology_config("topology=slurm"))
    assert [problem.key for problem in error.problems] == [key]
    assert stderr.rpartition("error: ")[2] in error.problems[0].text


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("topology=slurm topology.device.kind=cpu", ["topology.launcher = slurm", "no sbatch on this machine's PATH"]),
        (
            "-m topology=slurm topology.device.kind=cpu seed=1,2",
            ["topology.launcher = slurm", "no sbatch on this machine's PATH"],
        ),
        (f"{PIPELINE} seed=1,2", ["topology.launcher = slurm", "no sbatch on this machine's PATH"]),
        (f"{PIPELINE} seed=1,2 topology.slurm.time_min=2", ["trial 0", "topology.slurm.signal_s = 120"]),
        ("-m topology=local,slurm topology.launcher=node seed=1,2", ["trial 0", "topology.launcher = node"]),
        ("topology=slurm topology.slurm.sbatch=[exclusive]", ["topology.slurm.sbatch = exclusive"]),
        ("topology=slurm topology.slurm.time_min=2", ["topology.slurm.signal_s = 120", "topology.slurm.signal_s=60"]),
    ],
)
def test_a_rejected_submission_leaves_nothing(
    command: str, parts: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), *TINY]) == 2
    error = capsys.readouterr().err
    for part in parts:
        assert part in error.replace("\n      ", " ")
    assert not list(here.iterdir())


class Guesses(Sweeper):
    """A sweeper that chooses trials one by one, from results."""

    __module__ = "hydra_plugins.guesses"

    def __init__(self, **settings: Any):
        self.settings = settings

    def setup(self, **parts: Any) -> None:
        self.launcher: Any = Plugins.instance().instantiate_launcher(**parts)

    def sweep(self, arguments: list[str]) -> None:
        self.launcher.launch([arguments], 0)


@pytest.mark.parametrize("start", ["-m topology=slurm topology.device.kind=cpu", PIPELINE])
def test_a_sweeper_that_needs_results_is_refused(
    start: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = ModuleType("hydra_plugins")
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "hydra_plugins", package)
    monkeypatch.setitem(sys.modules, "hydra_plugins.guesses", sys.modules[__name__])
    Plugins.instance().register(Guesses)
    assert main([*start.split(), "hydra.sweeper._target_=hydra_plugins.guesses.Guesses", *TINY]) == 2
    error = capsys.readouterr().err
    assert "hydra/sweeper = Guesses" in error
    assert "hydra/sweeper=basic" in error
    assert not list(here.iterdir())


def test_a_refused_resume_changes_nothing(here: Path) -> None:
    assert main([*TINY, "hydra.run.dir=run", "trainer.max_steps=1", "trainer.enable_progress_bar=false"]) == 0
    files = {path: path.read_bytes() for path in (here / "run").rglob("*") if path.is_file()}
    assert main(["resume", "run", "topology=slurm", "trainer.max_steps=2"]) == 2
    assert {path: path.read_bytes() for path in (here / "run").rglob("*") if path.is_file()} == files


def test_a_pipeline_is_requeued_when_any_of_its_models_has_made_progress(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, answer in (("squeue", "RUNNING"), ("scontrol", "")):
        (here / name).write_text(f"#!/bin/sh\necho {answer}\n")
        (here / name).chmod(0o755)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    trials = [here / "0", here / "1"]
    run_dir = here / "pipeline"
    (run_dir / "slurm").mkdir(parents=True)
    (run_dir / "config.yaml").write_text(f"pipeline: {{trials: [{trials[0]}, {trials[1]}]}}\n")

    def requeued(trial: Path | None, step: int = 0) -> str:
        if trial is not None:
            (trial / "checkpoints").mkdir(parents=True, exist_ok=True)
            (trial / "checkpoints" / f"step={step:08d}.ckpt").touch()
        assert slurm_requeue.main(run_dir, "resume", 75) == 75
        return capsys.readouterr().out

    assert "queued again, to go on from step 9 (the sum over its 2 trials)" in requeued(trials[0], 9)
    assert "queued again, to go on from step 27" in requeued(trials[1], 18)
    assert "not queued again: it has made no step since it was queued again at step 27" in requeued(None)
