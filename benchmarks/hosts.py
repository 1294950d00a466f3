"""Two hosts on this machine: network namespaces joined by a cable of a chosen rate. Needs root, `ip` and `tc`."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from leyden.trainer.config import load

_LONGEST_S = 600


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


class TwoHosts:
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

    def __enter__(self) -> "TwoHosts":
        try:
            self._join()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()

    def _join(self) -> None:
        for name in self.names:
            _do("ip", "netns", "add", name)
        one, other = self.names
        _do(
            "ip", "-n", one, "link", "add", self.cards[0], "type", "veth", "peer", "name", self.cards[1], "netns", other
        )
        for name, card, address in zip(self.names, self.cards, self.addresses, strict=True):
            _do("ip", "-n", name, "addr", "add", f"{address}/24", "dev", card)
            _do("ip", "-n", name, "link", "set", "lo", "up")
            _do("ip", "-n", name, "link", "set", card, "up")
        if self.mbit is not None:
            self.limit(self.mbit)

    def limit(self, mbit: float | None) -> None:
        """Another rate for the cable; None: no limit."""
        for name, card in zip(self.names, self.cards, strict=True):
            discipline = ["tc", "qdisc", "replace", "dev", card, "root"]
            if mbit is None:
                _do("ip", "netns", "exec", name, *discipline, "pfifo_fast")
            else:
                bucket = ["tbf", "rate", f"{mbit}mbit", "burst", "256kb", "latency", "100ms"]
                _do("ip", "netns", "exec", name, *discipline, *bucket)

    def _remove(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def sent(self) -> list[int]:
        """Bytes that each host's network card has sent, by the kernel's counters."""
        counters = [f"/sys/class/net/{card}/statistics/tx_bytes" for card in self.cards]
        read = [_do("ip", "netns", "exec", n, "cat", path) for n, path in zip(self.names, counters, strict=True)]
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
            ["ip", "netns", "exec", self.names[host], sys.executable, "-m", f"leyden.trainer.launch.{kind}",
             *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **{name: str(value) for name, value in environment.items()}},
        )  # fmt: skip


def _do(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
