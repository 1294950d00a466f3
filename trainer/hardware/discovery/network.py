"""Network interfaces, and InfiniBand and RoCE adapters."""

import re
from dataclasses import dataclass
from pathlib import Path

from .sysfs import folders_in, number_of, text_of

_EMPTY_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_MAPPED_IPV4 = "0000:0000:0000:0000:0000:ffff:"


@dataclass(frozen=True)
class Port:
    """One port of an adapter."""

    adapter: str
    number: int
    state: str
    """DOWN, INIT, ARMED or ACTIVE."""
    rate_gbit_s: float | None
    rate_name: str
    """Such as "4X NDR"; empty if unknown."""
    link_layer: str
    """InfiniBand or Ethernet."""
    numa_node: int | None
    gid_index: int | None
    """GID index of RoCE version 2 over IPv4, or None."""

    @property
    def active(self) -> bool:
        return self.state == "ACTIVE"

    @property
    def kind(self) -> str:
        return "roce" if self.link_layer == "Ethernet" else "infiniband"


def ports(root: Path = Path("/")) -> list[Port]:
    """Ports of all adapters."""
    adapters = folders_in(root / "sys/class/infiniband")
    return [_port(adapter, port) for adapter in adapters for port in folders_in(adapter / "ports")]


def _port(adapter: Path, port: Path) -> Port:
    # "4: ACTIVE", and "400 Gb/sec (4X NDR)"
    state = (text_of(port / "state") or "").rpartition(":")[2].strip()
    rate = re.match(r"([\d.]+) Gb/sec(?: \((.*)\))?", text_of(port / "rate") or "")
    return Port(
        adapter=adapter.name,
        number=int(port.name),
        state=state or "of unknown state",
        rate_gbit_s=float(rate[1]) if rate else None,
        rate_name=(rate[2] or "") if rate else "",
        link_layer=text_of(port / "link_layer") or "InfiniBand",
        numa_node=number_of(adapter / "device/numa_node"),
        gid_index=_gid_index(port),
    )


def _gid_index(port: Path) -> int | None:
    for file in folders_in(port / "gid_attrs/types"):
        gid = text_of(port / "gids" / file.name) or _EMPTY_GID
        if text_of(file) == "RoCE v2" and gid.startswith(_MAPPED_IPV4):
            return int(file.name)
    return None


@dataclass(frozen=True)
class Interface:
    name: str
    state: str
    """The kernel's operstate: up, down, unknown, ..."""
    speed_gbit_s: float | None
    hardware: bool
    """Whether it is a hardware device: not lo, bridges, tunnels."""


def interfaces(root: Path = Path("/")) -> list[Interface]:
    """All interfaces; the files of the bonding driver in the same folder are left out."""
    folders = [folder for folder in folders_in(root / "sys/class/net") if folder.is_dir()]
    return [_interface(folder) for folder in folders]


def _interface(folder: Path) -> Interface:
    speed = number_of(folder / "speed")
    return Interface(
        folder.name,
        text_of(folder / "operstate") or "unknown",
        speed / 1000 if speed is not None and speed > 0 else None,
        (folder / "device").exists(),
    )


def default_route(root: Path = Path("/")) -> str | None:
    """Interface of the default route, by /proc/net/route, or None."""
    best: tuple[int, str] | None = None
    for line in (text_of(root / "proc/net/route") or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8 or fields[1] != "00000000" or fields[7] != "00000000":
            continue
        route = (int(fields[6]), fields[0])
        best = route if best is None or route < best else best
    return best[1] if best else None
