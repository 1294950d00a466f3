"""`leyden topology` on recorded machines and on this one: what it finds, and that what it prints composes."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from machines import (
    MACHINES,
    Built,
    adapter_down,
    cloud_like,
    dgx_like,
    minwa_like,
    no_numa,
    nothing_known,
    roce_like,
    topology_config,
)

from leyden.trainer.cli.main import main
from leyden.trainer.hardware.discovery.cpus import processors
from leyden.trainer.hardware.discovery.machine import discover_machine
from leyden.trainer.hardware.discovery.network import default_route, interfaces
from leyden.trainer.hardware.discovery.sysfs import numbers_in
from leyden.trainer.hardware.discovery.to_yaml import as_topology
from leyden.trainer.hardware.schema import Topology


def printed(built: Built) -> str:
    return as_topology(discover_machine(built.root, built.nvidia_smi))


def composed(text: str, folder: Path) -> Topology:
    (folder / "mine/topology").mkdir(parents=True, exist_ok=True)
    (folder / "mine/topology/found.yaml").write_text(text)
    return topology_config("topology=found", config_dir=folder / "mine").topology


EXPECTED: dict[Callable[[Path], Built], dict[str, Any]] = {
    dgx_like: {
        "devices_per_node": 8, "device.kind": "cuda", "device.name": "NVIDIA H100 80GB HBM3", "device.memory_gb": 79.6,
        "device.sockets": [0, 0, 0, 0, 1, 1, 1, 1], "links.in_node.kind": "nvlink", "fabric.kind": "infiniband",
        "fabric.rate_gbit_s": 400, "fabric.rails": 8, "fabric.interface": "ens6f0", "fabric.gid_index": None,
        "fabric.adapters": ["mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"],
        "host.sockets": 2, "host.cores_per_socket": 4, "host.memory_gb": 2015.5,
    },
    minwa_like: {
        "devices_per_node": 4, "device.name": "Tesla K40m", "device.memory_gb": 11.2, "device.sockets": [0, 0, 1, 1],
        "links.in_node.kind": None, "fabric.kind": "infiniband", "fabric.rate_gbit_s": 56, "fabric.rails": 1,
        "fabric.adapters": ["mlx4_0:1"], "fabric.interface": "eth0", "host.cores_per_socket": 6,
    },
    roce_like: {
        "devices_per_node": 2, "device.sockets": [0, 1], "links.in_node.kind": "pcie4", "fabric.kind": "roce",
        "fabric.rate_gbit_s": 100, "fabric.adapters": ["mlx5_bond_0", "mlx5_bond_1"], "fabric.gid_index": 3,
        "fabric.interface": "bond0",
    },
    cloud_like: {
        "devices_per_node": 1, "device.kind": "cuda", "device.sockets": None, "fabric.kind": "ethernet",
        "fabric.rate_gbit_s": None, "fabric.adapters": [], "fabric.interface": "ens5", "host.sockets": 1,
        "host.cores_per_socket": 2,
    },
    adapter_down: {
        "devices_per_node": 2, "device.kind": "cpu", "device.sockets": [0, 1], "fabric.kind": "ethernet",
        "fabric.rate_gbit_s": 25, "fabric.adapters": [], "fabric.interface": "eth0",
    },
    no_numa: {"devices_per_node": 2, "device.kind": "cuda", "device.sockets": None, "links.in_node.kind": "pcie3",
              "fabric.kind": None, "fabric.interface": None},
    nothing_known: {"devices_per_node": 1, "device.kind": "cpu", "host.sockets": None, "host.memory_gb": None},
}  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.__name__)
def test_what_is_printed_composes_to_what_is_there(machine: Callable[[Path], Built], tmp_path: Path) -> None:
    topology = composed(printed(machine(tmp_path)), tmp_path)

    assert (topology.launcher, topology.nodes) == ("local", 1)
    found = {}
    for key in EXPECTED[machine]:
        node: Any = topology
        for part in key.split("."):
            node = getattr(node, part)
        found[key] = node
    assert found == EXPECTED[machine]


@pytest.mark.parametrize(
    ("machine", "told"),
    [
        (dgx_like, ["# not used: mlx5_1 port 1 is ACTIVE (InfiniBand, 200 Gbit/s)", "also up: ibp24s0", "# 4X NDR",
                    "mlx5_2 port 1 is ACTIVE (Ethernet, 100 Gbit/s)", "# peak_tflops, memory_gb_s:"]),
        (minwa_like, ["# not used: mlx4_0 port 2 is DOWN", "# in_node:"]),
        (roce_like, ["not configured for RoCE", "RoCE v2 over IPv4"]),
        (cloud_like, ["# rate_gbit_s: not reported by ens5"]),
        (adapter_down, ["# not used: mlx5_0 port 1 is DOWN", "# nvidia-smi is installed, and fails: NVIDIA-SMI has",
                        "no default route"]),
        (no_numa, ["# sockets: the firmware does not report", "# no adapter is active"]),
        (nothing_known, ["# sockets, cores_per_socket: not reported by the kernel", "# memory_gb:"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_what_is_not_known_stands_in_comments(
    machine: Callable[[Path], Built], told: list[str], tmp_path: Path
) -> None:
    text = printed(machine(tmp_path))
    for part in told:
        (line,) = [line for line in text.splitlines() if part in line]
        assert "#" in line
        assert len(line) <= 120


def test_lists_of_processors() -> None:
    assert numbers_in("0-2,8,10-11") == [0, 1, 2, 8, 10, 11]
    assert numbers_in("") == []


def test_files_that_refuse_to_be_read_are_no_error(tmp_path: Path) -> None:
    """The kernel answers EINVAL for the speed of an interface that is down, and for an empty GID's type."""
    built = minwa_like(tmp_path)
    speed = built.root / "sys/class/net/eth1/speed"
    speed.mkdir()  # reading a folder fails as reading such a file does
    assert {i.name: i.speed_gbit_s for i in interfaces(built.root)} == {
        "lo": None,
        "ib0": None,
        "eth0": 1,
        "eth1": None,
    }


def test_this_machine(tmp_path: Path) -> None:
    """The command in a process of its own: what it prints composes and names what is here; torch is not imported."""
    script = (
        "import sys; from leyden.trainer.cli.main import main; code = main(['topology']);"
        "print(code, [m for m in ('torch', 'lightning', 'numpy', 'hydra') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr == "0 []\n"
    topology = composed(done.stdout, tmp_path)
    here = processors()
    if here.sockets:
        assert os.sched_getaffinity(0) <= {thread for socket in here.threads_of_socket for thread in socket}
        assert topology.host.sockets == here.sockets
    assert topology.fabric.interface is None or (Path("/sys/class/net") / topology.fabric.interface).exists()
    assert default_route() is None or topology.fabric.interface == default_route()
    assert topology.host.memory_gb is not None
    assert topology.host.memory_gb == pytest.approx(
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 0.05
    )


def test_the_verb_takes_no_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "minwa"]) == 2
    assert "leyden topology=minwa" in capsys.readouterr().err
