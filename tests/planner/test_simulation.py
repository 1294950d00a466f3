"""The planner's simulation on cases that are computed by hand, and what must hold of every case."""

import ast
from dataclasses import replace
from typing import Any

import pytest
import yaml
from folders import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from leyden.trainer.core.transfers import Placement, Transfer
from leyden.trainer.hardware.schema import Topology
from leyden.trainer.planner.cluster.links import Channel, ClusterLinks, MissingFigure, links_of, occupation
from leyden.trainer.planner.cluster.machine import MeasuredStep, Rates, step_times
from leyden.trainer.planner.cluster.priors import Priors, priors
from leyden.trainer.planner.cluster.simulation import forecast
from leyden.trainer.planner.quantities import ComputeTimes, Cost, LayerWork, StepForecast, StepWork

TWO = Placement(2, 1)
TIMES = ComputeTimes(1.0, 2.0, 0.5, ((50, 1.0), (100, 2.0)), "measured")
LINKS = ClusterLinks(Channel(100.0, 0.0), Channel(100.0, 0.0))
"""100 bytes a second: an all-reduce of n bytes between two workers takes n / 100 seconds."""


def ideal(**changed: Any) -> Priors:
    """The priors, with which nothing waits but for transfers."""
    values: dict[str, Any] = {"synchronization": {"in_node": 0.0, "nodes": 0.0}, "host_jitter_ms": 0.0, **changed}
    known = priors()
    return known.model_copy(
        update={name: getattr(known, name).model_copy(update={"value": value}) for name, value in values.items()}
    )


def bucket(size: float, ready: int | None = None, **more: Any) -> Transfer:
    """A transfer of gradients that overlaps with backward."""
    more = {"overlaps": ("backward",), "after_gradients": ready, **more}
    return TWO.all_reduce("gradients", "backward", size, **more)


def plan(
    *transfers: Transfer, links: ClusterLinks = LINKS, times: ComputeTimes = TIMES, **changed: Any
) -> StepForecast:
    return forecast(times, transfers, TWO, links, ideal(**changed))


def test_without_transfers_a_step_is_its_computation() -> None:
    found = plan()
    assert (found.mean, found.worst, found.exposed) == (3.5, 3.5, 0.0)
    assert dict(found.bound_by) == pytest.approx({"forward": 1 / 3.5, "backward": 2 / 3.5, "update": 0.5 / 3.5})


def test_what_ends_before_backward_does_is_hidden() -> None:
    assert plan(bucket(100, 50)).mean == pytest.approx(3.5)


def test_the_last_bucket_is_waited_for() -> None:
    found = plan(bucket(50, 50), bucket(30, 100))
    assert (found.mean, found.exposed) == pytest.approx((3.8, 0.3))
    assert dict(found.bound_by)["gradients, fabric"] == pytest.approx(0.3 / 3.8)


def test_two_transfers_share_a_link() -> None:
    """The first is under way from second 1 to 2.5 of backward, the other after it, to 3.5."""
    assert plan(bucket(150, 50), bucket(100, 100)).exposed == pytest.approx(1.5)


def test_transfers_on_different_links_go_at_the_same_time() -> None:
    inside = replace(bucket(150, 50), inter_node_bytes=0.0, busiest_inter_node_bytes=0.0)
    placement = Placement(2, 2)
    links = ClusterLinks(Channel(100.0, 0.0), Channel(100.0, 0.0))
    assert occupation(inside, placement, links).links == {"in node"}
    outside = Transfer("gradients", "backward", 50, 50, 1, overlaps=("backward",), pattern="pairs", after_gradients=100)
    assert forecast(TIMES, [inside, outside], placement, links, ideal()).exposed == pytest.approx(1.0)


def test_nothing_overlaps_with_a_transfer_that_says_so() -> None:
    assert plan(TWO.all_reduce("gradients", "update", 100)).mean == pytest.approx(4.5)
    assert plan(bucket(100, 50, overlaps=())).mean == pytest.approx(4.5)


def test_a_lazy_update_is_hidden_by_the_next_forward_up_to_the_layers_that_need_it() -> None:
    lazy = {"overlaps": ("backward", "next forward"), "needed_by": "next forward"}
    # Those of the last layers are needed in the middle of the next forward: 0.5 s update and 0.5 s forward.
    assert plan(bucket(200, 50, **lazy)).exposed == pytest.approx(0.0)
    assert plan(bucket(230, 50, **lazy)).exposed == pytest.approx(0.3)
    # Those of the first layers at its beginning.
    assert plan(bucket(40, 100, **lazy)).exposed == pytest.approx(0.0)
    assert plan(bucket(80, 100, **lazy)).exposed == pytest.approx(0.3)
    assert plan(bucket(80, 100)).exposed == pytest.approx(0.8)


def test_periodic_exchange_has_a_mean_and_a_worst_step() -> None:
    found = plan(TWO.all_reduce("parameters", "update", 400, every=4))
    assert (found.mean, found.worst, found.exposed) == pytest.approx((4.5, 7.5, 1.0))


def test_exchanges_of_different_periods() -> None:
    found = plan(
        TWO.all_reduce("parameters", "update", 100, every=2), TWO.all_reduce("momentum", "update", 100, every=3)
    )
    assert (found.mean, found.worst) == pytest.approx((3.5 + 1 / 2 + 1 / 3, 5.5))


def test_exchanges_of_a_fractional_period() -> None:
    assert plan(TWO.all_reduce("parameters", "update", 100, every=2.5)).mean == pytest.approx(3.5 + 1 / 2.5, rel=1e-3)
    assert plan(TWO.all_reduce("halves", "update", 100, every=0.5)).mean == pytest.approx(3.5 + 2)


def test_all_workers_reach_a_server_at_once() -> None:
    """Three of four workers are on other nodes than the one server: 3 x 50 bytes over its link."""
    placement = Placement(4, 1)
    transfer = placement.with_servers("parameters", "update", [50.0])
    assert occupation(transfer, placement, LINKS).seconds == pytest.approx(1.5)
    slow = replace(LINKS, server_s_per_byte=0.02)
    assert occupation(transfer, placement, slow).seconds == pytest.approx(3.0)
    two = placement.with_servers("parameters", "update", [25.0, 25.0])
    assert occupation(two, placement, LINKS).seconds == pytest.approx(0.75)
    together = replace(placement, servers_on_first=True)
    transfer = together.with_servers("parameters", "update", [25.0, 25.0])
    assert occupation(transfer, together, LINKS).seconds == pytest.approx(1.5), "both share the first node's link"


def test_a_ring_is_as_slow_as_its_slowest_link_and_a_butterfly_adds_its_stages() -> None:
    placement = Placement(4, 2)
    links = ClusterLinks(Channel(200.0, 0.0), Channel(100.0, 0.01))
    ring = placement.all_reduce("gradients", "backward", 100)
    # 1.5 x 100 bytes leave each worker, and each node by one of its two workers.
    assert occupation(ring, placement, links).seconds == pytest.approx(1.5 + 6 * 0.01)
    # 2 x 50 bytes in the node, then 2 x 25 bytes of each of its two workers over the link of the node
    butterfly = Transfer("gradients", "backward", 150, 50, 4, pattern="butterfly")
    assert occupation(butterfly, placement, links).seconds == pytest.approx(0.5 + 1.0 + 4 * 0.01)


def test_sockets_of_a_node() -> None:
    placement = Placement(4, 4)
    links = ClusterLinks(Channel(100.0, 0.0), Channel(1.0, 0.0), Channel(50.0, 0.0), devices_per_socket=2)
    ring = placement.all_reduce("gradients", "backward", 100)
    assert occupation(ring, placement, links).seconds == pytest.approx(150 / 50)
    butterfly = replace(ring, pattern="butterfly")
    assert occupation(butterfly, placement, links).seconds == pytest.approx(100 / 100 + 50 / 50)


def test_computation_is_slower_while_something_is_sent() -> None:
    """Backward's second half takes 1 / (1 - 0.5) s beside a transfer of at least 2 s."""
    links = replace(LINKS, contention=0.5)
    found = plan(bucket(200, 50), links=links)
    assert (found.mean, found.exposed) == pytest.approx((4.5, 0.0))
    assert dict(found.bound_by)["slower computation"] == pytest.approx(1 / 4.5)


def test_a_processor_that_sends_does_not_compute() -> None:
    """All of the 1 s is the processor's."""
    links = ClusterLinks(Channel(1e12, 0.0), Channel(1e12, 0.0), host_s_per_byte=0.01, contention=1.0)
    assert plan(bucket(100, 50), links=links).mean == pytest.approx(4.5)


def test_forward_waits_for_what_its_layers_need() -> None:
    """Activations of the last layers, which have 50 of 100 elements, are sent in the middle of forward."""
    moved = TWO.all_reduce("activations", "forward", 70, overlaps=("forward",), needed_by="forward", after_gradients=50)
    assert plan(moved).exposed == pytest.approx(0.2)


def test_the_slowest_worker_is_waited_for_less_often_with_rare_exchanges() -> None:
    shares = {"in_node": 0.0, "nodes": 0.1}
    each = plan(TWO.all_reduce("parameters", "update", 0.001), synchronization=shares)
    rare = plan(TWO.all_reduce("parameters", "update", 0.001, every=25), synchronization=shares)
    assert (each.mean, rare.mean) == pytest.approx((3.5 * 1.1, 3.5 * 1.02), rel=1e-4)


def test_the_interval_is_wider_for_what_is_known_less() -> None:
    def width(source: str, size: float) -> float:
        found = plan(TWO.all_reduce("parameters", "update", size), times=replace(TIMES, source=source))
        assert found.low < found.mean < found.high
        return found.high / found.low

    sources = ("measured", "other device", "prior")
    assert sorted(sources, key=lambda source: width(source, 1)) == [*sources]
    assert width("measured", 1) < width("measured", 100) < width("measured", 1000)


SIZES = st.floats(1, 1000)
OVERLAPS = st.sampled_from([(), ("backward",), ("backward", "next forward")])


@st.composite
def some_transfers(draw: st.DrawFn) -> list[Transfer]:
    found = []
    for _ in range(draw(st.integers(1, 4))):
        overlaps = draw(OVERLAPS)
        found.append(
            bucket(
                draw(SIZES), draw(st.integers(1, 100)), overlaps=overlaps, every=draw(st.integers(1, 3)),
                needed_by="next forward" if "next forward" in overlaps else "update",
            )
        )  # fmt: skip
    return sorted(found, key=lambda transfer: transfer.after_gradients or 0)


@settings(max_examples=60, deadline=None)
@given(some_transfers(), st.floats(10, 1000), st.floats(1.01, 10))
def test_a_faster_link_never_makes_a_step_slower(transfers: list[Transfer], rate: float, factor: float) -> None:
    slow, fast = (plan(*transfers, links=ClusterLinks(Channel(r, 0.0), Channel(r, 0.0))) for r in (rate, rate * factor))
    assert fast.mean <= slow.mean * (1 + 1e-9)
    sent = sum(transfer.bytes / transfer.every for transfer in transfers) / rate
    assert 3.5 - 1e-9 <= slow.mean <= 3.5 + sent + 1e-9
    assert slow.mean <= slow.worst + 1e-9
    assert slow.mean == pytest.approx(3.5 + slow.exposed)
    assert sum(share for _, share in slow.bound_by) == pytest.approx(1.0)


LAYERS = (
    LayerWork("first", Cost(1e9, 1e6, 1), Cost(2e9, 2e6, 2), 10),
    LayerWork("last", Cost(1e6, 1e9, 1), Cost(2e6, 3e9, 2), 90),
)
WORK = StepWork(4, LAYERS, Cost(0.0, 1e8, 1))


def topology(**more: Any) -> Topology:
    device = {"kind": "cuda", "peak_tflops": {"fp32": 10.0}, "memory_gb_s": 100.0}
    return Topology.model_validate({"launcher": "local", "nodes": 1, "devices_per_node": 1, "device": device, **more})


def test_roofline_of_layers() -> None:
    known = ideal(compute_efficiency={"fp32": 0.5}, memory_efficiency=0.5, launch_us=100.0)
    found = step_times(WORK, topology().device, "fp32", known)
    # 5 TFLOPS, 50 GB/s: arithmetic bounds the first layer, memory the last one, launches what is small.
    assert (found.forward, found.backward, found.update) == pytest.approx((2e-4 + 0.02, 4e-4 + 0.06, 2e-3))
    assert found.ready == ((90, pytest.approx(0.06)), (100, pytest.approx(0.0604)))
    small = Cost(1e3, 1e3, 3)
    assert Rates.of(topology().device, "fp32", known).seconds(small) == pytest.approx(3e-4)
    assert found.source == "prior"


def test_a_measured_step_comes_before_flop_and_another_device_before_a_guess() -> None:
    device = topology().device
    own = step_times(WORK, device, "fp32", priors(), MeasuredStep(1.0, 2.0, 0.5))
    assert (own.total, own.source, own.ready[-1]) == (3.5, "measured", (100, 2.0))
    other = step_times(WORK, device, "fp32", priors(), MeasuredStep(1.0, 2.0, 0.5, memory_gb_s=50.0))
    assert (other.total, other.source) == (1.75, "other device")
    unknown = device.model_copy(update={"memory_gb_s": None})
    assert step_times(WORK, unknown, "fp32", priors(), MeasuredStep(1.0, 2.0, 0.5)).ready[-1] == (100, 2.0)
    with pytest.raises(MissingFigure, match=r"topology\.device\.memory_gb_s .*doctor --write"):
        step_times(WORK, unknown, "fp32", priors())


def test_links_of_a_topology() -> None:
    known = ideal(link_efficiency={"nvlink": 0.8, "pcie": 0.5, "host": 0.4, "rdma": 0.8, "tcp": 0.5})
    declared = topology(
        nodes=2, devices_per_node=2, links={"in_node": {"gb_s": 11, "latency_us": 7}},
        fabric={"kind": "ethernet", "rate_gbit_s": 10, "rails": 2},
    )  # fmt: skip
    found = links_of(declared, known)
    assert (found.in_node.rate, found.in_node.latency) == pytest.approx((11e9, 7e-6))
    assert (found.fabric.rate, found.fabric.source) == (pytest.approx(1.25e9), "prior")
    kind = links_of(topology(devices_per_node=2, links={"in_node": {"kind": "pcie3"}}), known)
    assert kind.in_node.rate == pytest.approx(15.75e9 / 2)


@pytest.mark.parametrize(
    ("more", "key"),
    [({"devices_per_node": 2}, "topology.links.in_node.gb_s"), ({"nodes": 2}, "topology.fabric.gb_s")],
)
def test_a_link_that_is_not_known(more: dict[str, Any], key: str) -> None:
    with pytest.raises(MissingFigure, match=rf"{key} is not known.*leyden doctor --write"):
        links_of(topology(**more), priors())


def test_constants_have_a_unit_and_a_source_and_are_few() -> None:
    values = yaml.safe_load((ROOT / "conf/planner/priors.yaml").read_text())
    assert len(set(values) - {"interval"}) <= 12
    assert all(set(entry) == {"value", "unit", "source"} and all(entry.values()) for entry in values.values())


def test_no_strategy_is_named_in_the_planner() -> None:
    names = {path.stem for path in (ROOT / "conf/strategy").glob("*.yaml")}
    names |= {path.name for path in (ROOT / "trainer/strategies").iterdir() if path.is_dir()} - {"__pycache__"}
    for file in (ROOT / "trainer/planner").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(file.read_text())))
        words = {str(node.value).lower() for node in nodes if isinstance(node, ast.Constant)}
        words |= {node.id.lower() for node in nodes if isinstance(node, ast.Name)}
        named = words & (names - {"butterfly"})  # a pattern of messages has the name, too
        assert not named, f"{file}: {named}"
