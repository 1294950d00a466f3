"""The preflight: what it finds wrong with machines, and how a run that it refuses ends."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from agents import Agent, start_two
from folders import SUPPORT
from machines import build, interface, port, topology_config
from runs import TINY, Freeze, Processes, summary

from leyden.trainer.base.errors import Problem
from leyden.trainer.base.log import log
from leyden.trainer.diagnostics.preflight.devices import shared_devices
from leyden.trainer.diagnostics.preflight.machines import _folder_problems, merge_problems
from leyden.trainer.diagnostics.preflight.nccl_log import Network, network
from leyden.trainer.diagnostics.preflight.network import adapter_problems, interface_problems
from leyden.trainer.diagnostics.preflight.transport import transport_problem
from leyden.trainer.hardware.discovery.network import ports
from leyden.trainer.hardware.schema import Topology

LOGS = SUPPORT / "nccl_logs"
LOCAL = [*TINY, "strategy=ddp", "topology.devices_per_node=2", "trainer.max_steps=2"]
NODES = [*TINY, "strategy=ddp", "topology.launcher=node", "topology.nodes=2", "trainer.max_steps=2"]


def fabric(*overrides: str) -> Topology:
    return topology_config("topology.nodes=2", "topology.launcher=node", "strategy=ddp", *overrides).topology


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("roce", Network("IB", ("mlx5_10:1", "mlx5_11:1"))),
        ("ib_plugin", Network("IBext", ("mlx5_0:1", "mlx5_1:1", "mlx5_4:1", "mlx5_5:1"))),
        ("merged_ports", Network("IBext_v8", ("mlx5_2:1", "mlx5_3:1", "mlx5_0:1", "mlx5_1:1"), gpudirect=False)),
        ("ib_gpudirect", Network("IB", ("mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1"), gpudirect=True)),
        ("libfabric", Network("AWS Libfabric", provider="efa")),
        ("socket", Network("Socket", interfaces=("eth0",))),
        ("socket_before_2_5", Network("Socket", interfaces=("ens3",))),
    ],
)
def test_logs_of_nccl_as_users_published_them(name: str, expected: Network) -> None:
    assert network((LOGS / f"{name}.log").read_text()) == expected
    assert expected.tcp == name.startswith("socket")


def test_sockets_are_refused_where_rdma_was_declared_and_nowhere_else() -> None:
    sockets = network((LOGS / "socket.log").read_text())
    declared = fabric("topology.fabric.kind=infiniband")
    problem = transport_problem(declared, sockets)
    assert problem is not None
    assert "TCP sockets (eth0), not over RDMA: it found no adapter" in problem.text
    assert "topology.fabric.allow_tcp=true" in problem.remedy
    # adapters are there, and NCCL_NET=Socket or a plugin that could not start took something else
    forced = network((LOGS / "roce.log").read_text().replace("network IB", "network Socket"))
    problem = transport_problem(fabric("topology.fabric.kind=roce"), forced)
    assert problem is not None
    assert "although it found mlx5_10:1, mlx5_11:1" in problem.text
    over_tcp = network((LOGS / "libfabric.log").read_text().replace("is efa", "is tcp"))
    assert transport_problem(declared, over_tcp) is not None
    rdma = network((LOGS / "roce.log").read_text())
    allowed = fabric("topology.fabric.kind=infiniband", "topology.fabric.allow_tcp=true")
    fine = [(declared, rdma), (allowed, sockets), (fabric("topology.fabric.kind=ethernet"), sockets), (declared, None)]
    assert [transport_problem(topology, found) for topology, found in fine] == [None] * 4


def test_adapters_that_are_down_are_named(tmp_path: Path) -> None:
    files = port("mlx5_0", "400 Gb/sec (4X NDR)") | port("mlx5_1", "10 Gb/sec (4X SDR)", "1: DOWN")
    there = ports(build(tmp_path, files).root)
    rdma = "topology.fabric.kind=infiniband"

    def found(*overrides: str) -> list[str]:
        return [problem.text for problem in adapter_problems(fabric(*overrides).fabric, there)]

    assert found(rdma) == found(rdma, "topology.fabric.adapters=[mlx5_0]") == found() == []
    assert found(rdma, "topology.fabric.adapters=[mlx5_0,mlx5_1]") == ["adapter mlx5_1 is DOWN"]
    assert found(rdma, "topology.fabric.adapters=['mlx5_2:1']") == ["adapter mlx5_2:1 is not there"]
    assert found("topology.fabric.kind=roce") == ["no RoCE adapter is active: the kernel knows no RoCE adapter"]
    there = there[1:]
    assert found(rdma) == ["no InfiniBand adapter is active: mlx5_1 port 1 is DOWN"]


def test_interfaces_of_gloo(tmp_path: Path) -> None:
    root = build(tmp_path, interface("ens5") | interface("eno2", "down")).root
    assert not list(interface_problems({}, root))
    assert not list(interface_problems({"GLOO_SOCKET_IFNAME": "ens5"}, root))
    (down,) = interface_problems({"GLOO_SOCKET_IFNAME": "eno2"}, root)
    assert "eno2, which is down; up are ens5" in down.text


def test_a_device_that_two_workers_share() -> None:
    nodes = ["node 0 (a)", "node 0 (a)", "node 1 (b)", "node 1 (b)"]
    assert not shared_devices(["GPU-1", "GPU-2", "GPU-3", "GPU-4"], nodes)
    assert not shared_devices([None, None, None, None], nodes), "on the CPU"
    (problem,) = shared_devices(["GPU-1", "GPU-1", "GPU-3", "GPU-4"], nodes)
    assert problem.text == "node 0 (a): ranks 0, 1 would share the GPU GPU-1"


def test_a_problem_of_several_nodes_is_told_once() -> None:
    problem = Problem("key", "it is down", remedy="mend it").as_data()
    said = [{"node": f"node {n}", "problems": [problem] if n else []} for n in (0, 1, 2, 2)]
    assert merge_problems(said) == [Problem("key", "node 1, node 2: it is down", remedy="mend it")]


def test_clocks_that_differ_are_told_and_break_nothing(caplog: pytest.LogCaptureFixture) -> None:
    said = [
        {"node": f"node {n}", "ahead": ahead, "first": True, "problems": []}
        for n, ahead in enumerate((0.0, 0.3, -61.0))
    ]
    log.addHandler(caplog.handler)
    try:
        assert _folder_problems(said) == []
    finally:
        log.removeHandler(caplog.handler)
    (told,) = {record.getMessage() for record in caplog.records}
    assert "the clock of node 2 is 61 s behind node 0's" in told


@pytest.mark.slow
def test_a_refused_run_leaves_nothing_and_exits_3(freeze: Freeze, processes: Processes) -> None:
    run_dir = freeze("run", *LOCAL)
    process = processes.start(run_dir, GLOO_SOCKET_IFNAME="nowhere0")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 3, output
    assert "leyden: refused by the preflight, no step was made" in output
    assert "GLOO_SOCKET_IFNAME = nowhere0" in output
    assert "nowhere0, which is not there; up are " in output
    assert "Traceback" not in output
    assert not run_dir.exists()


@pytest.mark.slow
@pytest.mark.skipif(os.path.isdir("/sys/class/infiniband"), reason="there are adapters here")
def test_a_fabric_that_is_not_there_is_refused_on_all_nodes(freeze: Freeze, agents: list[Agent]) -> None:
    run_dir = freeze("run", *NODES, "topology.fabric.kind=infiniband")
    first, second = start_two(agents, run_dir)
    assert (first.code(), second.code()) == (3, 3), first.output + second.output
    for agent in (first, second):
        assert "topology.fabric.kind = infiniband" in agent.output
        assert "node 0 (" in agent.output
        assert "no InfiniBand adapter is active" in agent.output
        assert "Traceback" not in agent.output
    assert summary(run_dir)["status"] == "refused"
    assert "no InfiniBand adapter" in summary(run_dir)["error"]
    assert not list(run_dir.glob(".preflight*"))


def can_mount() -> bool:
    return shutil.which("unshare") is not None and not subprocess.run(["unshare", "-m", "true"]).returncode


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="needs the right to mount")
def test_a_folder_of_the_same_name_on_another_disk_is_found_out(freeze: Freeze, agents: list[Agent]) -> None:
    run_dir = freeze("run", *NODES, "topology.fabric.kind=infiniband", "topology.fabric.allow_tcp=true")
    first = Agent(run_dir, "127.0.0.1:0")
    agents.append(first)
    rendezvous = first.rendezvous()

    def on_own_disk(*files: str) -> Agent:
        kept = f'd=$(mktemp -d); cp -p {" ".join(f"$0/{file}" for file in files)} "$d"'
        own_disk = f'{kept}; mount -t tmpfs none "$0"; cp -p "$d"/* "$0"; exec "$@"'
        agents.append(Agent(run_dir, rendezvous, prefix=["unshare", "-m", "sh", "-c", own_disk, str(run_dir)]))
        return agents[-1]

    # without the run's secret it is a stranger; the first node goes on waiting
    stranger = on_own_disk("config.yaml")
    assert stranger.code() == 3, stranger.output
    assert "is it the same run, in the same folder?" in stranger.output
    second = on_own_disk("config.yaml", "secret")
    assert (first.code(), second.code()) == (3, 3), first.output + second.output
    for agent in (first, second):
        assert "node 1 (" in agent.output
        assert "this is not the folder that node 0 writes to" in agent.output
    assert not list(run_dir.glob(".preflight*"))


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="needs the right to mount")
def test_a_disk_without_room_for_checkpoints(freeze: Freeze, processes: Processes) -> None:
    run_dir = freeze("run", *LOCAL, "model.hidden=[2000,2000]")
    small = 'c=$(cat "$0/config.yaml"); mount -t tmpfs -o size=4m none "$0"; echo "$c" > "$0/config.yaml"; exec "$@"'
    process = processes.start(run_dir, prefix=["unshare", "-m", "sh", "-c", small, str(run_dir)])
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 3, output
    assert "GB free, and two checkpoints of 4,1" in " ".join(output.split())
    assert "hydra.run.dir=FOLDER on a larger disk" in output
