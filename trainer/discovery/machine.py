"""One machine, put together from what its parts say."""

from dataclasses import dataclass
from pathlib import Path

from .adapters import Port, ports
from .gpus import Gpus, gpus
from .interfaces import Interface, default_route, interfaces
from .memory import memory_gb
from .processors import Processors, processors, socket_of_numa_node
from .reading import text_of


@dataclass(frozen=True)
class Machine:
    name: str
    processors: Processors
    memory_gb: float | None
    gpus: Gpus
    sockets_of_gpus: tuple[int | None, ...]
    ports: list[Port]
    interfaces: list[Interface]
    default_route: str | None

    @property
    def rails(self) -> list[Port]:
        """The ports to train over: those that are active, InfiniBand if there is any, and of the highest rate."""
        active = [port for port in self.ports if port.active]
        kind = "infiniband" if any(port.kind == "infiniband" for port in active) else "roce"
        of_kind = [port for port in active if port.kind == kind]
        fastest = max((port.rate_gbit_s or 0.0 for port in of_kind), default=0.0)
        return [port for port in of_kind if (port.rate_gbit_s or 0.0) == fastest]

    @property
    def interface(self) -> Interface | None:
        """The interface to meet over: that of the default route, or the first hardware that is up."""
        by_name = {interface.name: interface for interface in self.interfaces}
        if self.default_route in by_name:
            return by_name[self.default_route]
        return next((i for i in self.interfaces if i.hardware and i.state == "up"), None)


def discovered(root: Path = Path("/"), nvidia_smi: str = "nvidia-smi") -> Machine:
    """Read everything; what cannot be read is left empty.

    Args:
        root: the folder in which /sys and /proc are looked for.
        nvidia_smi: the program to ask about GPUs.
    """
    found = processors(root)
    asked = gpus(root, nvidia_smi)
    sockets = (
        None if gpu.numa_node is None else socket_of_numa_node(gpu.numa_node, found, root) for gpu in asked.found
    )
    return Machine(
        text_of(root / "proc/sys/kernel/hostname") or "this machine",
        found,
        memory_gb(root),
        asked,
        tuple(sockets),
        ports(root),
        interfaces(root),
        default_route(root),
    )
