"""The topology files that ship: each composes, its figures have sources, and its totals are the published ones."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from folders import CONF
from machines import topology_config

from leyden.trainer.cli.main import main
from leyden.trainer.compose.composer import Composer
from leyden.trainer.hardware.schema import Slurm, Topology
from leyden.trainer.hardware.topology import gpu_count

pytestmark = pytest.mark.thinned(3)

FILES = sorted((CONF / "topology").glob("*.yaml"))
SOURCES = r"\[(press|recalled|assumed|measured|tables|Paleo|cirrascale\.com)\]"
HERE = ("local", "cpu", "slurm", "kubernetes")
"""Files that describe no machine in particular."""


def shipped(name: str, *overrides: str) -> Topology:
    return topology_config(f"topology={name}", *overrides).topology


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_file_composes_and_is_consistent(file: Path) -> None:
    topology = shipped(file.stem)

    assert topology.workers == topology.nodes * topology.devices_per_node
    assert topology.launcher == "local" or file.stem not in ("local", "cpu")
    sockets = topology.device.sockets
    if sockets is not None:
        assert len(sockets) == topology.devices_per_node
        assert set(sockets) == set(range(topology.host.sockets or 1))
    if topology.nodes > 1:
        assert topology.fabric.kind is not None
    if topology.fabric.gb_s is not None:
        assert topology.fabric.rate_gbit_s is not None
        assert topology.fabric.gb_s <= topology.fabric.rate_gbit_s / 8  # a rail cannot carry more than it signals
    if topology.links.across_sockets.gb_s is not None:
        assert topology.links.in_node.gb_s is not None
        assert topology.links.across_sockets.gb_s < topology.links.in_node.gb_s


@pytest.mark.parametrize("file", [file for file in FILES if file.stem not in HERE], ids=lambda file: file.stem)
def test_every_figure_has_a_source_on_its_line(file: Path) -> None:
    exempt = ("name:", "nodes:") if file.stem.startswith("dgx") else ("name:",)  # so many nodes, by the file's name
    for line in file.read_text().splitlines():
        value, _, comment = line.partition("#")
        if re.search(r":.*\d", value) and not value.strip().startswith(exempt):
            assert re.search(SOURCES, comment), line


@pytest.mark.parametrize("name", ["local", "cpu"])
def test_topologies_of_this_machine_run_on_it(name: str) -> None:
    assert Composer().run([f"topology={name}"]).config.topology.workers == 1


def test_totals_are_the_published_ones() -> None:
    minwa = shipped("minwa")
    assert minwa.workers == 144
    assert minwa.device.peak_tflops.fp32 is not None
    assert minwa.workers * minwa.device.peak_tflops.fp32 == pytest.approx(600, rel=0.05)  # 0.6 PFLOPS
    assert minwa.workers * (minwa.device.memory_gb or 0) == pytest.approx(1700, rel=0.05)  # 1.7 TB on the devices
    assert minwa.nodes * (minwa.host.memory_gb or 0) == pytest.approx(6900, rel=0.01)  # 6.9 TB in the hosts
    assert (minwa.host.sockets, minwa.host.cores_per_socket) == (2, 6)

    boards = shipped("cirrascale_k80")
    assert boards.workers == 2 * 48
    assert boards.workers * (boards.device.peak_tflops.fp32 or 0) == pytest.approx(48 * 5.6)
    assert 2 * (boards.device.memory_gb_s or 0) == 480

    assert [shipped(name).workers for name in ("cots3", "cots16", "owt_host8", "dgx_h100", "dgx_h100_x4")] == [
        12, 64, 8, 8, 32
    ]  # fmt: skip
    # 11 billion parameters with gradient and momentum, in float32, fit the devices of cots16.
    cots = shipped("cots16")
    assert 11.2e9 * 12 / cots.workers < (cots.device.memory_gb or 0) * 2**30
    assert cots.workers / shipped("cots3").workers == pytest.approx(16 / 3)

    one, four = shipped("dgx_h100"), shipped("dgx_h100_x4")
    assert (four.device, four.links, four.fabric, four.host) == (one.device, one.links, one.fabric, one.host)
    assert (one.fabric.rails or 0) * (one.fabric.rate_gbit_s or 0) == 3200


def test_the_example_in_the_slurm_file_is_one(tmp_path: Path) -> None:
    text = next(file for file in FILES if file.stem == "slurm").read_text()
    example = text[text.index("# slurm:") :]
    values: dict[str, Any] = yaml.safe_load(re.sub(r"^# ", "", example, flags=re.MULTILINE))
    (tmp_path / "topology").mkdir()
    body = re.sub(r"^# (?=slurm:|  )", "", text, flags=re.MULTILINE)
    (tmp_path / "topology/mine.yaml").write_text(body)

    slurm = topology_config("topology=mine", config_dir=tmp_path).topology.slurm

    assert slurm.model_dump() == {**Slurm().model_dump(), **values["slurm"]}
    assert slurm.time_min == 720


NO_GPU = pytest.mark.skipif(gpu_count() > 0, reason="there is a GPU")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("topology=minwa strategy=ddp batch_size=143",
         ["batch_size = 143", "divisible by 144 workers", "batch_size=144"]),
        pytest.param("topology=cots3 strategy=ddp batch_size=12", ["topology.device.kind = cuda"], marks=NO_GPU),
        ("topology=minwa topology.launcher=local", ["topology.nodes = 36", "topology.nodes=1"]),
        pytest.param("topology=dgx_h100 strategy=ddp", ["topology.device.kind = cuda", "topology.device.kind=cpu"],
                     marks=NO_GPU),
        ("topology=minva", ["topology can be cirrascale_k80, ", "topology=minwa"]),
        ("topology=slurm topology.slurm.partitoin=gpu", ["topology.slurm.partitoin", "topology.slurm.partition"]),
        ("topology.fabric.kind=infinband", ["infiniband, roce, ethernet", "topology.fabric.kind=infiniband"]),
        ("topology.device.memory_gb=0", ["topology.device.memory_gb = 0", "greater than 0"]),
        ("topology.device.sockets=[0] topology.devices_per_node=2 strategy=ddp",
         ["topology.device.sockets", "each of the 2 devices", "topology.device.sockets=null"]),
        ("topology.device.sockets=[2] topology.host.sockets=2", ["topology.device.sockets", "counted from 0"]),
        ("topology.fabric.adapters=[mlx5_0]", ["topology.fabric.kind is null", "topology.fabric.kind=infiniband"]),
    ],
)  # fmt: skip
def test_what_cannot_run_here_is_refused(
    command: str, told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    for part in told:
        assert part in error
    assert not list(tmp_path.iterdir())


def test_a_login_node_is_not_asked_for_the_nodes_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["topology=minwa", "strategy=ddp", "batch_size=144", "trainer.precision=16-mixed"]) == 2
    error = capsys.readouterr().err
    assert "there is no sbatch on this machine" in error
    assert "GPU" not in error
