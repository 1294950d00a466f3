"""CPU affinity: a worker runs on the cores of its device's socket; memory and PCIe of the other are twice as far."""

import os
from collections.abc import Mapping
from pathlib import Path

from .discovery.cpus import Processors, processors
from .discovery.gpus import uuids
from .schema import Topology
from .topology import device_kind


def bind(topology: Topology, local_rank: int, root: Path = Path("/")) -> set[int] | None:
    """Restrict this process, and every thread that it starts, to the cores of its device's socket.

    Args:
        topology: the hardware.
        local_rank: index of the worker on its node.
        root: folder of /sys and /proc.

    Returns:
        The hardware threads that it is bound to. None, without effect, if the topology does not give the device's
        socket, the machine has one socket or an unknown layout, or none of those cores may be used.
    """
    if topology.device.sockets is None:
        return None
    allowed = _socket_cores(topology, local_rank, processors(root), root)
    if not allowed:
        return None
    os.sched_setaffinity(0, allowed)
    return allowed


def allowed_cores(topology: Topology, workers: int, root: Path = Path("/")) -> list[set[int]]:
    """The hardware threads that each worker of a node may use, bound or not. Call before binding."""
    found = processors(root) if topology.device.sockets is not None else Processors((), ())
    return [_socket_cores(topology, local_rank, found, root) or available() for local_rank in range(workers)]


def available() -> set[int]:
    """The hardware threads that this process may run on."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _socket_cores(topology: Topology, local_rank: int, found: Processors, root: Path) -> set[int]:
    """Cores of the device's socket that this process may use; empty if the worker is not bound."""
    if topology.device.sockets is None or not hasattr(os, "sched_setaffinity"):
        return set()
    physical = physical_device(topology, local_rank, os.environ, root)
    return cores_of_device(topology, physical, found) & os.sched_getaffinity(0)


def physical_device(
    topology: Topology, local_rank: int, environment: Mapping[str, str], root: Path = Path("/")
) -> int | None:
    """Index of a worker's device among all devices of the node; None if CUDA_VISIBLE_DEVICES cannot be resolved.

    CUDA renumbers the visible devices: with CUDA_VISIBLE_DEVICES=6,7 the first worker has device 6. The list may also
    hold UUIDs. CUDA's numbers equal nvidia-smi's if all devices are of one kind, or by CUDA_DEVICE_ORDER=PCI_BUS_ID.
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
    """The hardware threads of a device's socket; empty if unknown or without effect."""
    sockets = topology.device.sockets
    if sockets is None or device is None or device >= len(sockets) or found.sockets < 2:
        return set()
    socket = sockets[device]
    return set(found.threads_of_socket[socket]) if socket < found.sockets else set()


def describe_binding(topology: Topology, environment: Mapping[str, str], root: Path = Path("/")) -> list[str]:
    """One line for each worker of this node that is bound."""
    found = processors(root)
    workers = range(topology.devices_per_node if topology.device.sockets is not None else 0)
    devices = [(worker, physical_device(topology, worker, environment, root)) for worker in workers]
    return [
        f"worker {worker}: device {device}, on the cores of socket {topology.device.sockets[device]}"
        for worker, device in devices
        if device is not None and topology.device.sockets and cores_of_device(topology, device, found)
    ]
