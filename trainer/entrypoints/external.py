"""A training process that another program has started: the worker of its rank, in this process."""

import os
import time
from dataclasses import replace

from ..base.errors import CannotStart, ConfigError, Refused, as_config_errors, refuse
from ..base.handshake import SECRET
from ..base.signals import StopRequest
from ..config.job import JobSpec
from ..hardware.affinity import bind
from ..hardware.comm_env import apply
from ..hardware.discovery.addresses import interface_towards
from ..launch.external.announcement import Announcement
from ..launch.external.placement import processes_per_node, role_of
from ..launch.external.received_run import receive_run
from ..launch.external.rendezvous import ExternalRendezvous
from ..launch.external.starters import LAUNCHER
from ..launch.external.stop_relay import StopRelay
from ..launch.roles import LocalNode, environment_of, is_alone
from ..launch.store import LOOPBACK
from ..runs.exit_codes import REFUSED
from ..runs.folder import FROZEN, remove_unstarted
from ..runs.secret import folder_mark, given_secret, shared_secret
from ..runs.summary import mark_failed
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
    store, given = rendezvous.serve(), given_secret()
    config = (job.run_dir / FROZEN).read_text(encoding="utf-8") if given else ""
    run = Announcement(*job.to_argv(), store.host, store.port, folder_mark(job.run_dir), config)
    secret = given or shared_secret(job.run_dir)
    rendezvous.announce(run.sign(secret))
    job = replace(job, shares_folder=rendezvous.begin(job.run_dir, job.config.servers > 0))
    return _work(job, rendezvous, run, secret, listens)


def follow(rendezvous: ExternalRendezvous, listens: bool = True) -> int:
    """The part of another rank. Returns the exit code: that of rank 0 where it has started no run; 2 where this process
    or another cannot take part, which rank 0 reports.

    Raises:
        ConfigError: a mistake that only building the parts has shown, on the rank that reports it.
    """
    run = rendezvous.announcement()
    if not run.folder:
        return run.code
    try:
        own = receive_run(run)
    except ConfigError as refusal:
        rendezvous.await_begin(False, refusal)
        return 2
    shares_folder = rendezvous.await_begin(own.sees_folder)
    if shares_folder is None:
        if own.claim is not None:
            own.claim.release()
        return 2
    job = replace(JobSpec.from_argv([run.folder, run.verb, run.checkpoint]), shares_folder=shares_folder)
    with as_config_errors(f"leyden {run.verb}"):
        return _work(job, rendezvous, run, own.secret, listens)


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
        failed = rendezvous.first_to_fail()
        first = failed == rank
        if not (first or rank or job.shares_folder or isinstance(error, (CannotStart, Refused))):
            mark_failed(job.run_dir, "the reason is in the log of this rank, on its own host", failed)
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
        code = run_in_process(job, listens, reports, stop_request)
        if code in (2, REFUSED) and not job.shares_folder:  # the rank that reports it has removed its own
            remove_unstarted(job.run_dir, job.verb)
        return code


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
