"""A training process that another program has started: the worker of its rank, in this process."""

import os
import time

from ..base.errors import ConfigError, refuse
from ..base.handshake import SECRET
from ..base.paths import shown
from ..base.signals import StopRequest
from ..config.job import JobSpec
from ..hardware.affinity import bind
from ..hardware.comm_env import apply
from ..hardware.discovery.addresses import interface_towards
from ..launch.external.announcement import Announcement
from ..launch.external.placement import processes_per_node, role_of
from ..launch.external.rendezvous import ExternalRendezvous
from ..launch.external.starters import LAUNCHER
from ..launch.external.stop_relay import StopRelay
from ..launch.roles import LocalNode, environment_of, is_alone
from ..launch.store import LOOPBACK
from ..runs.folder import FROZEN
from ..runs.secret import shared_secret
from .server import serve_in_process
from .worker import run_in_process

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_AFTER_THE_FIRST_S = 3.0
"""Seconds for which a rank that fails because of another outlives it: torchrun, whose times are whole seconds, names
the lowest of the ranks that it finds ended together as the root cause."""


def lead(job: JobSpec, listens: bool = True) -> int:
    """Rank 0's part of a run whose folder it has frozen: announce it to the others, and train. Returns the exit code.

    Args:
        listens: whether stop signals are handled.

    Raises:
        ValueError: the user's mistake.
    """
    rendezvous = ExternalRendezvous.current
    if rendezvous is None:
        text = "another program starts the processes of this run, each with this same command"
        remedy = f"torchrun --nproc_per_node={processes_per_node(job.config)} --no-python leyden ..., "
        raise refuse(LAUNCHER, text, "external", f"{remedy}or {LAUNCHER}=local")
    store, secret = rendezvous.serve(), shared_secret(job.run_dir)
    run = Announcement(*job.to_argv(), store.host, store.port)
    rendezvous.announce(run.signed(secret))
    return _work(job, rendezvous, run, secret, listens)


def follow(rendezvous: ExternalRendezvous, listens: bool = True) -> int:
    """The part of another rank. Returns the exit code, that of rank 0 where it has started no run.

    Raises:
        ConfigError: it cannot see the run's folder.
    """
    run = rendezvous.announcement()
    if not run.folder:
        return run.code
    if not (run.run_dir / FROZEN).exists():
        text = "rank 0 has frozen the run there, and this host does not see it"
        raise refuse("hydra.run.dir", text, shown(run.run_dir), "hydra.run.dir=FOLDER on a file system of all hosts")
    secret = shared_secret(run.run_dir)
    if not run.is_signed_by(secret):
        text = "is announced by a process that does not know the run's secret, or this host has another folder there"
        raise refuse("hydra.run.dir", text, shown(run.run_dir), "hydra.run.dir=FOLDER on a file system of all hosts")
    job = JobSpec.from_argv([run.folder, run.verb, run.checkpoint])
    return _work(job, rendezvous, run, secret, listens)


def _work(job: JobSpec, rendezvous: ExternalRendezvous, run: Announcement, secret: bytes, listens: bool) -> int:
    rank, config, topology = rendezvous.world.rank, job.config, job.config.topology
    interface = None if run.address == LOOPBACK else interface_towards(run.address)
    role = role_of(rank, config)
    node = LocalNode(rank // processes_per_node(config), topology.nodes, interface)
    apply(topology, job.run_dir, rank)
    # of one worker, too: the group that a strategy makes for it cannot listen at the rendezvous
    os.environ |= dict(_store_variables(run, rendezvous, secret))
    if not is_alone(config):
        os.environ |= environment_of(role, config, node)
        if rendezvous.world.local_rank is not None:
            os.environ["LOCAL_RANK"] = str(rendezvous.world.local_rank)

    def reports(error: Exception) -> bool:
        first = rendezvous.first_to_fail()
        if ERROR_FILE in os.environ and not isinstance(error, ConfigError):
            if first:
                _write_error_file(error)
            else:
                time.sleep(_AFTER_THE_FIRST_S)
        return first

    stop_request = StopRequest()
    with StopRelay(rendezvous, stop_request):
        if role.kind == "server":
            return serve_in_process(job, role.number, listens, reports, stop_request)
        bind(topology, role.number % topology.devices_per_node)
        return run_in_process(job, listens, reports, stop_request)


def _store_variables(run: Announcement, rendezvous: ExternalRendezvous, secret: bytes) -> list[tuple[str, str]]:
    """Environment variables by which the process groups find rank 0's store; a starter's own are replaced."""
    return [
        ("MASTER_ADDR", run.address),
        ("MASTER_PORT", str(run.port)),
        ("TORCHELASTIC_RUN_ID", f"{run.run_dir.name}-{run.port}"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ("TORCHELASTIC_RESTART_COUNT", str(rendezvous.world.restarts)),
        (SECRET, secret.hex()),
    ]


def _write_error_file(error: Exception) -> None:
    """Write the file in which torchrun looks for the cause of a failure."""
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    get_error_handler().record_exception(error)
