"""Check that the adapters and interfaces of a run are up."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ...base.errors import Problem, join_names
from ...hardware.comm_env import USABLE
from ...hardware.discovery.network import Port, interfaces
from ...hardware.schema import Fabric

RDMA = ("infiniband", "roce")


def adapter_problems(fabric: Fabric, there: Sequence[Port]) -> Iterator[Problem]:
    """Problems of inactive adapters of the fabric: NCCL would silently use TCP instead."""
    if fabric.kind not in RDMA:
        return
    kind = {"infiniband": "InfiniBand", "roce": "RoCE"}[fabric.kind]
    of_kind = [port for port in there if port.kind == fabric.kind]
    remedy = "repair the link (ibstat shows it), or topology.fabric.allow_tcp=true to train over TCP, many times slower"
    if not fabric.adapters:
        if not any(port.active for port in of_kind):
            states = join_names([f"{port.adapter} port {port.number} is {port.state}" for port in of_kind])
            text = f"no {kind} adapter is active: {states or f'the kernel knows no {kind} adapter'}"
            yield Problem("topology.fabric.kind", text, fabric.kind, remedy)
        return
    for name in fabric.adapters:
        named = [port for port in there if name in (port.adapter, f"{port.adapter}:{port.number}")]
        if not any(port.active for port in named):
            text = f"adapter {name} is {named[0].state if named else 'not there'}"
            yield Problem("topology.fabric.adapters", text, f"[{','.join(fabric.adapters)}]", remedy)


def interface_problems(environment: Mapping[str, str], root: Path = Path("/")) -> Iterator[Problem]:
    """Problems of Gloo's interface: missing on this machine, or down."""
    name = environment.get("GLOO_SOCKET_IFNAME")
    there = {interface.name: interface.state for interface in interfaces(root)}
    if name is None or there.get(name) in USABLE or not there:
        return
    up = [other for other, state in there.items() if state in USABLE]
    text = (
        f"Gloo is to use the network interface {name}, which is {there.get(name, 'not there')}; up are {join_names(up)}"
    )
    yield Problem("GLOO_SOCKET_IFNAME", text, name, "topology.fabric.interface=NAME, or unset the variable")
