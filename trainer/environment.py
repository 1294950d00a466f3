"""Environment variables of NCCL and Gloo that follow from the topology: the one place where they are decided."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .binding import described
from .config import Config, Topology
from .discovery.adapters import ports
from .discovery.interfaces import interfaces
from .errors import Problem, listed, nearest, raise_all
from .run_folder import write_whole
from .topology import device_kind

FILE = "environment.txt"
_FAMILIES = ("NCCL_", "TORCH_NCCL_", "GLOO_")
USABLE = ("up", "unknown")
"""Operstates of an interface that carries traffic; lo and tunnels are `unknown`."""


@dataclass(frozen=True)
class Setting:
    """One variable, the value that the topology gives it, and what the user had set it to."""

    name: str
    value: str
    because: str
    """The key, or the reason, that it follows from."""
    given: str | None = None

    def line(self) -> str:
        if self.given is None:
            return f"{self.name}={self.value}  ({self.because})"
        differs = "" if self.given == self.value else f"; {self.because} would give {self.value}"
        return f"{self.name}={self.given}  (set by you{differs})"


def settings(topology: Topology, kind: Literal["cpu", "cuda"], given: Mapping[str, str]) -> list[Setting]:
    """What a worker's environment should hold.

    Args:
        topology: the hardware.
        kind: what the workers compute on; those on the CPU talk through Gloo, which takes an interface alone.
        given: the environment as the user has set it. It wins.
    """
    wanted = [*(_nccl(topology) if kind == "cuda" else ()), *_gloo(topology)]
    return [Setting(name, value, because, given.get(name)) for name, value, because in wanted]


def _gloo(topology: Topology) -> Iterator[tuple[str, str, str]]:
    if topology.fabric.interface is not None:
        yield "GLOO_SOCKET_IFNAME", topology.fabric.interface, "topology.fabric.interface"


def _nccl(topology: Topology) -> Iterator[tuple[str, str, str]]:
    fabric = topology.fabric
    # 3, torch's own default: a collective that failed ends the worker at once, without waiting for NCCL's clean-up.
    yield "TORCH_NCCL_ASYNC_ERROR_HANDLING", "3", "a failed collective ends its worker"
    if fabric.interface is not None:
        # With =, the name is that of one interface; without, eth1 would be eth10 as well. Adapters likewise.
        yield "NCCL_SOCKET_IFNAME", f"={fabric.interface}", "topology.fabric.interface"
    if fabric.kind is not None:
        yield "NCCL_IB_DISABLE", "1" if fabric.kind == "ethernet" else "0", f"topology.fabric.kind={fabric.kind}"
    if fabric.kind in ("infiniband", "roce"):
        yield from _rdma(topology)


def _rdma(topology: Topology) -> Iterator[tuple[str, str, str]]:
    fabric = topology.fabric
    if fabric.adapters:
        yield "NCCL_IB_HCA", f"={','.join(fabric.adapters)}", "topology.fabric.adapters"
    numbers = {
        "NCCL_IB_GID_INDEX": ("gid_index", fabric.gid_index if fabric.kind == "roce" else None),
        "NCCL_NET_GDR_LEVEL": ("gpudirect", fabric.gpudirect),
        "NCCL_IB_TIMEOUT": ("timeout", fabric.timeout),
        "NCCL_IB_RETRY_CNT": ("retry_count", fabric.retry_count),
    }
    for name, (key, value) in numbers.items():
        if value is not None:
            yield name, str(value), f"topology.fabric.{key}"


def lines(decided: Sequence[Setting], given: Mapping[str, str]) -> list[str]:
    """What is in force, a line each: what the topology gives, then whatever else the user has set of these families."""
    named = {setting.name for setting in decided}
    others = [name for name in sorted(given) if name.startswith(_FAMILIES) and name not in named]
    return [*(setting.line() for setting in decided), *(f"{name}={given[name]}  (set by you)" for name in others)]


def not_on_this_machine(decided: Sequence[Setting], root: Path = Path("/")) -> Iterator[Problem]:
    """The interface and the adapters of the topology that this machine does not have, where they would be used."""
    used = {setting.name: setting.value.removeprefix("=") for setting in decided if setting.given is None}
    meeting = [name for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if name in used]
    if meeting:
        yield from _interface_problem(used[meeting[0]], meeting, root)
    if "NCCL_IB_HCA" in used:
        yield from _adapter_problems(used["NCCL_IB_HCA"].split(","), root)


def _interface_problem(name: str, variables: Sequence[str], root: Path) -> Iterator[Problem]:
    there = {interface.name: interface.state for interface in interfaces(root)}
    if there.get(name) in USABLE:
        return
    usable = [other for other, state in there.items() if state in USABLE]
    text = f"this machine's network interface {name} is {there[name]}" if name in there else "no such network interface"
    close = nearest(name, [other for other in usable if other != "lo"]) or (usable or ["null"])[-1]
    remedy = f"topology.fabric.interface={close}, or {' and '.join(variables)} in the environment"
    yield Problem("topology.fabric.interface", f"{text}; up are {listed(usable) or 'none'}", name, remedy)


def _adapter_problems(names: Sequence[str], root: Path) -> Iterator[Problem]:
    there = ports(root)
    known = {known for port in there for known in (port.adapter, f"{port.adapter}:{port.number}")}
    absent = [name for name in names if name not in known]
    if absent:
        # NCCL would say nothing and take the sockets of the interface instead, at a tenth of the speed.
        adapters = list(dict.fromkeys(port.adapter for port in there))
        text = f"this machine has no adapter {listed(absent)}; it has {listed(adapters) or 'none'}"
        remedy = f"topology.fabric.adapters=[{','.join(adapters)}]" if adapters else "topology.fabric.kind=ethernet"
        yield Problem("topology.fabric.adapters", text, f"[{','.join(names)}]", remedy)


def apply(config: Config, run_dir: Path | None, node: int = 0) -> None:
    """Set the variables in this process, whose children the workers are, and say so.

    Args:
        run_dir: where the first node writes environment.txt; None: nowhere.
        node: which of the run's nodes this is.

    Raises:
        ConfigError: the topology names an interface or an adapter that this machine does not have.
    """
    given = dict(os.environ)
    decided = settings(config.topology, device_kind(config.topology), given)
    raise_all(not_on_this_machine(decided))
    os.environ.update({setting.name: setting.value for setting in decided if setting.given is None})
    if node != 0:
        return
    said = lines(decided, given)
    for line in said:
        print(f"environment: {line}", flush=True)
    saved = [*said, *described(config.topology, given)]
    if saved and run_dir is not None:
        write_whole(run_dir / FILE, "\n".join(saved) + "\n")
