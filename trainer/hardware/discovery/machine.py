"""The machine, composed of its discovered parts."""

from dataclasses import dataclass
from pathlib import Path

from .cpus import Processors, processors, socket_of_numa_node
from .gpus import Gpus, gpus
from .memory import memory_gb
from .network import Interface, Port, default_route, interfaces, ports
from .sysfs import text_of


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
        """Ports for training: the active ones of the highest rate, InfiniBand if there is any."""
        active = [port for port in self.ports if port.active]
        kind = "infiniband" if any(port.kind == "infiniband" for port in active) else "roce"
        of_kind = [port for port in active if port.kind == kind]
        fastest = max((port.rate_gbit_s or 0.0 for port in of_kind), default=0.0)
        return [port for port in of_kind if (port.rate_gbit_s or 0.0) == fastest]

    @property
    def interface(self) -> Interface | None:
        """Interface for rendezvous: that of the default route, or the first hardware interface that is up."""
        by_name = {interface.name: interface for interface in self.interfaces}
        if self.default_route in by_name:
            return by_name[self.default_route]
        return next((i for i in self.interfaces if i.hardware and i.state == "up"), None)


def discover_machine(root: Path = Path("/"), nvidia_smi: str = "nvidia-smi") -> Machine:
    """Discover this machine; unreadable parts are left empty.

    Args:
        root: folder of /sys and /proc.
        nvidia_smi: the program that lists GPUs.
    """
    found = processors(root)
    found_gpus = gpus(root, nvidia_smi)
    sockets = (
        None if gpu.numa_node is None else socket_of_numa_node(gpu.numa_node, found, root) for gpu in found_gpus.found
    )
    return Machine(
        text_of(root / "proc/sys/kernel/hostname") or "this machine",
        found,
        memory_gb(root),
        found_gpus,
        tuple(sockets),
        ports(root),
        interfaces(root),
        default_route(root),
    )
