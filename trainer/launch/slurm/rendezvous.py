"""Rendezvous of a job's agents: node 0 listens and writes its address into a shared folder, the others read it."""

import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree

from ...base.atomic_file import write_atomically
from ...base.errors import refuse
from ...config.job import JobSpec
from ...config.schema import Config
from ...hardware.discovery.addresses import address_of_interface, address_towards
from ...runs.slurm import run_command
from ..rendezvous import Rendezvous, RendezvousError
from ..signals import ReceivedSignals
from ..worker_group import POLL_S
from .batch_script import folder
from .job_steps import NEXT_NODE

JOIN_TIMEOUT_S = 300.0
"""Time that the nodes of a job, which Slurm starts at once, have to join."""


def own_address(config: Config) -> str:
    """This node's address for the other nodes of its job: on the fabric, else on Slurm's own network.

    Raises:
        ConfigError: there is none.
    """
    interface = config.topology.fabric.interface
    if interface is None:
        return address_towards(os.environ.get(NEXT_NODE) or _address_of_another_node())
    address = address_of_interface(interface)
    if address is None:
        text = f"{socket.gethostname()} has no IPv4 address on this network interface"
        raise refuse("topology.fabric.interface", text, interface, "topology.fabric.interface=null")
    return address


def _address_of_another_node() -> str:
    """The address by which Slurm reaches it: only Slurm need know a node's name."""
    nodes = run_command("scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]).stdout.split()
    other = next(node for node in nodes if node != os.environ["SLURMD_NODENAME"])
    found = re.search(r"\bNodeAddr=(\S+)", run_command("scontrol", "show", "node", other).stdout)
    return found[1] if found else other


def shared_folder(job: JobSpec) -> Path:
    """Folder of all nodes of a job: the run's; of an evaluation, which writes nothing into the run, a temporary one in
    the folder that it was submitted in."""
    if not job.is_evaluation:
        return job.run_dir
    return Path(os.environ["SLURM_SUBMIT_DIR"]) / f"leyden-eval-{os.environ['SLURM_JOB_ID']}"


@contextmanager
def publish_address(job: JobSpec, listening: socket.socket) -> Iterator[None]:
    """Publish node 0's address to the other nodes, as long as the context is open."""
    host, port = listening.getsockname()[:2]
    shared = shared_folder(job)
    write_atomically(_path(shared), f"{host} {port}\n")
    try:
        yield
    finally:
        _path(shared).unlink(missing_ok=True)
        if job.is_evaluation:
            rmtree(shared, ignore_errors=True)


def wait_for_leader(shared: Path, signals: ReceivedSignals, timeout_s: float = JOIN_TIMEOUT_S) -> Rendezvous:
    """Node 0's address, as soon as it is published.

    Raises:
        RendezvousError: it is not within the time, or a signal came first.
    """
    end = time.monotonic() + timeout_s
    while not _is_listed(_path(shared)):
        if signals.received:
            raise RendezvousError("stopped before all nodes had joined", signals.exit_code)
        if time.monotonic() > end:
            raise RendezvousError(f"node 0 has not written {_path(shared)} within {timeout_s:g} s")
        time.sleep(POLL_S)
    host, port = _path(shared).read_text().split()
    return Rendezvous(host, int(port), timeout_s, replaceable=False)


def _is_listed(path: Path) -> bool:
    # a listing, not exists(): a network file system caches that a file is missing
    with suppress(FileNotFoundError):  # node 0 of an evaluation has removed the folder
        return path.name in os.listdir(path.parent)
    return False


def _path(shared: Path) -> Path:
    """The address file of this start of this job: one that another start has left is never read."""
    start = os.environ.get("SLURM_RESTART_COUNT", "0")
    return folder(shared) / f"node0-{os.environ['SLURM_JOB_ID']}-{start}"
