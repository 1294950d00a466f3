"""Several hosts on this machine: network namespaces on one switch, each card with a rate of its own. Needs root."""

import os
import subprocess
from collections.abc import Sequence
from types import TracebackType


class SwitchedHosts:
    """A context in which processes can be started on several hosts; what it made is gone afterwards.

    Args:
        mbit: what each host's card sends at most, in Mbit/s.
    """

    def __init__(self, mbit: Sequence[float]):
        self.mbit = mbit
        self.names = [f"leyden{os.getpid()}node{number}" for number in range(len(mbit))]
        self.addresses = [f"10.98.0.{number + 1}" for number in range(len(mbit))]
        self._switch = f"leyden{os.getpid()}switch"

    def __enter__(self) -> "SwitchedHosts":
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()

    def prefix(self, number: int) -> list[str]:
        """Words that start a command on a host."""
        return ["ip", "netns", "exec", self.names[number]]

    def _build(self) -> None:
        _do("ip", "netns", "add", self._switch)
        _do("ip", "-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _do("ip", "-n", self._switch, "link", "set", "bridge", "up")
        for number, (name, address) in enumerate(zip(self.names, self.addresses, strict=True)):
            card, port = f"leyden{number}", f"port{number}"
            _do("ip", "netns", "add", name)
            _do("ip", "-n", name, "link", "add", card, "type", "veth", "peer", "name", port, "netns", self._switch)
            _do("ip", "-n", self._switch, "link", "set", port, "master", "bridge", "up")
            _do("ip", "-n", name, "addr", "add", f"{address}/24", "dev", card)
            _do("ip", "-n", name, "link", "set", "lo", "up")
            _do("ip", "-n", name, "link", "set", card, "up")
            bucket = ["tbf", "rate", f"{self.mbit[number]}mbit", "burst", "256kb", "latency", "100ms"]
            _do("ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", card, "root", *bucket)

    def _remove(self) -> None:
        for name in (*self.names, self._switch):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
