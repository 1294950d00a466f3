"""Two hosts on this machine: network namespaces joined by a cable of a chosen rate. Needs root, `ip` and `tc`."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from leyden.trainer.config.schema import load

_LONGEST_S = 600
_UP_S = 60


@cache
def available() -> bool:
    """Whether this process may join network namespaces."""
    if os.name != "posix" or os.geteuid() != 0 or not all(shutil.which(tool) for tool in ("ip", "tc")):
        return False
    try:
        with TwoHosts():
            return True
    except RuntimeError:
        return False


def freeze(run_dir: Path, *overrides: str) -> Path:
    """A run folder with the frozen config of these overrides."""
    run_dir.mkdir(parents=True)
    with initialize_config_module("leyden.conf", version_base=None):
        config = compose("train", overrides=list(overrides))
    (run_dir / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True))
    return run_dir


class Hosts(ABC):
    """A context in which there are network namespaces; what it made is gone afterwards.

    Args:
        namespaces: their names.
    """

    def __init__(self, namespaces: Sequence[str]):
        self._namespaces = namespaces

    def __enter__(self) -> Self:
        try:
            for name in self._namespaces:
                do("ip", "netns", "add", name)
            self.join()
            for name in self._namespaces:
                _await_cards(name)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()

    def _remove(self) -> None:
        for name in self._namespaces:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    @abstractmethod
    def join(self) -> None:
        """Lay cables between the namespaces, which are there."""

    @staticmethod
    def cable(namespace: str, card: str, other: str, plug: str) -> None:
        """From a card in one namespace to one in another."""
        do("ip", "-n", namespace, "link", "add", card, "type", "veth", "peer", "name", plug, "netns", other)

    @staticmethod
    def switch_on(namespace: str, card: str, address: str) -> None:
        """Give a card its address, and let it and the loopback carry traffic."""
        do("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", card)
        do("ip", "-n", namespace, "link", "set", "lo", "up")
        do("ip", "-n", namespace, "link", "set", card, "up")

    @staticmethod
    def limit_card(namespace: str, card: str, mbit: float | None) -> None:
        """What a card sends at most, in Mbit/s; None: no limit."""
        bucket = ["tbf", "rate", f"{mbit}mbit", "burst", "256kb", "latency", "100ms"]
        discipline = ["pfifo_fast"] if mbit is None else bucket
        do("ip", "netns", "exec", namespace, "tc", "qdisc", "replace", "dev", card, "root", *discipline)


class TwoHosts(Hosts):
    """A context in which runs can be started on two hosts; what it made is gone afterwards.

    Args:
        mbit: rate of the cable in each direction, in Mbit/s; None: as fast as the machine is.
    """

    addresses = ("10.99.0.1", "10.99.0.2")
    cards = ("leyden0", "leyden1")

    def __init__(self, mbit: float | None = None):
        self.mbit = mbit
        self.names = tuple(f"leyden{os.getpid()}host{number}" for number in range(2))
        self._ports = 29600
        super().__init__(self.names)

    def join(self) -> None:
        one, other = self.names
        self.cable(one, self.cards[0], other, self.cards[1])
        for name, card, address in zip(self.names, self.cards, self.addresses, strict=True):
            self.switch_on(name, card, address)
        if self.mbit is not None:
            self.limit(self.mbit)

    def limit(self, mbit: float | None) -> None:
        """Another rate for the cable; None: no limit."""
        for name, card in zip(self.names, self.cards, strict=True):
            self.limit_card(name, card, mbit)

    def sent(self) -> list[int]:
        """Bytes that each host's network card has sent, by the kernel's counters."""
        counters = [f"/sys/class/net/{card}/statistics/tx_bytes" for card in self.cards]
        read = [do("ip", "netns", "exec", n, "cat", path) for n, path in zip(self.names, counters, strict=True)]
        return [int(text) for text in read]

    def run(self, run_dir: Path, verb: str = "train") -> dict[str, Any]:
        """Do a frozen run, half of its workers on each host, its servers on one after the other. Returns its summary.

        Raises:
            RuntimeError: a process failed; holds what it printed.
        """
        config = load(run_dir)
        self._ports += 1
        with tempfile.TemporaryDirectory() as failures:
            common = {
                "WORLD_SIZE": config.topology.workers, "MASTER_ADDR": self.addresses[0], "MASTER_PORT": self._ports,
                "OMP_NUM_THREADS": 1, "LEYDEN_AGENT": os.getpid(), "LEYDEN_FAILURES": failures,
                "LEYDEN_SECRET": secrets.token_hex(32),
            }  # fmt: skip
            arguments = [str(run_dir), verb, ""]
            roles = {str(rank): self._worker(rank, config.topology.workers) for rank in range(config.topology.workers)}
            for index in range(config.servers):
                roles[f"server-{index}"] = config.topology.server_node(index), "server", {"LEYDEN_SERVER": index}
            started = {
                name: self._start(host, kind, arguments, {**common, **own}) for name, (host, kind, own) in roles.items()
            }
            try:
                outputs = {name: process.communicate(timeout=_LONGEST_S)[0] for name, process in started.items()}
            finally:
                for process in started.values():
                    process.kill()
                    process.communicate()
            for name, process in started.items():
                if process.returncode:
                    reason = Path(failures, f"{name}.json")
                    told = json.loads(reason.read_text())["traceback"] if reason.exists() else ""
                    raise RuntimeError(f"{name}: exit code {process.returncode}\n{outputs[name]}\n{told}")
        return json.loads((run_dir / "summary.json").read_text())

    def _worker(self, rank: int, workers: int) -> tuple[int, str, dict[str, Any]]:
        here = workers // 2
        own = {"RANK": rank, "LOCAL_RANK": rank % here, "GROUP_RANK": rank // here, "LOCAL_WORLD_SIZE": here}
        return rank // here, "worker", {**own, "TORCHELASTIC_RUN_ID": "hosts"}

    def _start(self, host: int, kind: str, arguments: list[str], environment: dict[str, Any]) -> subprocess.Popen[str]:
        environment = {**environment, "GLOO_SOCKET_IFNAME": self.cards[host]}
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], sys.executable, "-m", f"leyden.trainer.entrypoints.{kind}",
             *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **{name: str(value) for name, value in environment.items()}},
        )  # fmt: skip


def _await_cards(namespace: str) -> None:
    """Wait until each card that was switched on is up: the kernel says so up to a second after the other end is."""
    deadline = time.monotonic() + _UP_S
    while down := [card["ifname"] for card in _cards(namespace) if card["operstate"] not in ("UP", "UNKNOWN")]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{namespace}: {', '.join(down)} not up after {_UP_S} s")
        time.sleep(0.01)


def _cards(namespace: str) -> list[dict[str, Any]]:
    """Cards that are switched on, as `ip` describes them."""
    return [card for card in json.loads(do("ip", "-n", namespace, "-j", "link")) if "UP" in card["flags"]]


def do(*command: str) -> str:
    """What a command prints.

    Raises:
        RuntimeError: it fails; holds what it says.
    """
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
