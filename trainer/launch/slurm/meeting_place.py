"""Where the agents of a job meet: node 0 takes an address and writes it into the run's folder, the others read it."""

import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...config import Config
from ...errors import refuse
from ...run_folder import write_whole
from ...slurm_jobs import answer
from ..attempt import POLL_S
from ..meeting import NoMeeting, Rendezvous, address_of_interface, address_towards
from ..signals_heard import Signals
from .script import folder

WAIT_S = 300.0
"""How long the nodes of a job, which Slurm starts at once, wait for each other."""


def own_address(config: Config) -> str:
    """The address of this node that the others of its job reach: the fabric's, else as Slurm's own network has it.

    Raises:
        ConfigError: there is none.
    """
    interface = config.topology.fabric.interface
    if interface is None:
        return address_towards(_address_of_another_node())
    address = address_of_interface(interface)
    if address is None:
        text = f"{socket.gethostname()} has no IPv4 address on this network interface"
        raise refuse("topology.fabric.interface", text, interface, "topology.fabric.interface=null")
    return address


def _address_of_another_node() -> str:
    """As Slurm reaches it: the name of a node need not be known to anybody else."""
    nodes = answer("scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]).stdout.split()
    other = next(node for node in nodes if node != os.environ["SLURMD_NODENAME"])
    found = re.search(r"\bNodeAddr=(\S+)", answer("scontrol", "show", "node", other).stdout)
    return found[1] if found else other


@contextmanager
def published(run_dir: Path, listening: socket.socket) -> Iterator[None]:
    """Let the other nodes know where node 0 listens, for as long as it may."""
    host, port = listening.getsockname()[:2]
    write_whole(_path(run_dir), f"{host} {port}\n")
    try:
        yield
    finally:
        _path(run_dir).unlink(missing_ok=True)


def found(run_dir: Path, signals: Signals, wait_s: float = WAIT_S) -> Rendezvous:
    """Where node 0 listens, as soon as it does.

    Raises:
        NoMeeting: it does not within the time, or a signal came first.
    """
    end = time.monotonic() + wait_s
    # listed, not asked for by its name: a network file system remembers for long what was not there
    while _path(run_dir).name not in os.listdir(folder(run_dir)):
        if signals.told:
            raise NoMeeting("stopped before all nodes had come", signals.exit_code)
        if time.monotonic() > end:
            raise NoMeeting(f"node 0 has not come within {wait_s:g} s: it writes {_path(run_dir)}")
        time.sleep(POLL_S)
    host, port = _path(run_dir).read_text().split()
    return Rendezvous(host, int(port), wait_s, replaceable=False)


def _path(run_dir: Path) -> Path:
    """Of this start of this job: what another one left behind is never read."""
    start = os.environ.get("SLURM_RESTART_COUNT", "0")
    return folder(run_dir) / f"node0-{os.environ['SLURM_JOB_ID']}-{start}"
