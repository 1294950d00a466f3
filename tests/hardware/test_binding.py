"""Each worker on the cores of its device's socket: rules on recorded machines, and the affinity of real processes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from machines import (
    Built,
    build,
    cloud_like,
    dgx_like,
    gpu_nodes,
    minwa_like,
    nothing_known,
    roce_like,
    sockets,
    topology_config,
)

from leyden.trainer.hardware.affinity import cores_of_device, describe_binding, physical_device
from leyden.trainer.hardware.discovery.cpus import processors, socket_of_numa_node
from leyden.trainer.hardware.discovery.machine import discover_machine
from leyden.trainer.hardware.discovery.to_yaml import as_topology
from leyden.trainer.hardware.schema import Topology

FIRST, SECOND = {0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}


@cache
def dgx() -> Topology:
    return topology_config("topology=dgx_h100").topology


def test_every_worker_gets_the_whole_socket_of_its_device(tmp_path: Path) -> None:
    layout = processors(dgx_like(tmp_path).root)
    assert [cores_of_device(dgx(), device, layout) for device in range(8)] == [FIRST] * 4 + [SECOND] * 4


@pytest.mark.parametrize("machine", [cloud_like, nothing_known], ids=lambda machine: machine.__name__)
def test_one_socket_or_an_unknown_layout_binds_nobody(machine: Callable[[Path], Built], tmp_path: Path) -> None:
    root = machine(tmp_path).root
    assert [cores_of_device(dgx(), device, processors(root)) for device in range(8)] == [set()] * 8
    assert describe_binding(dgx(), {}, root) == []


def test_sockets_that_the_topology_does_not_say_bind_nobody(tmp_path: Path) -> None:
    layout = processors(minwa_like(tmp_path).root)
    unsaid = topology_config("topology=dgx_h100", "topology.device.sockets=null").topology
    assert cores_of_device(unsaid, 0, layout) == set()
    three = topology_config("topology=dgx_h100", "topology.device.sockets=[0,0,0,0,2,2,2,2]").topology
    assert cores_of_device(three, 0, layout) == {0, 1, 2, 3, 4, 5}
    assert cores_of_device(three, 7, layout) == set()  # a third socket, on a machine of two


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        (None, [0, 1, 2, 3]),
        ("4,5,6,7", [4, 5, 6, 7]),
        ("7, 0", [7, 0, None, None]),
        ("GPU-5ac3-0000,GPU-1", [5, 1, None, None]),  # by UUID, whole or as much of it as is unique
        ("GPU-,MIG-1,x,", [None] * 4),
    ],
)
def test_visible_devices_are_counted_anew(visible: str | None, devices: list[int | None], tmp_path: Path) -> None:
    root = dgx_like(tmp_path).root
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert [physical_device(dgx(), rank, environment, root) for rank in range(4)] == devices


def test_visible_gpus_mean_nothing_to_workers_on_the_cpu(tmp_path: Path) -> None:
    topology = topology_config("topology=cpu", "topology.device.sockets=[1]").topology
    assert physical_device(topology, 0, {"CUDA_VISIBLE_DEVICES": "3"}, tmp_path) == 0


def test_a_socket_of_several_numa_nodes_is_one_socket(tmp_path: Path) -> None:
    root = roce_like(tmp_path).root
    assert [socket_of_numa_node(node, processors(root), root) for node in (-1, 0, 1, 2, 3, 4)] == [
        None, 0, 0, 1, 1, None
    ]  # fmt: skip


def test_what_will_be_bound_is_said(tmp_path: Path) -> None:
    root = dgx_like(tmp_path).root
    said = describe_binding(dgx(), {"CUDA_VISIBLE_DEVICES": "3,4"}, root)
    assert said == ["worker 0: device 3, on the cores of socket 0", "worker 1: device 4, on the cores of socket 1"]


CHILD = """
import json, os, sys, threading
from pathlib import Path
from leyden.trainer.hardware.affinity import bind
from leyden.trainer.config.schema import Config

os.sched_setaffinity(0, json.loads(sys.argv[3]))
config = Config.model_validate_json(sys.stdin.read())
bound = bind(config.topology, int(sys.argv[1]), Path(sys.argv[2]))
later = []
thread = threading.Thread(target=lambda: later.extend(os.sched_getaffinity(threading.get_native_id())))
thread.start()
thread.join()
print(json.dumps([bound and sorted(bound), sorted(os.sched_getaffinity(0)), sorted(later)]))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core alone: nothing to choose")
def test_a_real_process_and_its_threads_stay_on_the_socket(tmp_path: Path) -> None:
    """Two cores of this machine as a machine of two sockets: recorded layout, real affinity."""
    one, other = sorted(os.sched_getaffinity(0))[:2]
    root = build(tmp_path, sockets([[one], [other]], cores_each=1)).root
    config = topology_config("topology=cpu", "topology.devices_per_node=4", "topology.device.sockets=[0,0,1,1]")

    def child(local_rank: int, allowed: list[int]) -> list[list[int] | None]:
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(local_rank), str(root), json.dumps(allowed)],
            input=config.model_dump_json(by_alias=True), capture_output=True, text=True, check=True,
        )  # fmt: skip
        return json.loads(done.stdout)

    assert child(1, [one, other]) == [[one]] * 3
    assert child(2, [one, other]) == [[other]] * 3
    # Where a scheduler has given us cores of the other socket alone, we keep what it gave.
    assert child(2, [one]) == [None, [one], [one]]


def test_a_discovered_machine_binds_as_it_was_found(tmp_path: Path) -> None:
    """Bus ids in the order of nvidia-smi, NUMA nodes of /sys, sockets of the file: the whole way round."""
    built = dgx_like(tmp_path / "host")
    swapped = gpu_nodes(["1b", "43", "52", "61", "9d", "c3", "d1", "df"], [1, 1, 0, 0, 1, 1, 0, 0])
    for name, text in swapped.items():
        (built.root / name).write_text(text)
    (tmp_path / "mine/topology").mkdir(parents=True)
    found = as_topology(discover_machine(built.root, built.nvidia_smi))
    (tmp_path / "mine/topology/found.yaml").write_text(found)

    topology = topology_config("topology=found", config_dir=tmp_path / "mine").topology

    layout = processors(built.root)
    bound = [cores_of_device(topology, device, layout) for device in range(8)]
    assert bound == [SECOND, SECOND, FIRST, FIRST, SECOND, SECOND, FIRST, FIRST]
