"""InfiniBand and RoCE adapters."""

import re
from dataclasses import dataclass
from pathlib import Path

from .reading import folders_in, number_of, text_of

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
    """Such as "4X NDR"; empty where the kernel does not say."""
    link_layer: str
    """InfiniBand or Ethernet."""
    numa_node: int | None
    gid_index: int | None
    """Of RoCE version 2 over IPv4; None where there is none."""

    @property
    def active(self) -> bool:
        return self.state == "ACTIVE"

    @property
    def kind(self) -> str:
        return "roce" if self.link_layer == "Ethernet" else "infiniband"


def ports(root: Path = Path("/")) -> list[Port]:
    """Every port of every adapter that the kernel knows."""
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
