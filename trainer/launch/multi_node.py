"""One node's part of a run on several: the agent that can listen at the rendezvous leads, the others follow."""

import errno
import socket
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from ..base.errors import refuse
from ..base.signals import restore_handlers
from ..hardware.comm_env import apply
from ..hardware.discovery.addresses import interface_towards
from ..runs.lease import hold_lease
from ..runs.secret import shared_secret
from ..runs.summary import mark_failed
from ..runs.system_failure import exit_code_of
from .agent import run_with_restarts
from .authentication import AuthenticatedListener
from .follower import FollowerAgent, connect
from .leader import LeaderAgent
from .messages import EndRun, JoinAccepted, StartWorkers
from .rendezvous import PROTOCOL, NodeInfo, Rendezvous, RendezvousError
from .roles import LocalNode
from .signals import ReceivedSignals
from .store import Store, listening_socket
from .worker_group import WorkerSpec


def launch(job: WorkerSpec, rendezvous: Rendezvous) -> int:
    """Run this node's processes until the run ends on all nodes.

    Returns:
        As `start`, the same on every node; 3 also where the nodes do not agree on the run or on their software.

    Raises:
        ValueError: a user's mistake: the address cannot be taken, or what only building the parts could show.
    """

    def part(job: WorkerSpec, signals: ReceivedSignals) -> int:
        listening = _listen(rendezvous)
        if listening is None:
            return follow(job, rendezvous, signals, job.run_dir)
        here = replace(rendezvous, port=listening.getsockname()[1])
        print(
            f"node 0 of {job.config.topology.nodes} ({socket.gethostname()}); the others: --rendezvous {here}",
            flush=True,
        )
        return lead(job, here, listening, signals, job.run_dir)

    return run_node(job, part)


def run_node(job: WorkerSpec, part: Callable[[WorkerSpec, ReceivedSignals], int]) -> int:
    """Run a node's part with signal handlers installed. Returns its exit code, or that of a failed rendezvous; 1
    where the agent itself can write or open files no longer."""
    signals = ReceivedSignals()
    previous = signals.install_handlers()
    try:
        return exit_code_of(lambda: part(job, signals), job.run_dir)
    except RendezvousError as error:
        print(error, file=sys.stderr, flush=True)
        return error.code
    finally:
        restore_handlers(previous)


def _listen(rendezvous: Rendezvous) -> socket.socket | None:
    """A socket that listens at the rendezvous; None where the address is another host's, or taken.

    Raises:
        ConfigError: this host has the address, and may not listen on the port.
    """
    try:
        return listening_socket(rendezvous.host, rendezvous.port)
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            return None
        text = f"this address cannot be taken: {error.strerror or error}"
        raise refuse("--rendezvous", text, str(rendezvous), "--rendezvous HOST:29400") from None


def lead(
    job: WorkerSpec, rendezvous: Rendezvous, listening: socket.socket, signals: ReceivedSignals, shared: Path
) -> int:
    """Node 0's part. Returns and raises as `launch`.

    Args:
        listening: the socket at the rendezvous.
        shared: folder of all nodes, with the secret.

    Raises:
        RendezvousError: not all nodes joined, or one was lost.
    """
    info, nodes = NodeInfo.of(job.run_dir), job.config.topology.nodes
    job = replace(job, secret=shared_secret(shared))
    listener = AuthenticatedListener(listening, job.secret, PROTOCOL)
    # now, before the others have joined: later they would have to wait for it
    import torch.distributed  # noqa: F401

    apply(job.config.topology, job.run_dir if job.verb != "eval" else None)
    node = LocalNode(0, nodes, interface_towards(rendezvous.host))
    leader = LeaderAgent(info, rendezvous, listener, node, signals)
    try:
        with nullcontext() if job.verb == "eval" else hold_lease(job.run_dir):
            return run_with_restarts(job, signals, leader)
    except RendezvousError as error:
        if leader.started and job.verb != "eval":
            mark_failed(job.run_dir, str(error), -1)
        raise


def follow(job: WorkerSpec, rendezvous: Rendezvous, signals: ReceivedSignals, shared: Path) -> int:
    """Another node's part. Returns and raises as `lead`."""
    info = NodeInfo.of(job.run_dir)
    if job.config.elastic:
        # it writes into the store: the import must not delay its keep-alives to node 0
        import torch.distributed  # noqa: F401
    connection = connect(rendezvous, signals, lambda: shared_secret(shared))
    job = replace(job, secret=shared_secret(shared))
    follower = FollowerAgent(connection, info, signals)
    started = False
    try:
        accepted = follower.wait_for(JoinAccepted, extra_s=rendezvous.timeout_s)
        if isinstance(accepted, EndRun):
            return _end(accepted)
        follower.leader_host, rank = accepted.host, accepted.node_rank
        nodes = job.config.topology.nodes
        print(f"node {rank} of {nodes} ({info.host}); node 0 is {accepted.host}", flush=True)
        apply(job.config.topology, None, rank)
        node = LocalNode(rank, nodes, interface_towards(rendezvous.host))
        while True:
            request = follower.wait_for(StartWorkers)
            if isinstance(request, EndRun):
                return _end(request)
            started = True
            _run_worker_group(job, request, node, rendezvous, follower, signals)
    except RendezvousError as error:
        if started and job.verb != "eval":
            mark_failed(job.run_dir, str(error), -1)
        raise RendezvousError(str(error), signals.exit_code if signals.received else error.code) from None
    finally:
        follower.close()


def _run_worker_group(
    job: WorkerSpec, request: StartWorkers, node: LocalNode, rendezvous: Rendezvous, follower: FollowerAgent,
    signals: ReceivedSignals,
) -> None:  # fmt: skip
    if request.reason:
        print(request.reason, file=sys.stderr, flush=True)
    follower.reset()
    job = replace(job, verb=request.verb, checkpoint=request.checkpoint)
    store = Store(rendezvous.host, request.store_port)
    group = job.worker_group(job, request.restart_count, node, store, follower, signals)
    follower.report_result(group.run())


def _end(message: EndRun) -> int:
    """
    Raises:
        ValueError: it was the user's mistake.
    """
    if message.users_mistake:
        raise ValueError(message.text)
    if message.text:
        print(message.text, file=sys.stderr, flush=True)
    return message.code
