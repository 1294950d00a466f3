"""One node's part of a run over several: the agent that can take the rendezvous leads, the others follow."""

import errno
import socket
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config import Config
from ..environment import apply
from ..errors import refuse
from ..presence import leading
from ..signals import give_back
from ..summary import mark_failed
from .agent import attempt_of, lead
from .attempt import Job
from .hub import Hub
from .line import Line
from .meeting import About, NoMeeting, Rendezvous, interface_towards
from .roles import Place
from .signals_heard import Signals
from .spoke import Spoke, connected
from .store import Store, listening_socket


def launch(config: Config, run_dir: Path, verb: str, checkpoint: Path | None, rendezvous: Rendezvous) -> int:
    """Run this node's processes until the run ends on all nodes.

    Returns:
        As `start`, the same on every node; and 3: the nodes do not agree on the run or on their software.

    Raises:
        ValueError: a user's mistake: the address cannot be taken, or what only building the parts could show.
    """
    signals = Signals()
    kept = signals.take_over()
    job = Job(config, run_dir, verb, checkpoint)
    try:
        listening = _taken(rendezvous)
        if listening is None:
            return _follow(job, rendezvous, signals)
        return _lead(job, replace(rendezvous, port=listening.getsockname()[1]), listening, signals)
    except NoMeeting as error:
        print(error, file=sys.stderr, flush=True)
        return error.code
    finally:
        give_back(kept)


def _taken(rendezvous: Rendezvous) -> socket.socket | None:
    """The rendezvous, where it is on this host and nobody has it yet.

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


def _lead(job: Job, rendezvous: Rendezvous, listening: socket.socket, signals: Signals) -> int:
    about, nodes = About.of(job.run_dir), job.config.topology.nodes
    print(f"node 0 of {nodes} ({about.host}); the others: --rendezvous {rendezvous}", flush=True)
    # now, while the others are on their way: later it would keep them waiting
    import torch.distributed  # noqa: F401

    apply(job.config, job.run_dir if job.verb != "eval" else None)
    place = Place(0, nodes, interface_towards(rendezvous.host))
    hub = Hub(about, rendezvous, listening, place, signals)
    try:
        with nullcontext() if job.verb == "eval" else leading(job.run_dir):
            return lead(job, signals, hub)
    except NoMeeting as error:
        if hub.begun:
            mark_failed(job.run_dir, str(error), -1)
        raise


def _follow(job: Job, rendezvous: Rendezvous, signals: Signals) -> int:
    about = About.of(job.run_dir)
    if job.config.elastic:
        # now, and not while node 0 expects to hear of this one: it writes into the store
        import torch.distributed  # noqa: F401
    spoke = Spoke(Line(connected(rendezvous, signals)), about, signals)
    begun = False
    try:
        welcome = spoke.wait_for("welcome", patient_s=rendezvous.wait_s)
        if welcome["say"] == "end":
            return _end(welcome)
        spoke.host = welcome["host"]
        nodes = job.config.topology.nodes
        print(f"node {welcome['node']} of {nodes} ({about.host}); node 0 is {spoke.host}", flush=True)
        apply(job.config, None, welcome["node"])
        place = Place(welcome["node"], nodes, interface_towards(rendezvous.host))
        while True:
            order = spoke.wait_for("start")
            if order["say"] == "end":
                return _end(order)
            begun = True
            _attempt(job, order, place, rendezvous, spoke, signals)
    except NoMeeting as error:
        if begun:
            mark_failed(job.run_dir, str(error), -1)
        raise NoMeeting(str(error), signals.exit_code if signals.told else error.code) from None
    finally:
        spoke.close()


def _attempt(
    job: Job, order: dict[str, Any], place: Place, rendezvous: Rendezvous, spoke: Spoke, signals: Signals
) -> None:
    if order["why"]:
        print(order["why"], file=sys.stderr, flush=True)
    spoke.begin()
    checkpoint = Path(order["checkpoint"]) if order["checkpoint"] else None
    ordered = replace(job, verb=order["verb"], checkpoint=checkpoint)
    store = Store(rendezvous.host, order["port"])
    spoke.say_ended(attempt_of(job.config)(ordered, order["number"], place, store, spoke, signals).run())


def _end(message: dict[str, Any]) -> int:
    """
    Raises:
        ValueError: it was the user's mistake.
    """
    if message["mistake"]:
        raise ValueError(message["text"])
    if message["text"]:
        print(message["text"], file=sys.stderr, flush=True)
    return message["code"]
