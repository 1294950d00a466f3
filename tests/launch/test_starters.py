"""`leyden` started once a rank by another launcher: refused, where each process would train alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from runs import TINY
from slurm_cluster import NEEDS_SLURM, SlurmCluster

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.cli.main import main
from leyden.trainer.launch.external.starters import STARTERS, refuse_starter

LEYDEN = [sys.executable, "-m", "leyden"]
TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2"}
SLURM_STEP = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}
LAUNCHED = [
    TORCHRUN,
    {"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "5"},
    {"PMI_SIZE": "3", "PMI_RANK": "1"},
    {"JSM_NAMESPACE_SIZE": "6", "JSM_NAMESPACE_RANK": "4"},
    SLURM_STEP,
]
ALONE = [
    {},
    {"RANK": "0", "WORLD_SIZE": "1"},
    {"WORLD_SIZE": "4"},  # set by hand, or by the image of a container
    {"RANK": "1"},
    {"WORLD_SIZE": "", "RANK": ""},
    {"OMPI_COMM_WORLD_SIZE": "1"},
    {"PMI_SIZE": "1"},
    {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"},  # inside `salloc -n 4`, and in a batch script
    {"SLURM_STEP_NUM_TASKS": "1"},
]


@pytest.fixture
def here(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for launcher in STARTERS:
        monkeypatch.delenv(launcher.size, raising=False)
        monkeypatch.delenv(launcher.rank, raising=False)
    return here


def named(environment: dict[str, str]) -> str:
    return " ".join(environment)


@pytest.mark.parametrize("environment", LAUNCHED, ids=named)
def test_one_of_several_processes_is_refused_with_its_variables(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as refused:
        refuse_starter(environment)
    message = " ".join(str(refused.value).split())
    size, rank = sorted(environment, key=lambda name: "SIZE" not in name and "NUM" not in name)
    assert f"{size} = {environment[size]}" in message
    assert f"{rank}={environment[rank]}" in message
    assert "start `leyden` once" in message


@pytest.mark.parametrize("environment", ALONE, ids=named)
def test_a_process_of_its_own_is_not(environment: dict[str, str]) -> None:
    refuse_starter(environment)


@pytest.mark.parametrize(
    "words",
    [TINY, ["train", "-m", "seed=1,2"], ["eval", "RUN"], ["resume", "RUN"], ["doctor", "topology=cpu"]],
    ids=" ".join,
)
def test_what_starts_workers_is_refused_and_leaves_nothing(
    words: list[str], here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert main(words) == 2
    assert "WORLD_SIZE = 2" in capsys.readouterr().err
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    "words", [["--help"], ["help", "seed"], ["status"], ["--cfg", "job"], ["topology"], ["schema"]], ids=" ".join
)
def test_what_only_prints_is_not(words: list[str], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SLURM_STEP.items():
        monkeypatch.setenv(name, value)
    assert main(words) == 0


def test_srun_may_start_the_agent_of_each_host(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in SLURM_STEP.items():
        monkeypatch.setenv(name, value)
    assert main(["node", "--rendezvous", "localhost:29400", "RUN"]) == 2
    message = capsys.readouterr().err
    assert "SLURM" not in message
    assert "RUN" in message


@pytest.mark.slow
def test_torchrun(here: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--no-python"]
    done = subprocess.run([*launcher, *LEYDEN, *TINY], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode != 0
    assert "WORLD_SIZE = 2" in done.stderr
    assert "exitcode  : 2" in done.stderr
    assert not list(here.iterdir())


@pytest.mark.slow
@NEEDS_SLURM
def test_steps_and_allocations_of_slurm(slurm: SlurmCluster, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of several tasks is refused. With the variables of one task, and of a shell in an allocation for several,
    a run trains."""
    words = [*TINY, "trainer.max_epochs=1", "logger=none", "callbacks=none"]

    def printed(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=slurm.environment)

    refused = printed("srun", "--ntasks=2", *LEYDEN, *words)
    assert refused.returncode == 2
    assert refused.stderr.count("SLURM_STEP_NUM_TASKS = 2") == 2
    assert not list(here.iterdir())
    for number, launcher in enumerate((["srun", "--ntasks=1"], ["salloc", "--ntasks=4"])):
        variables = dict(entry.split("=", 1) for entry in printed(*launcher, "env", "-0").stdout.split("\0")[:-1])
        with monkeypatch.context() as patch:
            for name in variables.keys() - {"PYTEST_CURRENT_TEST"}:
                patch.setenv(name, variables[name])
            assert "SLURM_NTASKS" in os.environ
            assert main(words) == 0
        assert len(list(here.glob("outputs/*/*/config.yaml"))) == number + 1
