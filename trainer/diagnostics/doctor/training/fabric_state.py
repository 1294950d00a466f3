"""The fabric in a doctor's table: adapters with their rates and sockets, and the networks over which NCCL connected."""

from collections.abc import Iterator
from pathlib import Path

from ....hardware.discovery.network import ports
from ...preflight.nccl_log import network
from ...preflight.transport import FOLDER, describe_network
from .checks import Check


def adapter_checks(root: Path = Path("/")) -> Iterator[Check]:
    """Ports of this node's RDMA adapters, in Gbit/s: figures."""
    for port in ports(root):
        socket = "unknown" if port.numa_node is None else port.numa_node
        text = f"Gbit/s, {port.kind}, {port.state}, socket {socket}"
        yield Check(f"adapter {port.adapter}:{port.number}", port.rate_gbit_s, None, None, 0.0, text)


def transport_checks(run_dir: Path) -> Iterator[Check]:
    """Checks of a run between nodes: NCCL's network, the adapters in use, and GPUDirect, by the log of each node."""
    for file in sorted((run_dir / FOLDER).glob("rank*.log")):
        text = describe_network(network(file.read_text(errors="replace")))
        yield Check(f"transport of {file.stem}", None, None, None, 0.0, text)
