"""A worker stays on the processor cores beside its device: memory and PCIe of the other socket are twice as far."""

import os
from collections.abc import Mapping
from pathlib import Path

from .config import Config, Topology
from .discovery.gpus import uuids
from .discovery.processors import Processors, processors
from .topology import device_kind


def bind(config: Config, local_rank: int, root: Path = Path("/")) -> set[int] | None:
    """Restrict this process, and every thread that it will start, to the cores of its device's socket.

    Args:
        config: the run's.
        local_rank: which of this node's workers this is.
        root: the folder in which /sys and /proc are looked for.

    Returns:
        The hardware threads that it is bound to. None, and nothing has happened, where the topology does not say the
        device's socket, the machine has one socket or does not say its layout, or none of those cores may be used.
    """
    if config.topology.device.sockets is None:
        return None
    allowed = _cores_beside(config.topology, local_rank, processors(root), root)
    if not allowed:
        return None
    os.sched_setaffinity(0, allowed)
    return allowed


def allowed_cores(topology: Topology, workers: int, root: Path = Path("/")) -> list[set[int]]:
    """The hardware threads that each worker of a node will run on, bound or not. To be asked before one is bound."""
    found = processors(root) if topology.device.sockets is not None else Processors((), ())
    return [_cores_beside(topology, local_rank, found, root) or available() for local_rank in range(workers)]


def available() -> set[int]:
    """The hardware threads that this process may run on."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _cores_beside(topology: Topology, local_rank: int, found: Processors, root: Path) -> set[int]:
    """What of a device's socket this process may use; none where the worker is not bound."""
    if topology.device.sockets is None or not hasattr(os, "sched_setaffinity"):
        return set()
    physical = physical_device(topology, local_rank, os.environ, root)
    return cores_of_device(topology, physical, found) & os.sched_getaffinity(0)


def physical_device(
    topology: Topology, local_rank: int, environment: Mapping[str, str], root: Path = Path("/")
) -> int | None:
    """Which of a node's devices a worker computes on, among all that the node has.

    CUDA counts the visible devices anew: with CUDA_VISIBLE_DEVICES=6,7 the first worker has device 6. A list may name
    them by UUID too. None where the list cannot be followed. CUDA's numbers are nvidia-smi's where the devices are all
    alike, or CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None or device_kind(topology) == "cpu":
        return local_rank
    named = [name.strip() for name in visible.split(",")]
    if local_rank >= len(named):
        return None
    name = named[local_rank]
    if name.isdigit():
        return int(name)
    starts = [index for index, uuid in enumerate(uuids(root)) if name.startswith("GPU-") and uuid.startswith(name)]
    return starts[0] if len(starts) == 1 else None


def cores_of_device(topology: Topology, device: int | None, found: Processors) -> set[int]:
    """The hardware threads of a device's socket; none where that is not known or makes no difference."""
    sockets = topology.device.sockets
    if sockets is None or device is None or device >= len(sockets) or found.sockets < 2:
        return set()
    socket = sockets[device]
    return set(found.threads_of_socket[socket]) if socket < found.sockets else set()


def described(topology: Topology, environment: Mapping[str, str], root: Path = Path("/")) -> list[str]:
    """A line for each worker of this node that will be bound."""
    found = processors(root)
    workers = range(topology.devices_per_node if topology.device.sockets is not None else 0)
    devices = [(worker, physical_device(topology, worker, environment, root)) for worker in workers]
    return [
        f"worker {worker}: device {device}, on the cores of socket {topology.device.sockets[device]}"
        for worker, device in devices
        if device is not None and topology.device.sockets and cores_of_device(topology, device, found)
    ]
