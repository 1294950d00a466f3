"""Check that NCCL's transport between nodes is that of the topology, by NCCL's log."""

import os
import socket
from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...base.errors import Problem
from ...base.log import log
from ...config.schema import Config
from ...hardware.schema import Topology
from ...hardware.topology import device_kind
from .machines import merge_problems
from .nccl_log import Network, network
from .network import RDMA
from .store_gather import StoreGather, is_needed

if TYPE_CHECKING:
    import torch


FOLDER = "nccl"
_OURS = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")


def is_wanted(config: Config) -> bool:
    """Whether the workers communicate by NCCL over a network."""
    return is_needed(config) and config.topology.nodes > 1 and device_kind(config.topology) == "cuda"


def enable_nccl_log(config: Config, run_dir: Path, environment: MutableMapping[str, str] = os.environ) -> None:
    """Make the first worker of each node write NCCL's log to the run folder, unless the user set NCCL_DEBUG.

    Call before NCCL is first used, when it reads its environment.
    """
    if not is_wanted(config) or environment["LOCAL_RANK"] != "0" or any(name in environment for name in _OURS):
        return
    (run_dir / FOLDER).mkdir(exist_ok=True)
    file = log_file(run_dir, int(environment["RANK"]))
    environment.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=str(file))


def log_file(run_dir: Path, rank: int) -> Path:
    return run_dir / FOLDER / f"rank{rank}.log"


def check_transport(config: Config, run_dir: Path, device: "torch.device") -> None:
    """Make NCCL connect, and check its log.

    Raises:
        Refused: TCP instead of the topology's RDMA; all workers raise the same.
    """
    if not is_wanted(config):
        return
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1, device=device))
    torch.cuda.synchronize(device)
    gather, problems = StoreGather(), []
    file = log_file(run_dir, gather.rank)
    if gather.first_of_node and os.environ.get("NCCL_DEBUG_FILE") == str(file):
        found = network(file.read_text(errors="replace")) if file.exists() else None
        log.info("preflight: node %d reaches the others over %s", gather.node, describe_network(found))
        problems = [problem.as_data() for problem in [transport_problem(config.topology, found)] if problem]
    node = f"node {gather.node} ({socket.gethostname()})"
    gather.agree("transport", {"node": node, "problems": problems}, merge_problems)


def transport_problem(topology: Topology, found: Network | None) -> Problem | None:
    """The problem of NCCL's network, if any."""
    fabric = topology.fabric
    if found is None or fabric.kind not in RDMA or not found.tcp or fabric.allow_tcp:
        return None
    over = f" ({', '.join(found.interfaces)})" if found.interfaces else ""
    text = f"NCCL sends over TCP sockets{over}, not over RDMA"
    text += f", although it found {', '.join(found.adapters)}" if found.adapters else ": it found no adapter"
    remedy = "give the workers /dev/infiniband and unlimited locked memory, or topology.fabric.allow_tcp=true"
    return Problem("topology.fabric.kind", text, fabric.kind, remedy)


def describe_network(found: Network | None) -> str:
    """A network in words, for a log."""
    if found is None:
        return "a network that NCCL's log does not name"
    by = ", ".join(found.interfaces if found.tcp else found.adapters)
    direct = {True: ", GPUDirect RDMA", False: ", without GPUDirect RDMA", None: ""}[found.gpudirect]
    return f"{found.name}{f' ({by})' if by else ''}{'' if found.tcp else direct}"
