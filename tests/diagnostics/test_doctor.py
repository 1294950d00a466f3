"""`leyden doctor`: who is named slow, from made-up figures and from hosts that are; what it leaves behind."""

import itertools
import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from agents import Agent
from hosts import available
from machines import topology_config
from runs import summary, wait_until
from switched_hosts import SwitchedHosts

from leyden.trainer.diagnostics.doctor import link_bench
from leyden.trainer.diagnostics.doctor.findings import findings
from leyden.trainer.diagnostics.doctor.heat_map import heat_map
from leyden.trainer.diagnostics.doctor.measured_topology import as_yaml
from leyden.trainer.diagnostics.doctor.pairing import all_rounds, tournament
from leyden.trainer.diagnostics.doctor.results import (
    CollectiveFigures,
    DeviceFigures,
    LinkFigures,
    LinkKind,
    Result,
    WorkerFigures,
)  # fmt: skip

MIB = 1 << 20


def made_up(nodes: int, each: int, slow: dict[tuple[int, int], float] | None = None, **rates: float) -> Result:
    """A cluster whose devices and links are alike, but for some links, and for devices as rank3=0.5 times the rest."""
    ranks = range(nodes * each)
    workers = [WorkerFigures(rank, rank // each, rank % each, "abcdefgh"[rank // each], "GPU") for rank in ranks]
    devices = [DeviceFigures({"fp32": 1000 * rates.get(f"rank{r}", 1.0) + r}, 100.0) for r in ranks]
    links: list[LinkFigures] = []
    for one, other in itertools.permutations(ranks, 2):
        together = one // each == other // each
        if together or one % each == other % each == 0:
            kind: LinkKind = "in_node" if together else "fabric"
            usual = 40.0 if together else 10.0
            links.append(
                LinkFigures(one, other, kind, 5.0, {MIB: usual * (slow or {}).get((one, other), 1.0) + one / 100})
            )
    return Result(workers, devices, links)


def named(result: Result, *overrides: str) -> list[tuple[str, str]]:
    topology = topology_config("topology=cpu", *overrides).topology
    return [(found.what, found.name) for found in findings(result, topology)]


def test_pairs_meet_once_and_nobody_twice_in_a_round() -> None:
    for count in range(2, 9):
        rounds = tournament(range(count))
        assert len(rounds) == count - 1 + count % 2
        assert sorted(tuple(sorted(pair)) for pairs in rounds for pair in pairs) == list(
            itertools.combinations(range(count), 2)
        )
        for pairs in rounds:
            players = [player for pair in pairs for player in pair]
            assert len(players) == len(set(players))
    assert tournament([7]) == []
    assert all_rounds([[0, 1], [2, 3]]) == [[(0, 1), (2, 3)], [(0, 2)]]


def test_nobody_is_named_where_all_is_well() -> None:
    for nodes, each in ((1, 1), (1, 8), (2, 1), (3, 2), (8, 4)):
        assert named(made_up(nodes, each)) == []


def test_slow_devices_and_hosts() -> None:
    assert named(made_up(2, 4, rank5=0.7)) == [("device", "rank 5 (device 1 of node 1 (b))")]
    assert named(made_up(1, 2, rank1=0.5)) == [("device", "rank 1 (device 1 of node 0 (a))")]
    assert named(made_up(3, 2, rank4=0.6, rank5=0.6)) == [("node", "node 2 (c)")]


def test_slow_links_and_the_node_behind_all_of_them() -> None:
    one = {(0, 1): 0.5}
    assert named(made_up(1, 4, one)) == [("link", "rank 0 to rank 1 in node 0 (a)")]
    assert named(made_up(4, 1, one)) == [("link", "node 0 (a) to node 1 (b)")]
    # of three nodes one is slow, in both directions: four of the six are slow, and it is to blame alone
    both = {(2, 0): 0.4, (2, 1): 0.4, (0, 2): 0.4, (1, 2): 0.4}
    (found,) = findings(made_up(3, 1, both), topology_config("topology=cpu").topology)
    assert (found.what, found.name) == ("node", "node 2 (c)")
    assert "sends 4.02 GB/s at best" in found.text
    assert "receives" in found.text
    sends = {(2, 0): 0.4, (2, 1): 0.4}
    (found,) = findings(made_up(3, 1, sends), topology_config("topology=cpu").topology)
    assert found.name == "node 2 (c)"
    assert "receives" not in found.text


def test_what_the_topology_declares() -> None:
    fine = ["topology.fabric.gb_s=12", "topology.links.in_node.gb_s=50", "topology.device.memory_gb_s=120"]
    assert named(made_up(2, 2), *fine, "topology.device.peak_tflops.fp32=1.5") == []
    assert named(made_up(2, 2), "topology.fabric.gb_s=20") == [("topology", "topology.fabric.gb_s")]
    assert named(made_up(2, 2), "topology.fabric.rate_gbit_s=400") == [("topology", "topology.fabric.rate_gbit_s / 8")]
    assert named(made_up(2, 2), "topology.links.in_node.gb_s=60") == [("topology", "topology.links.in_node.gb_s")]
    assert named(made_up(1, 1), "topology.device.peak_tflops.fp32=4", "topology.device.memory_gb_s=200") == [
        ("topology", "topology.device.peak_tflops.fp32"), ("topology", "topology.device.memory_gb_s"),
    ]  # fmt: skip


def test_measured_figures_make_a_topology(tmp_path: Path) -> None:
    declared = topology_config(
        "topology=cpu", "topology.nodes=2", "topology.devices_per_node=2", "topology.launcher=node", "strategy=ddp",
        "topology.fabric.gb_s=99", "topology.fabric.interface=eth0", "topology.host.sockets=1",
    ).topology  # fmt: skip
    (tmp_path / "topology").mkdir()
    result = made_up(2, 2)
    result.collectives += [
        CollectiveFigures("all_reduce", "all workers", 4, {1024: 1e-4, 1 << 20: 2e-3}),
        CollectiveFigures("all_reduce", "node 0 (a)", 2, {1024: 2e-5, 1 << 20: 1e-4}),
        CollectiveFigures("all_reduce", "node 1 (b)", 2, {1024: 4e-5, 1 << 20: 3e-4}),
    ]
    text = as_yaml(declared, result, date(2026, 11, 22))
    (tmp_path / "topology/mine.yaml").write_text(text)
    found = topology_config("topology=mine", "strategy=ddp", config_dir=tmp_path).topology
    assert (found.launcher, found.nodes, found.devices_per_node, found.host.sockets) == ("node", 2, 2, 1)
    assert found.fabric.interface == "eth0"
    assert found.fabric.gb_s == pytest.approx(10.01, rel=1e-3)
    assert found.links.in_node.gb_s == pytest.approx(40.015, rel=1e-3)
    assert found.links.in_node.latency_us == 5
    assert found.device.peak_tflops.fp32 == pytest.approx(1.0015, rel=1e-3)
    assert found.device.memory_gb_s == 100
    everywhere, inside = found.collectives
    assert (everywhere.scope, everywhere.workers, everywhere.bytes) == ("all", 4, [1024, 1 << 20])
    assert everywhere.ms == pytest.approx([0.1, 2.0])
    assert (inside.scope, inside.workers, inside.ms) == ("node", 2, pytest.approx([0.03, 0.2]))
    assert text.count("[measured] by leyden doctor on 2026-11-22") == 7


def test_the_slow_link_is_the_dark_one() -> None:
    picture = heat_map(made_up(1, 4, {(1, 2): 0.2}))
    luminance = picture.convert("L")

    def cell(row: int, column: int) -> Any:
        return luminance.getpixel((44 + column * 64 + 6, 44 + row * 64 + 6))

    shades = {(row, column): cell(row, column) for row, column in itertools.permutations(range(4), 2)}
    assert min(shades, key=lambda place: shades[place]) == (1, 2)
    assert sorted(shades.values())[1] > 2 * shades[1, 2]
    assert cell(0, 0) == 225
    assert heat_map(made_up(8, 16)).width < 4000


@pytest.mark.slow
def test_two_workers_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "topology").mkdir()
    command = [
        sys.executable, "-m", "leyden", "doctor", "topology=cpu", "topology.devices_per_node=2",
        "hydra.run.dir=found", "--write", "topology/mine.yaml",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    found = json.loads((tmp_path / "found/result.json").read_text())
    assert done.returncode == (1 if found["findings"] else 0), done.stdout + done.stderr
    assert summary(tmp_path / "found")["status"] == ("slow" if found["findings"] else "done")
    assert [worker["rank"] for worker in found["workers"]] == [0, 1]
    assert all(device["gflop_s"]["fp32"] > 1 and device["memory_gb_s"] > 0.1 for device in found["devices"])
    assert sorted((link["source"], link["target"], link["kind"]) for link in found["links"]) == [
        (0, 1, "in_node"), (1, 0, "in_node"),
    ]  # fmt: skip
    assert sorted(collective["name"] for collective in found["collectives"]) == ["all_reduce", "all_to_all"]
    for title in ("devices", "links, one way", "collectives"):
        assert title in done.stdout
    assert (tmp_path / "found/links.png").read_bytes().startswith(b"\x89PNG")
    assert list((tmp_path / "found").glob("events.out.tfevents.*"))
    measured = topology_config("topology=mine", config_dir=tmp_path).topology
    assert (measured.devices_per_node, measured.device.kind) == (2, "cpu")
    assert measured.links.in_node.gb_s is not None
    assert [(each.name, each.scope, each.workers) for each in measured.collectives] == [
        ("all_reduce", "node", 2), ("all_to_all", "node", 2),
    ]  # fmt: skip


class SlowLink:
    """A link of 0.0125 GB/s and 100 us, whose first message of one size waits for half a second; and its clock."""

    def __init__(self, stalled: int):
        self.now = 0.0
        self._stalled, self._size = stalled, 0

    def send(self, message: torch.Tensor, target: int) -> None:
        if message.dtype == torch.uint8:
            self._size = message.numel()

    def recv(self, answer: torch.Tensor, target: int) -> None:
        self.now += 2e-4 + self._size / 12.5e6
        if self._size == self._stalled:
            self.now, self._stalled = self.now + 0.5, 0


@pytest.mark.parametrize("stalled", [8, 1 << 16, MIB])
def test_a_busy_machine_makes_no_link_slow(stalled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender waited for a core: by that, 64 KiB took no more than 8 bytes (65,536 GB/s), and more was not sent."""
    link = SlowLink(stalled)
    monkeypatch.setattr(link_bench, "dist", link)
    monkeypatch.setattr(link_bench, "time", SimpleNamespace(perf_counter=lambda: link.now))
    group = SimpleNamespace(device=torch.device("cpu"), rank=0, kind=lambda *_: "node", finish_work=lambda: None)
    found = vars(link_bench)["_measure_as_sender"](group, 1)
    assert found.latency_us == pytest.approx(100, rel=0.01)
    assert found.gb_s == pytest.approx(dict.fromkeys((1 << 16, MIB, 16 * MIB), 0.0125), rel=0.02)


@pytest.mark.slow
@pytest.mark.skipif(not available(), reason="needs root, `ip` and `tc`, for network namespaces")
@pytest.mark.parametrize("exact", [False, pytest.param(True, marks=pytest.mark.campaign)])
def test_the_slow_one_of_three_hosts_is_named(exact: bool, tmp_path: Path, agents: list[Agent]) -> None:
    command = [
        sys.executable, "-m", "leyden", "doctor", "topology=cpu", "topology.launcher=node", "topology.nodes=3",
        "topology.fabric.rate_gbit_s=0.1", "hydra.run.dir=found",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "leyden node --rendezvous" in done.stdout, done.stderr
    with SwitchedHosts([100, 100, 30]) as hosts:
        for number in range(3):
            agents.append(Agent(tmp_path / "found", f"{hosts.addresses[0]}:29400", prefix=hosts.prefix(number)))
            # the order in which they come is their number
            wait_until(lambda: "node " in agents[-1].output)
        codes = [agent.code(240) for agent in agents]
    output = "".join(agent.output for agent in agents)
    assert codes == [1, 1, 1], output
    found = json.loads((tmp_path / "found/result.json").read_text())
    rates = {(link["source"], link["target"]): link["gb_s"][max(link["gb_s"], key=int)] for link in found["links"]}
    fast = [rates[pair] for pair in ((0, 1), (1, 0), (0, 2), (1, 2))]
    assert min(fast) > 2 * max(rates[2, 0], rates[2, 1]), rates
    assert not exact or (min(fast) > 0.0100 and max(fast) < 0.0125), rates
    assert [item["name"].split()[1] for item in found["findings"] if item["what"] == "node"] == ["2"], output
    assert "sends" in next(item["text"] for item in found["findings"] if item["what"] == "node")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["model=mlp"], "the doctor measures a topology"),
        (["topology=cpu", "--write", "nowhere/mine.yaml"], "there is no such folder"),
        (["topology.devices_per_node=1,2"], "one topology at a time"),
        (["topology=cpu", "topology.devices_per_node=0"], "topology.devices_per_node = 0"),
    ],
)
def test_mistakes(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from leyden.trainer.cli.main import main

    monkeypatch.chdir(tmp_path)
    assert main(["doctor", *words]) == 2
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
