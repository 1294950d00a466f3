"""Batch scripts, and configs that are refused without a cluster; test_slurm.py has a real one."""

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from machines import topology_config
from runs import TINY

from leyden.trainer.cli.main import main
from leyden.trainer.config.job import JobSpec
from leyden.trainer.config.schema import Config
from leyden.trainer.entrypoints import slurm_requeue
from leyden.trainer.entrypoints.slurm_requeue import QueriedJob
from leyden.trainer.launch.slurm.batch_script import array_script, job_script, options, task_ranges
from leyden.trainer.launch.slurm.errors import sbatch_error
from leyden.trainer.launch.slurm.job_steps import REQUEUE

pytestmark = pytest.mark.thinned(2)

RUN = Path("/runs/50% done/it's")
PIPELINE = "-m hydra/launcher=pipeline topology=slurm topology.device.kind=cpu topology.nodes=2"


@pytest.fixture
def here(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on a machine without Slurm."""
    monkeypatch.setenv("PATH", str(here))
    return here


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


def test_every_option_of_sbatch() -> None:
    keys = ["mem=64G", "partition=gpu", "dependency=afterok:7", "reservation=maint", "comment=a b", "switches=1@60"]
    keys += ["gpus_per_node=h100:8", "cpus_per_task=12", "job_name=mine"]
    words = [f"'topology.slurm.{key}'" if " " in key else f"topology.slurm.{key}" for key in keys]
    config = topology_config("topology=slurm", "topology.device.kind=cuda", *(word.strip("'") for word in words))
    assert sbatch_options(script(config)) == [
        "--job-name=mine", "--output=/runs/50%% done/it's/slurm/job.log", "--nodes=1", "--ntasks-per-node=1",
        "--cpus-per-task=12", "--gpus-per-node=h100:8", "--mem=64G", "--partition=gpu", "--dependency=afterok:7",
        "--reservation=maint", "--comment=a b", "--switches=1@60", "--signal=TERM@120", "--requeue",
        "--open-mode=append",
    ]  # fmt: skip


def calls(script: str, folder: Path, code: int = 0) -> list[list[str]]:
    """The commands that a script runs, by stand-ins of Slurm's that record their words. srun ends with `code`."""
    record = folder / "record"
    record.unlink(missing_ok=True)
    for name in ("srun", "squeue", "scontrol", "wrapper"):
        ends = 74 if name == "wrapper" else code
        prints = {"squeue": "echo RUNNING", "scontrol": "echo PreemptTime=2026"}.get(name, ":")
        (folder / name).write_text(f'#!/bin/sh\nprintf "%s\\0" {name} "$@" >> {record}\n'
                                   f'printf "\\n\\0" >> {record}\n{prints}\nexit {ends}\n')  # fmt: skip
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    assert subprocess.run(["bash", "-c", script], env=environment, check=False).returncode == code
    return [call.split("\0")[:-1] for call in record.read_text().split("\n\0")[:-1]]


def test_agents_in_a_container_and_the_requeue_from_outside(tmp_path: Path) -> None:
    """Also where each text has every character that a shell knows."""
    text = "a 'b' \"c\" $HOME `touch x` $(touch x) ;touch x; & | > x * \\"
    keys = {"container_image": text, "container_mounts": ["/data:/data", text], "container_workdir": text,
            "wrapper": ["wrapper", text], "srun": [f"--label={text}"], "mpi": "pmix"}  # fmt: skip
    config = topology_config("topology=slurm", "topology.nodes=2", "strategy=ddp")
    topology = config.topology.model_copy(update={"slurm": config.topology.slurm.model_copy(update=keys)})
    job = JobSpec(config.model_copy(update={"topology": topology}), RUN, "resume", None)
    lines = job_script(job, "name", "/venv/bin/python", {})
    container = ["--mpi=pmix", f"--container-image={text}", f"--container-mounts=/data:/data,{text},{RUN}:{RUN}",
                 f"--container-workdir={text}"]  # fmt: skip
    python = ["wrapper", text, "python3", "-P", "-m"]
    agent = ["srun", "--nodes=2", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--cpu-bind=none", *container,
             f"--label={text}", *python, "leyden.trainer.entrypoints.slurm_agent", str(RUN), "resume", ""]  # fmt: skip
    requeue = ["srun", "--overlap", *container, f"--label={text}", "--nodes=1", "--ntasks=1", "--relative=0", *python,
               "leyden.trainer.entrypoints.slurm_requeue", str(RUN), "resume"]  # fmt: skip
    assert calls(lines, tmp_path, 0) == [
        ["scontrol", "show", "hostnames", ""], ["scontrol", "--oneliner", "show", "node", ""],
        agent, ["squeue", "--noheader", "--jobs=7", "--format=%T"], ["scontrol", "--oneliner", "show", "job", "7"],
        [*requeue, "0", "RUNNING", ""],
    ]  # fmt: skip
    assert calls(lines, tmp_path, 74)[-1] == ["scontrol", "requeue", "7"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["record", "scontrol", "squeue", "srun", "wrapper"]

    # the nodes of an evaluation meet in the current folder
    evaluation = calls(job_script(replace(job, verb="eval"), "name", "/venv/bin/python", {}), tmp_path, 0)[-4]
    assert evaluation[7] == f"{container[2]},{Path.cwd()}:{Path.cwd()}"

    no_container = keys | {"container_image": None, "container_mounts": [], "container_workdir": None}
    topology = config.topology.model_copy(update={"slurm": config.topology.slurm.model_copy(update=no_container)})
    job = JobSpec(config.model_copy(update={"topology": topology}), RUN, "resume", None)
    last = calls(job_script(job, "name", "/venv/bin/python", {}), tmp_path, 75)[-2:]
    assert last == [[*python, *requeue[-3:], "75", "RUNNING", ""], ["scontrol", "requeue", "7"]]


def test_a_container_of_a_cluster_without_pyxis(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("srun", "sbatch"):
        (here / name).write_text("#!/bin/sh\necho --container-workdir\n")
        (here / name).chmod(0o755)
    words = ["topology=slurm", "topology.device.kind=cpu", "topology.slurm.container_image=image", *TINY]
    assert main([*words, "hydra.run.dir=mine"]) == 2
    assert "the plugin pyxis is not installed" in capsys.readouterr().err.replace("\n      ", " ")
    assert not (here / "mine").exists()
    assert main([*words, "hydra.run.dir=a:b"]) == 2
    assert "hydra.run.dir = " in capsys.readouterr().err


@pytest.mark.slow
def test_a_sweep_of_more_trials_than_an_array_may_have(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """MaxArraySize is 2 here."""
    programs = {
        "scontrol": 'echo "MaxArraySize            = 2"',
        "sbatch": 'echo "$@" >> sbatch.txt; number=0; while read line; do number=$((number + 1)); done < sbatch.txt; '
        "echo $((number + 100))",
    }
    for name, text in programs.items():
        (here / name).write_text(f"#!/bin/sh\n{text}\n")
        (here / name).chmod(0o755)
    words = ["-m", *TINY, "topology=slurm", "topology.device.kind=cpu", "seed=range(5)"]
    assert main([*words, "hydra.sweep.dir=mine"]) == 0
    jobs = [json.loads((here / "mine" / str(number) / "slurm.json").read_text())["job_id"] for number in range(5)]
    assert jobs == ["101_0", "101_1", "102_0", "102_1", "103"]
    for folder, number in ((here / "mine/slurm", 0), (here / "mine/slurm/2", 2)):
        lines = (folder / f"array-{number}.sh").read_text()
        assert "#SBATCH --array=0-1\n" in lines
        assert f"--output={folder}/%a.log" in sbatch_options(lines.splitlines())
        assert f"\n1) exec bash {here}/mine/{number + 1}/slurm/job.sh ;;\n" in lines
        assert (folder / "1.log").readlink() == here / "mine" / str(number + 1) / "slurm/job.log"
    assert "dependency" not in (here / "sbatch.txt").read_text()

    limited = ["topology.slurm.array_parallelism=2", "topology.slurm.dependency=after:9"]
    assert main([*words, *limited, "hydra.sweep.dir=limited"]) == 0
    assert "#SBATCH --array=0-1%2\n" in (here / "limited/slurm/array-0.sh").read_text()
    waits = [line.split()[1] for line in (here / "sbatch.txt").read_text().splitlines()[4:]]
    assert waits == ["--dependency=after:9,afterany:104", "--dependency=after:9,afterany:105"]

    capsys.readouterr()
    words[-1] = "seed=range(3)"
    assert main([*words, limited[0], "topology.slurm.dependency='after:9?after:8'", "hydra.sweep.dir=other"]) == 2
    assert "topology.slurm.dependency = after:9?after:8" in capsys.readouterr().err
    assert not (here / "other").exists()


def test_numbers_of_tasks() -> None:
    assert task_ranges([0]) == "0"
    assert task_ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


@pytest.mark.parametrize(
    ("stderr", "key"),
    [
        ("sbatch: error: Batch job submission failed: Job dependency problem", "topology.slurm.dependency"),
        ("sbatch: error: Batch job submission failed: Requested reservation is invalid", "topology.slurm.reservation"),
        ("sbatch: error: Memory specification can not be satisfied", "topology.slurm.mem"),
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
        ("topology=slurm topology.slurm.srun=[label]", ["topology.slurm.srun = label", "--export=ALL"]),
        (
            "topology=slurm topology.slurm.container_mounts=[/a:/b]",
            ["topology.slurm.container_mounts", "topology.slurm.container_image=IMAGE"],
        ),
        (
            "topology=slurm topology.slurm.container_image=i topology.slurm.container_mounts=['/a:/b,/c']",
            ["topology.slurm.container_mounts", "cannot have a comma"],
        ),
        ("topology=slurm topology.slurm.gpus_per_node=all", ["topology.slurm.gpus_per_node = all", "h100:8"]),
        ("topology=slurm topology.slurm.mem=64GB", ["topology.slurm.mem = 64GB", "a unit, K, M, G or T"]),
        ("topology=slurm topology.slurm.switches=0", ["topology.slurm.switches = 0", "1@60"]),
        ("topology=slurm topology.slurm.mpi=a.b", ["topology.slurm.mpi = a.b", "srun --mpi=list"]),
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

    # from a container without Slurm's commands: the script asks, and queues
    monkeypatch.setenv("PATH", "")
    preempted, running, cancelled = (
        QueriedJob(*one) for one in (("RUNNING", True), ("RUNNING", False), ("CANCELLED", True))
    )
    assert slurm_requeue.main(run_dir, "resume", 75, cancelled) == 75
    assert "Slurm has it as CANCELLED" in capsys.readouterr().out
    assert slurm_requeue.main(run_dir, "resume", 143, running) == 143
    assert "it has made no step since" in capsys.readouterr().out
    assert slurm_requeue.main(run_dir, "resume", 75, preempted) == REQUEUE
    assert "is queued again, to go on from step 27" in capsys.readouterr().out
