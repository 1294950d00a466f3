"""Real runs: where they listen, what strangers at their sockets can do, and where their secret is not."""

import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import torch
from agents import Agent
from garbage import GARBAGE
from runs import TINY, Freeze, summary, weights

from leyden.trainer.base.handshake import SECRET, AuthenticationError, new_secret
from leyden.trainer.entrypoints.start import start
from leyden.trainer.hopping.rendezvous import PROTOCOL as PIPELINE
from leyden.trainer.launch.authentication import authenticate
from leyden.trainer.launch.rendezvous import PROTOCOL as RENDEZVOUS
from leyden.trainer.runs.secret import FILE

Address = tuple[str, int]
ONE_SERVER = ["strategy=asgd", "strategy.execution.servers=1", "topology.devices_per_node=1"]


class Watch:
    """Watches the listening sockets of a process and its descendants while they run.

    Args:
        attack: whether to be a stranger at each of them.
        spared: module whose processes' sockets are left alone.
    """

    def __init__(self, attack: bool = False, spared: str | None = None):
        self.listened: set[Address] = set()
        self.environments: list[dict[str, str]] = []
        self.arguments: list[str] = []
        self.attacked = 0
        self.taken: list[str] = []
        """Protocols that a stranger with another secret was let in by."""
        self._strangers: list[threading.Thread] = []
        self._attack = attack
        self._spared = spared
        self._seen: set[int] = set()
        self._sockets: list[socket.socket] = []

    @contextmanager
    def of(self, *processes: int) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._watch, args=(processes, stop), daemon=True)
        thread.start()
        yield
        stop.set()
        for each in (thread, *self._strangers):
            each.join()
        for one in self._sockets:
            one.close()
        assert not self.taken

    def _watch(self, roots: Sequence[int], stop: threading.Event) -> None:
        while not stop.wait(0.05):
            for root in roots:
                with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    top = psutil.Process(root)
                    for process in (top, *top.children(recursive=True)):
                        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                            self._look_at(process)

    def _look_at(self, process: psutil.Process) -> None:
        if process.pid not in self._seen:
            self._seen.add(process.pid)
            self.arguments += process.cmdline()
            self.environments.append(process.environ())
        for one in process.net_connections(kind="tcp"):
            address = (str(one.laddr.ip), int(one.laddr.port))
            if one.status == psutil.CONN_LISTEN and address not in self.listened:
                self.listened.add(address)
                if self._attack and self._spared not in process.cmdline():
                    self.attacked += 1
                    stranger = threading.Thread(target=self._be_a_stranger_at, args=(address,), daemon=True)
                    self._strangers.append(stranger)
                    stranger.start()

    def _be_a_stranger_at(self, address: Address) -> None:
        """Garbage, the handshake with a wrong secret, and a hundred idle connections."""
        for data in [*GARBAGE.values(), *[b""] * 100]:
            with suppress(OSError):
                connection = socket.create_connection(address, timeout=5)
                self._sockets.append(connection)
                connection.setblocking(False)
                connection.sendall(data)
        for protocol in (RENDEZVOUS, PIPELINE):
            refused = suppress(OSError, AuthenticationError)
            with refused, socket.create_connection(address, timeout=5) as connection:
                authenticate(connection, new_secret(), protocol, 0.5)
                self.taken.append(protocol)


def assert_on_loopback(watch: Watch) -> None:
    assert len(watch.listened) >= 2, "a store and gloo"
    assert {host for host, _ in watch.listened} == {"127.0.0.1"}
    # where the name of this machine is an address of loopback, Gloo stays there by itself
    children = [one for one in watch.environments if "MASTER_ADDR" in one]
    assert children
    assert {one.get("GLOO_SOCKET_IFNAME") for one in children} == {"lo"}


def watched(watch: Watch, *command: str, folder: Path) -> tuple[int, str]:
    """Run a command to its end. Returns its exit code and output."""
    environment = {name: value for name, value in os.environ.items() if name != "GLOO_SOCKET_IFNAME"}
    process = subprocess.Popen(
        [sys.executable, "-m", *command], cwd=folder, env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        with watch.of(process.pid):
            output, _ = process.communicate(timeout=200)
    finally:
        process.kill()
    return process.returncode, output


SPAWN = "topology.start_method=spawn"
"""/proc shows the environment that a process was executed with: of a forked one that of the fork server."""
START = "leyden.trainer.entrypoints.start"


@pytest.mark.campaign
def test_doctor_listens_on_loopback_alone(tmp_path: Path) -> None:
    watch = Watch()
    words = ["doctor", "topology=cpu", "topology.devices_per_node=2", SPAWN]
    code, output = watched(watch, "leyden", *words, folder=tmp_path)
    assert code in (0, 1), output  # 1: something is slow
    assert_on_loopback(watch)


@pytest.mark.slow
def test_strangers_change_nothing_between_nodes_and_the_secret_is_in_its_file_alone(
    freeze: Freeze, agents: list[Agent], tmp_path: Path
) -> None:
    """The run that they do not disturb is one of one host, which listens on loopback alone."""
    options, one_host = [*TINY, "strategy=ddp", "trainer.max_steps=5", SPAWN, "topology.launcher=node"], Watch()
    quiet = freeze("quiet", *options, "topology.devices_per_node=2")
    run_dir = freeze("run", *options, "topology.nodes=2")
    words = ["node", "--rendezvous", "127.0.0.1:0", str(quiet)]
    code, output = watched(one_host, "leyden", *words, folder=tmp_path)
    assert code == 0, output
    assert_on_loopback(one_host)
    first = Agent(run_dir, "127.0.0.1:0")
    agents.append(first)
    watch = Watch(attack=True)
    with watch.of(first.process.pid):
        second = Agent(run_dir, first.rendezvous())
        agents.append(second)
        codes = (first.code(), second.code())
    assert codes == (0, 0), first.output + second.output
    assert watch.attacked >= 2
    assert {host for host, _ in watch.listened} == {"127.0.0.1"}
    assert "rendezvous: a connection from 127.0.0.1 was closed: " in first.output
    assert "connections were refused" in first.output
    theirs = weights(quiet)
    assert all(torch.equal(value, theirs[name]) for name, value in weights(run_dir).items())

    assert stat.S_IMODE((run_dir / FILE).stat().st_mode) == 0o600
    secret = (run_dir / FILE).read_text().strip()
    assert any(environment.get(SECRET) == secret for environment in watch.environments), "workers have it"
    assert secret not in " ".join(watch.arguments) + first.output + second.output
    others = [path for path in run_dir.rglob("*") if path.is_file() and path.name != FILE]
    assert {"config.yaml", "summary.json", "run.log"} <= {path.name for path in others}
    assert not [path for path in others if secret.encode() in path.read_bytes()]


@pytest.mark.slow
def test_strangers_change_nothing_at_a_parameter_server(freeze: Freeze, tmp_path: Path) -> None:
    long_enough = [*TINY, *ONE_SERVER, "trainer.max_epochs=6"]
    quiet, run_dir = freeze("quiet", *long_enough), freeze("run", *long_enough, SPAWN)
    assert start(quiet) == 0
    watch = Watch(attack=True)
    code, output = watched(watch, START, str(run_dir), folder=tmp_path)
    assert code == 0, output
    assert watch.attacked >= 3, "the store, the worker and the server"
    assert_on_loopback(watch)
    theirs = weights(quiet)
    assert all(torch.equal(value, theirs[name]) for name, value in weights(run_dir).items())
    assert not (run_dir / FILE).exists(), "on one node the environment is enough"


@pytest.mark.slow
def test_strangers_change_nothing_at_a_coordinator(tmp_path: Path) -> None:
    pipeline = ["hydra/launcher=pipeline", "topology=cpu", "topology.devices_per_node=2", SPAWN, "hydra.sweep.dir=mine"]
    # gloo's in the workers take whoever connects first (docs/security.md): a stranger there can end a run
    watch = Watch(attack=True, spared="leyden.trainer.entrypoints.worker")
    words = ["-m", *pipeline, *TINY, "trainer.max_epochs=1", "seed=1,2"]
    code, output = watched(watch, "leyden", *words, folder=tmp_path)
    assert code == 0, output
    assert watch.attacked >= 2, "the store and the coordinator"
    assert "connections were refused" in output
    assert_on_loopback(watch)
    assert [summary(tmp_path / "mine" / name)["status"] for name in ("0", "1", "pipeline")] == ["done"] * 3
