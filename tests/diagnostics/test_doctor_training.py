"""`leyden doctor --train`: what is compared with what, and the exit code."""

import json
import shutil
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
import torch
from agents import Agent
from folders import MODULES, SUPPORT
from hosts import TwoHosts, available
from machines import dgx_like
from rich.console import Console

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.cli.main import main
from leyden.trainer.diagnostics.doctor.training import speed
from leyden.trainer.diagnostics.doctor.training.checks import Check, exit_code
from leyden.trainer.diagnostics.doctor.training.child_runs import ChildRuns, NotTrained
from leyden.trainer.diagnostics.doctor.training.equality import CASES, distance
from leyden.trainer.diagnostics.doctor.training.fabric_state import adapter_checks, transport_checks
from leyden.trainer.diagnostics.doctor.training.gpu_state import FIELDS, rows, state_checks
from leyden.trainer.diagnostics.doctor.training.report import report
from leyden.trainer.diagnostics.doctor.training.run import split


def test_one_failed_check_gives_exit_code_3() -> None:
    passed, skipped = Check("a", 0.0, 1.0, True, 0.0), Check("b", None, None, None, 0.0)
    assert exit_code([passed, skipped]) == 0
    assert exit_code([passed, Check("c", 2.0, 1.0, False, 0.0), skipped]) == 3


def test_distance_of_weights() -> None:
    one = {"w": torch.tensor([3.0, 4.0])}
    assert distance(one, one) == 0.0
    assert distance({"w": torch.tensor([3.0, 4.5])}, one) == pytest.approx(0.1)
    for other in ({"v": one["w"]}, {"w": torch.ones(3)}, {"w": torch.tensor([float("nan"), 4.0])}):
        assert distance(other, one) == float("inf")


def test_strategies_are_chosen_by_name() -> None:
    assert split(["topology=cpu"]) == (["topology=cpu"], list(CASES))
    assert split(["strategy=butterfly,mine", "topology=cpu"]) == (
        ["topology=cpu"], ["butterfly", "butterfly, eager", "mine"],
    )  # fmt: skip
    with pytest.raises(ConfigError, match="sets the options of the strategies"):
        split(["strategy.lazy=true"])


def test_state_of_gpus_as_the_driver_prints_it() -> None:
    """Lines in the form of `nvidia-smi --query-gpu`, made up; not from a run on a GPU."""
    text = (
        "0, 00000000:1B:00.0, 550.54.15, 1980, 1980, 0x0000000000000000, 0\n"
        "1, 00000000:43:00.0, 550.54.15, 1100, 1980, 0x0000000000000048, 2\n"
        "2, 00000000:52:00.0, 550.54.15, 345, 1980, 0x0000000000000001, [N/A]\n"
    )
    lines = rows(text)
    assert [len(line) for line in lines] == [len(FIELDS)] * 3
    found = {check.check: (check.value, check.ok) for check in state_checks(lines)}
    assert found == {
        "GPU 0: throttling": (0.0, True), "GPU 0: uncorrected memory errors": (0.0, True),
        "GPU 1: throttling": (float(0x48), False), "GPU 1: uncorrected memory errors": (2.0, False),
        "GPU 2: throttling": (0.0, True),
    }  # fmt: skip


def test_adapters_and_the_network_in_use_as_the_kernel_and_nccl_say(tmp_path: Path) -> None:
    found = {check.check: (check.value, check.text) for check in adapter_checks(dgx_like(tmp_path).root)}
    assert len(found) == 11
    assert found["adapter mlx5_0:1"] == (400.0, "Gbit/s, infiniband, ACTIVE, socket 0")
    (tmp_path / "nccl").mkdir()
    for rank, name in {0: "ib_gpudirect", 8: "socket"}.items():
        shutil.copy(SUPPORT / f"nccl_logs/{name}.log", tmp_path / f"nccl/rank{rank}.log")
    assert {check.check: check.text for check in transport_checks(tmp_path)} == {
        "transport of rank0": "IB (mlx5_0:1, mlx5_1:1, mlx5_2:1, mlx5_3:1), GPUDirect RDMA",
        "transport of rank8": "Socket (eth0)",
    }


def test_the_table_json_and_tensorboard(tmp_path: Path) -> None:
    console = Console(width=150, file=StringIO())
    report(
        tmp_path, [Check("ddp = single", 2e-3, 1e-10, False, 4.0, "apart"), Check("b", None, None, None, 0.0)], console
    )
    assert isinstance(console.file, StringIO)
    assert "FAILED" in console.file.getvalue()
    content = json.loads((tmp_path / "train.json").read_text())
    assert content["exit_code"] == 3
    assert content["checks"][0] == {
        "check": "ddp = single", "value": 2e-3, "limit": 1e-10, "ok": False, "seconds": 4.0, "text": "apart",
    }  # fmt: skip
    assert list(tmp_path.glob("events.out.tfevents.*"))


def test_a_run_that_fails_or_takes_too_long_is_one_sentence(tmp_path: Path) -> None:
    runs = ChildRuns(tmp_path, time.monotonic() + 60)
    with pytest.raises(NotTrained, match=r"exit code 2: .*no-such-file"):
        runs.start("json.tool", str(tmp_path / "no-such-file"), output=tmp_path / "log")
    runs = ChildRuns(tmp_path, time.monotonic() + 0.3)
    with pytest.raises(NotTrained, match="did not end in the doctor's time"):
        runs.start("http.server", "0", "--bind", "127.0.0.1", output=tmp_path / "log")
    runs = ChildRuns(tmp_path, time.monotonic())
    with pytest.raises(NotTrained, match="was not started"):
        runs.start("json.tool", output=tmp_path / "log")


@pytest.mark.slow
def test_a_strategy_that_computes_wrongly_is_found_on_two_workers(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "_STEPS", {"cpu": 30})  # what the speeds are is not looked at
    (tmp_path / "mine/strategy").mkdir(parents=True)
    (tmp_path / "mine/strategy/wrong.yaml").write_text("_target_: doctor_examples.HalfGradients\n")
    (tmp_path / "mine/doctor_examples.py").write_text((MODULES / "doctor_examples.py").read_text())
    two = ["topology=cpu", "topology.devices_per_node=2", "hydra.run.dir=found"]
    code = main(["-cd", "mine", "doctor", "--train", *two, "strategy=ddp,wrong"])
    printed = capsys.readouterr()
    assert code == 3, printed.out + printed.err
    checks = {check["check"]: check for check in json.loads((tmp_path / "found/train.json").read_text())["checks"]}
    assert checks["ddp = single"]["ok"], checks
    assert checks["ddp = single"]["value"] <= 1e-10
    assert not checks["wrong = single"]["ok"]
    assert checks["wrong = single"]["value"] > 1e-3
    resumed = checks["killed and resumed = uninterrupted"]
    assert (resumed["ok"], resumed["value"]) == (True, 0.0), resumed
    assert (tmp_path / "found/train/killed/killed").exists()
    speeds = [check["value"] for name, check in checks.items() if name.startswith("images/s")]
    assert len(speeds) == 3
    assert min(speeds) > 0
    assert "training on this hardware" in printed.out


@pytest.mark.campaign
@pytest.mark.skipif(not available(), reason="needs root, `ip` and `tc`, for network namespaces")
def test_two_hosts_train_together(tmp_path: Path, agents: list[Agent]) -> None:
    command = [
        sys.executable, "-m", "leyden", "doctor", "--train", "topology=cpu", "topology.launcher=node",
        "topology.nodes=2", "strategy=ddp", "hydra.run.dir=found",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "leyden node --rendezvous" in done.stdout, done.stderr
    with TwoHosts() as hosts:
        for name in hosts.names:
            prefix = ("ip", "netns", "exec", name)
            agents.append(Agent(tmp_path / "found", f"{hosts.addresses[0]}:29400", prefix=prefix))
        codes = sorted(agent.code(280) for agent in agents)
    output = "".join(agent.output for agent in agents)
    found = json.loads((tmp_path / "found/train.json").read_text())
    checks = {check["check"]: check for check in found["checks"]}
    # links of a namespace may be called slow on a machine that others use
    assert codes == [0, found["exit_code"]], output
    assert checks["ddp = single"]["ok"], checks
    assert checks["killed and resumed = uninterrupted"]["value"] == 0.0, checks
    assert {name for name in checks if name.startswith("images/s")} >= {"images/s, all 2 devices"}, checks
    for name in ("ddp", "killed", "speed-all"):
        assert len(list((tmp_path / f"found/train/{name}").glob("*-output.log"))) == 2, name
    assert len(list((tmp_path / "found/train/single-0").glob("*-output.log"))) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--train", "model=mlp"], "the doctor measures a topology"),
        (["--train", "strategy.lazy=true"], "sets the options of the strategies"),
        (["strategy=ddp"], "the doctor measures a topology"),
    ],
)
def test_mistakes(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", *words]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())
