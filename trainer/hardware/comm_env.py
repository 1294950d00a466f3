"""Environment variables of NCCL and Gloo derived from the topology. No other module sets them."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..base.atomic_file import write_atomically
from ..base.errors import Problem, join_names, nearest, raise_all
from .affinity import describe_binding
from .discovery.network import interfaces, ports
from .schema import Topology
from .topology import device_kind

FILE = "environment.txt"
_SECRET = re.compile(r"TOKEN|SECRET|PASS(W|PHRASE)|CREDENTIAL|AUTH|(?<!IB_P)KEY", re.IGNORECASE)
"""Names of variables whose values may be secrets; NCCL_IB_PKEY is the number of a partition."""
_CREDENTIALS = re.compile(r"//[^/\s]*@")
"""User and password in a URL."""
_FAMILIES = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "GLOO_")
_EARLIER_NAMES = {"TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE"}
"""Still read by torch, after the new name: a user's value under one of them keeps ours from being set."""
LOOPBACK = "lo"
_ONE_HOST = "a run of one host"
USABLE = ("up", "unknown")
"""Operstates of a usable interface; lo and tunnels are `unknown`."""


@dataclass(frozen=True)
class Setting:
    """One variable: its value by the topology, and the user's value, which wins."""

    name: str
    value: str
    because: str
    """The key or reason of the value."""
    user_value: str | None = None

    def line(self) -> str:
        if self.user_value is None:
            return f"{self.name}={self.value}  ({self.because})"
        differs = "" if self.user_value == self.value else f"; {self.because} would give {self.value}"
        return f"{self.name}={_without_secrets(self.name, self.user_value)}  (set by you{differs})"


def settings(topology: Topology, kind: Literal["cpu", "cuda"], user_environment: Mapping[str, str]) -> list[Setting]:
    """Variables for a worker's environment.

    Args:
        topology: the hardware.
        kind: device kind of the workers; on the CPU they communicate by Gloo, which needs only an interface.
        user_environment: variables set by the user, which win.
    """
    wanted = [*(_nccl(topology) if kind == "cuda" else ()), *_gloo(topology)]
    return [
        Setting(name, value, because, user_environment.get(name))
        for name, value, because in wanted
        if _EARLIER_NAMES.get(name, "") not in user_environment
    ]


def _gloo(topology: Topology) -> Iterator[tuple[str, str, str]]:
    if topology.fabric.interface is not None:
        yield "GLOO_SOCKET_IFNAME", topology.fabric.interface, "topology.fabric.interface"
    elif topology.nodes == 1:
        # without it Gloo listens at the address of the host's name, for the whole network
        yield "GLOO_SOCKET_IFNAME", LOOPBACK, _ONE_HOST


def _nccl(topology: Topology) -> Iterator[tuple[str, str, str]]:
    fabric = topology.fabric
    # 3 is torch's default: a failed collective ends the worker at once, without waiting for NCCL's clean-up.
    yield "TORCH_NCCL_ASYNC_ERROR_HANDLING", "3", "a failed collective ends its worker"
    yield "TORCH_FR_BUFFER_SIZE", "2000", "the last collectives are kept, and written to the run's hang/"
    yield "TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "when one passes strategy.timeout_s"
    # Strategies use several groups at a time, and queue their work in one order on every worker; NCCL 2.26 keeps it.
    yield "NCCL_LAUNCH_ORDER_IMPLICIT", "1", "groups of processes take turns in the order of their calls"
    if fabric.interface is not None:
        # = makes NCCL match the whole name; without it eth1 would match eth10 too. The same for adapters.
        yield "NCCL_SOCKET_IFNAME", f"={fabric.interface}", "topology.fabric.interface"
    elif topology.nodes == 1:
        yield "NCCL_SOCKET_IFNAME", f"={LOOPBACK}", _ONE_HOST
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


def lines(decided: Sequence[Setting], user_environment: Mapping[str, str]) -> list[str]:
    """Effective settings, one line each: those of the topology, then other variables set by the user."""
    named = {setting.name for setting in decided}
    others = [name for name in sorted(user_environment) if name.startswith(_FAMILIES) and name not in named]
    return [
        *(setting.line() for setting in decided),
        *(f"{name}={_without_secrets(name, user_environment[name])}  (set by you)" for name in others),
    ]


def _without_secrets(name: str, value: str) -> str:
    """A variable's value as it may be printed and kept: without passwords in URLs, *** for what may be a secret."""
    return "***" if _SECRET.search(name) else _CREDENTIALS.sub("//***@", value)


def missing_hardware(decided: Sequence[Setting], root: Path = Path("/")) -> Iterator[Problem]:
    """Problems of an interface or adapters in the topology that this machine does not have."""
    chosen = [setting for setting in decided if setting.user_value is None and setting.because != _ONE_HOST]
    used = {setting.name: setting.value.removeprefix("=") for setting in chosen}
    rendezvous = [name for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if name in used]
    if rendezvous:
        yield from _interface_problem(used[rendezvous[0]], rendezvous, root)
    if "NCCL_IB_HCA" in used:
        yield from _adapter_problems(used["NCCL_IB_HCA"].split(","), root)


def _interface_problem(name: str, variables: Sequence[str], root: Path) -> Iterator[Problem]:
    there = {interface.name: interface.state for interface in interfaces(root)}
    if there.get(name) in USABLE:
        return
    usable = [other for other, state in there.items() if state in USABLE]
    text = f"this machine's network interface {name} is {there[name]}" if name in there else "no such network interface"
    close = nearest(name, [other for other in usable if other != "lo"]) or (usable or ["null"])[-1]
    text += f"; up are {join_names(usable) or 'none'} ({' and '.join(variables)} in the environment name one, too)"
    yield Problem("topology.fabric.interface", text, name, f"topology.fabric.interface={close}")


def _adapter_problems(names: Sequence[str], root: Path) -> Iterator[Problem]:
    there = ports(root)
    known = {known for port in there for known in (port.adapter, f"{port.adapter}:{port.number}")}
    absent = [name for name in names if name not in known]
    if absent:
        # NCCL would silently use the interface's sockets instead, at a tenth of the speed.
        adapters = list(dict.fromkeys(port.adapter for port in there))
        text = f"this machine has no adapter {join_names(absent)}; it has {join_names(adapters) or 'none'}"
        remedy = f"topology.fabric.adapters=[{','.join(adapters)}]" if adapters else "topology.fabric.kind=ethernet"
        yield Problem("topology.fabric.adapters", text, f"[{','.join(names)}]", remedy)


def apply(topology: Topology, run_dir: Path | None, node: int = 0) -> None:
    """Set the variables in this process, from which workers inherit them, and print them.

    Args:
        topology: the hardware.
        run_dir: folder in which the first node writes environment.txt; None: not written.
        node: index of this node in the run.

    Raises:
        ConfigError: the topology names an interface or an adapter that this machine does not have.
    """
    environment = dict(os.environ)
    decided = settings(topology, device_kind(topology), environment)
    raise_all(missing_hardware(decided))
    os.environ.update({setting.name: setting.value for setting in decided if setting.user_value is None})
    if node != 0:
        return
    effective = lines(decided, environment)
    # in the file alone: that a run of one host stays on it needs no word
    quiet = {one.line() for one in decided if one.because == _ONE_HOST and one.user_value in (None, one.value)}
    for line in effective:
        if line not in quiet:
            print(f"environment: {line}", flush=True)
    saved = [*effective, *describe_binding(topology, environment)]
    if saved and run_dir is not None:
        write_atomically(run_dir / FILE, "\n".join(saved) + "\n")
