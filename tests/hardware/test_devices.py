"""Which device a worker computes on, decided once: `auto` when a run is frozen, the device's number by its environment.

CUDA's answers are replaced, so that this runs where there is no GPU; `pytest -m gpu` has the real ones.
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.fabric.accelerators.cuda as lightning_cuda
import pytest
import torch
import yaml
from lightning.fabric import Fabric
from machines import topology_config
from runs import POINTS, TINY, Freeze, summary, task

from leyden.trainer.base.log import log
from leyden.trainer.cli.main import main
from leyden.trainer.compose.reopen import change, open_run, read_changes, write_changes
from leyden.trainer.config.schema import Config, load
from leyden.trainer.core.strategy_contract import contract_of
from leyden.trainer.data.lightning_data import LoaderData
from leyden.trainer.engine.build import make_data, make_fabric
from leyden.trainer.hardware import topology
from leyden.trainer.hopping.worker import HoppingWorker
from leyden.trainer.sweep.resume import _split_changes

pytestmark = pytest.mark.thinned(2)

GPUs = Callable[[int], None]
WORKER = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "LEYDEN_WORKER")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> GPUs:
    """gpus(n): torch says that CUDA sees n devices, and none is touched."""
    for name in (*WORKER, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 0))
    monkeypatch.setattr(lightning_cuda, "_check_cuda_matmul_precision", lambda device: None)

    def seen(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return seen


def cuda(*overrides: str) -> Config:
    return topology_config("topology.device.kind=cuda", *overrides)


def device_of(config: Config, monkeypatch: pytest.MonkeyPatch, **environment: object) -> torch.device:
    """The device that a worker with this environment gives its Fabric; no process group is made."""
    with monkeypatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, str(value))
        patch.setattr(Fabric, "launch", lambda self: None)
        return make_fabric(config, []).strategy.root_device


SERVERS = ["strategy=asgd", "topology.devices_per_node=4", "batch_size=64"]
ELASTIC = [*SERVERS, "strategy.execution.elastic=true"]
TWO_NODES = ["topology.nodes=2", "topology.launcher=node", "topology.devices_per_node=3"]
SIMULATED = [*SERVERS, "strategy.execution.simulate=true", "topology.devices_per_node=64"]


@pytest.mark.parametrize(
    ("options", "environment", "count", "device"),
    [
        pytest.param([], {}, 8, 0, id="the command's own process"),
        pytest.param([], {"LOCAL_RANK": 3}, 8, 3, id="a worker of a pipeline"),
        pytest.param([], {"LOCAL_RANK": 1, "CUDA_VISIBLE_DEVICES": "6,7"}, 2, 1, id="CUDA counts what is visible"),
        pytest.param(ELASTIC, {"LEYDEN_WORKER": 2, "LEYDEN_INCARNATION": 1}, 4, 2, id="elastic"),
        pytest.param([*ELASTIC, *TWO_NODES], {"LEYDEN_WORKER": 4}, 4, 1, id="elastic, on the second node"),
        pytest.param(
            SERVERS, {"RANK": 6, "LOCAL_RANK": 2, "WORLD_SIZE": 8, "TORCHELASTIC_RUN_ID": "x", "GROUP_RANK": 1}, 4, 2,
            id="a worker of servers",
        ),
        pytest.param(SIMULATED, {"LOCAL_RANK": 3}, 8, 3, id="simulated"),
        pytest.param(
            [], {"LOCAL_RANK": 1, "CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "4,5", "SLURM_LOCALID": 0}, 2, 1,
            id="Slurm's gres, one agent a node",
        ),
        pytest.param(["strategy=ddp"], {"CUDA_VISIBLE_DEVICES": "MIG-5c89852c"}, 1, 0, id="an instance of a GPU"),
    ],
)  # fmt: skip
def test_each_worker_computes_on_the_device_of_its_number(
    options: list[str], environment: dict[str, Any], count: int, device: int, gpus: GPUs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    gpus(count)
    assert device_of(cuda(*options), monkeypatch, **environment) == torch.device("cuda", device)


def test_a_worker_without_a_device_says_so(gpus: GPUs, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(2)
    with pytest.raises(ValueError, match="CUDA sees 2 GPUs here, and this is worker 2 of its node"):
        device_of(cuda(), monkeypatch, LOCAL_RANK=2)
    gpus(1)
    with pytest.raises(ValueError, match="CUDA sees 1 GPU here, and this is worker 1 of its node"):
        device_of(cuda(), monkeypatch, LOCAL_RANK=1, CUDA_VISIBLE_DEVICES="MIG-5c89852c,MIG-7d5f1a2b")
    gpus(0)
    with pytest.raises(ValueError, match=r"torch cannot use CUDA here: topology\.device\.kind=cpu"):
        device_of(cuda(), monkeypatch)


def test_the_strategy_alone_is_on_the_cpu_until_fabric_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_of(topology_config("topology=cpu"), monkeypatch, LOCAL_RANK=3) == torch.device("cpu")


# how many there are


def machine(root: Path, smi: str | None = None, nvidia: int = 0) -> Path:
    """A root folder of a machine; `smi`: the shell script in the place of WSL2's nvidia-smi."""
    (root / "dev").mkdir()
    for number in range(nvidia):
        (root / "dev" / f"nvidia{number}").touch()
    (root / "dev" / "nvidiactl").touch()
    if smi is not None:
        (root / "dev" / "dxg").touch()
        file = root / "usr/lib/wsl/lib/nvidia-smi"
        file.parent.mkdir(parents=True)
        file.write_text(f"#!/bin/sh\n{smi}\n")
        file.chmod(0o755)
    return root


TWO_LISTED = "test $1 = --list-gpus && echo 'GPU 0: A (UUID: GPU-1)' && echo 'GPU 1: A (UUID: GPU-2)'"


@pytest.mark.parametrize(
    ("smi", "nvidia", "count"),
    [
        pytest.param(None, 3, 3, id="device files"),
        pytest.param(None, 0, 0, id="none"),
        pytest.param(TWO_LISTED, 0, 2, id="WSL2 has one device file for all"),
        pytest.param("echo 'NVIDIA-SMI has failed'; exit 9", 0, 0, id="WSL2 without a driver"),
        pytest.param("exit 9", 1, 1, id="device files go before"),
    ],
)
def test_gpus_are_counted_without_torch(tmp_path: Path, smi: str | None, nvidia: int, count: int) -> None:
    assert topology._present_gpus(machine(tmp_path, smi, nvidia)) == count


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 4), ("0,2", 2), ("MIG-1f,MIG-2f", 1), ("0,-1,1", 1), ("", 0), ("0,1,2,3,4,5", 4)],
)
def test_what_is_visible_counts(monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int) -> None:
    monkeypatch.setattr(topology, "_present_gpus", lambda root: 4)
    monkeypatch.setattr(topology, "_torch_has_cuda", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert topology.gpu_count() == count


# auto


def present(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """/dev has so many GPUs, and torch was built for them; whether it can use them is not asked."""
    monkeypatch.setattr(topology, "gpu_count", lambda: count)
    monkeypatch.setattr("leyden.trainer.compose.checks.gpu_count", lambda: count)


SHORT = [*TINY, "trainer.max_epochs=1", "trainer.max_steps=2", "trainer.enable_progress_bar=false"]


def kind_in(run_dir: Path, file: str = "config.yaml") -> str:
    return yaml.safe_load((run_dir / file).read_text())["topology"]["device"]["kind"]


def test_auto_is_frozen_as_what_it_stands_for(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    present(monkeypatch, 0)
    assert main([*SHORT, "hydra.run.dir=run"]) == 0
    assert kind_in(here / "run") == "cpu"
    assert kind_in(here / "run", ".hydra/config.yaml") == "auto", "as the user composed it"
    assert topology_config().topology.device.kind == "cpu"
    present(monkeypatch, 2)
    assert topology_config().topology.device.kind == "cuda"
    assert (
        topology_config("topology=slurm", "strategy=asgd", "strategy.execution.simulate=true").topology.device.kind
        == "cuda"
    )


def test_a_run_frozen_beside_gpus_is_refused_elsewhere_and_can_be_moved(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    present(monkeypatch, 0)
    assert main([*SHORT, "hydra.run.dir=run"]) == 0
    config = here / "run" / "config.yaml"
    config.write_text(config.read_text().replace("kind: cpu", "kind: cuda"))
    capsys.readouterr()
    for command in (["resume", "run", "trainer.max_steps=3"], ["eval", "run"]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert "topology.device.kind = cuda" in error
        assert "try: topology.device.kind=cpu" in error
    files = {path: path.read_bytes() for path in (here / "run").rglob("*.yaml")}
    assert main(["eval", "run", "topology.device.kind=cpu"]) == 0
    assert {path: path.read_bytes() for path in (here / "run").rglob("*.yaml")} == files
    assert main(["eval", "run"]) == 2, "the one before left nothing behind"
    assert main(["resume", "run", "trainer.max_steps=3", "topology.device.kind=auto"]) == 0
    assert load(here / "run").topology.device.kind == "cpu"
    (change,) = yaml.safe_load((here / "run" / "resume.yaml").read_text())
    assert change["changed"] == {"trainer.max_steps": 3, "topology.device.kind": "cpu"}


def test_a_run_that_was_frozen_with_auto_is_resumed_with_what_is_here(
    freeze: Freeze, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    present(monkeypatch, 0)
    run_dir = freeze("run", *SHORT)
    assert main(["resume", str(run_dir), "trainer.max_steps=1"]) == 0
    assert kind_in(run_dir) == "auto"
    assert load(run_dir).topology.device.kind == "cpu"
    assert summary(run_dir)["steps"] == 1


def test_a_pipeline_goes_on_on_another_kind_with_its_trials(freeze: Freeze, monkeypatch: pytest.MonkeyPatch) -> None:
    present(monkeypatch, 0)
    trial = freeze("trial", *TINY, "topology.device.kind=cuda")
    for words in (["topology=cpu"], ["topology.device.kind=cpu"], ["topology.device.kind=auto"]):
        shared, own = _split_changes(read_changes([*words, "trainer.max_epochs=3"]))
        assert "trainer.max_epochs" not in shared.dotted
        run = open_run(str(trial))
        change(run, own)
        assert run.validate_reopened().topology.device.kind == "cpu"
        with write_changes(run, own):
            assert load(trial).topology.device.kind == "cpu"
        (trial / "resume.yaml").unlink()
    worker = object.__new__(HoppingWorker)  # its trials' files may say another kind still
    worker.device, worker.folders, worker.configs = load(freeze("cpu", "topology=cpu")).topology.device, [trial], {}
    assert worker._config(0).topology.device.kind == "cpu"


@pytest.mark.parametrize(
    "partition", ["null", pytest.param("gpu", marks=pytest.mark.slow), pytest.param("cpu", marks=pytest.mark.slow)]
)
def test_slurm_is_not_asked_to_guess(
    partition: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    present(monkeypatch, 4)
    monkeypatch.setenv("PATH", str(here))
    command = ["topology=slurm", "topology.nodes=4", "topology.devices_per_node=8", "strategy=ddp",
               f"topology.slurm.partition={partition}"]  # fmt: skip
    for words in (command, ["-m", *command, "seed=1,2"]):
        assert main(words) == 2
        error = " ".join(capsys.readouterr().err.split())
        assert "topology.device.kind = auto" in error
        assert "must be one of cpu, cuda" in error
        assert "no sbatch" not in error
    assert not list(here.iterdir())
    for kind in ("cpu", "cuda"):
        assert main([*command, f"topology.device.kind={kind}"]) == 2
        error = capsys.readouterr().err
        assert "there is no sbatch on this machine" in error
        assert "device.kind" not in error


# what a lone worker is asked for


def test_a_lone_worker_that_cannot_use_cuda_is_refused_before_it_trains_on_the_cpu(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    present(monkeypatch, 1)
    assert main([*SHORT, "hydra.run.dir=run"]) == 3
    error = capsys.readouterr().err
    assert "leyden: refused by the preflight, no step was made" in error
    assert "topology.device.kind = cuda" in error
    assert "torch cannot use CUDA here: " in error
    assert "try: topology.device.kind=cpu" in error
    assert not (here / "run").exists()


# page-locked memory


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_only_runs_on_gpus_read_into_page_locked_memory(kind: str, freeze: Freeze, gpus: GPUs) -> None:
    gpus(1)
    config = load(freeze("run", *TINY))
    fabric: Any = SimpleNamespace(
        device=torch.device(kind), global_rank=0, local_rank=0, world_size=1, is_global_zero=True, strategy=None
    )
    assert make_data(config, fabric, contract_of(fabric)).pin_memory is (kind == "cuda")


def test_a_data_module_keeps_its_pinning_but_beside_gpus_that_are_not_used(
    freeze: Freeze, gpus: GPUs, caplog: pytest.LogCaptureFixture
) -> None:
    config = load(freeze("run", *POINTS, task("Plain"), "dataset._target_=lightning_examples.PointsPinned"))
    log.addHandler(caplog.handler)
    try:
        pinned: dict[tuple[str, int], bool] = {}
        for kind, count in (("cpu", 1), ("cuda", 1), ("cpu", 0)):
            gpus(count)
            fabric: Any = SimpleNamespace(
                device=torch.device(kind), global_rank=0, local_rank=0, world_size=1, barrier=lambda: None
            )
            pinned[kind, count] = LoaderData(config, fabric)._train.pin_memory
    finally:
        log.removeHandler(caplog.handler)
    assert pinned == {("cpu", 1): False, ("cuda", 1): True, ("cpu", 0): True}
    said = [record.getMessage() for record in caplog.records if "pin_memory" in record.getMessage()]
    assert said == ["PointsPinned.train_dataloader: pin_memory is off: topology.device.kind=cpu"]


# fused optimizers

MIXED = ["topology.device.kind=cuda", "trainer.precision=16-mixed", "trainer.gradient_clip_val=1.0"]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adagrad"])
def test_what_a_fused_optimizer_cannot_clip_is_refused_and_ours_are_not_fused(
    optimizer: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    present(monkeypatch, 1)
    assert main([*SHORT, *MIXED, f"optimizer={optimizer}", "optimizer.fused=true"]) == 2
    error = capsys.readouterr().err
    assert "optimizer.fused = true" in error
    assert "try: optimizer.fused=false" in error
    assert not list(here.iterdir())
    config = topology_config(*MIXED, f"optimizer={optimizer}")
    ours = refused_by_the_precision(config)
    assert ours is None
    assert "fused=False" in str(refused_by_the_precision(topology_config(*MIXED, f"optimizer={optimizer}"), fused=True))


def refused_by_the_precision(config: Config, **settings: Any) -> ValueError | None:
    """What is said of an optimizer that exists, such as a task's own."""
    from leyden.trainer.config.locate import locate
    from leyden.trainer.engine.build import refuse_unclippable

    assert config.optimizer is not None
    made = locate(config.optimizer.target)([torch.nn.Parameter(torch.zeros(1))], lr=0.1, **settings)
    try:
        refuse_unclippable(config, made)
    except ValueError as error:
        return error
    return None
