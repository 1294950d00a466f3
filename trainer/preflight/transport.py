"""Whether what carries the data between nodes is what the topology says, by NCCL's own log."""

import os
import socket
from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import Config, Topology
from ..errors import Problem
from ..log import log
from ..topology import device_kind
from .machines import together
from .nccl_log import Network, network
from .network import RDMA
from .table import Table, as_data, worth_it

if TYPE_CHECKING:
    import torch

FOLDER = "nccl"
_OURS = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")


def wanted(config: Config) -> bool:
    """Whether the workers talk through NCCL over a network."""
    return worth_it(config) and config.topology.nodes > 1 and device_kind(config.topology) == "cuda"


def ask_nccl_for_its_log(config: Config, run_dir: Path, environment: MutableMapping[str, str] = os.environ) -> None:
    """Have the first worker of each node write NCCL's log into the run folder, unless the user has plans of his own.

    Before NCCL is first used: it reads its environment then.
    """
    if not wanted(config) or environment["LOCAL_RANK"] != "0" or any(name in environment for name in _OURS):
        return
    (run_dir / FOLDER).mkdir(exist_ok=True)
    file = log_file(run_dir, int(environment["RANK"]))
    environment.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=str(file))


def log_file(run_dir: Path, rank: int) -> Path:
    return run_dir / FOLDER / f"rank{rank}.log"


def check_transport(config: Config, run_dir: Path, device: "torch.device") -> None:
    """Make NCCL connect, and read what it says.

    Raises:
        Refused: data goes over TCP where the topology has RDMA; all workers raise the same.
    """
    if not wanted(config):
        return
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1, device=device))
    torch.cuda.synchronize(device)
    table, problems = Table(), []
    file = log_file(run_dir, table.rank)
    if table.first_of_node and os.environ.get("NCCL_DEBUG_FILE") == str(file):
        found = network(file.read_text(errors="replace")) if file.exists() else None
        log.info("preflight: node %d reaches the others over %s", table.node, _described(found))
        problems = [as_data(problem) for problem in [transport_problem(config.topology, found)] if problem]
    node = f"node {table.node} ({socket.gethostname()})"
    table.agree("transport", {"node": node, "problems": problems}, together)


def transport_problem(topology: Topology, found: Network | None) -> Problem | None:
    """What is wrong with the network that NCCL has chosen."""
    fabric = topology.fabric
    if found is None or fabric.kind not in RDMA or not found.tcp or fabric.allow_tcp:
        return None
    over = f" ({', '.join(found.interfaces)})" if found.interfaces else ""
    text = f"NCCL sends over TCP sockets{over}, not over RDMA"
    text += f", although it found {', '.join(found.adapters)}" if found.adapters else ": it found no adapter"
    remedy = "give the workers /dev/infiniband and unlimited locked memory, or topology.fabric.allow_tcp=true"
    return Problem("topology.fabric.kind", text, fabric.kind, remedy)


def _described(found: Network | None) -> str:
    if found is None:
        return "a network that NCCL's log does not name"
    by = ", ".join(found.interfaces if found.tcp else found.adapters)
    direct = {True: ", GPUDirect RDMA", False: ", without GPUDirect RDMA", None: ""}[found.gpudirect]
    return f"{found.name}{f' ({by})' if by else ''}{'' if found.tcp else direct}"
