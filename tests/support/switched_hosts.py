"""Several hosts on this machine: network namespaces on one switch, each card with a rate of its own. Needs root."""

import os
from collections.abc import Sequence

from hosts import Hosts, do


class SwitchedHosts(Hosts):
    """A context in which processes can be started on several hosts; what it made is gone afterwards.

    Args:
        mbit: what each host's card sends at most, in Mbit/s.
    """

    def __init__(self, mbit: Sequence[float]):
        self.mbit = mbit
        self.names = [f"leyden{os.getpid()}node{number}" for number in range(len(mbit))]
        self.addresses = [f"10.98.0.{number + 1}" for number in range(len(mbit))]
        self._switch = f"leyden{os.getpid()}switch"
        super().__init__([*self.names, self._switch])

    def prefix(self, number: int) -> list[str]:
        """Words that start a command on a host."""
        return ["ip", "netns", "exec", self.names[number]]

    def join(self) -> None:
        do("ip", "-n", self._switch, "link", "add", "bridge", "type", "bridge")
        do("ip", "-n", self._switch, "link", "set", "bridge", "up")
        for number, (name, address) in enumerate(zip(self.names, self.addresses, strict=True)):
            card, port = f"leyden{number}", f"port{number}"
            self.cable(name, card, self._switch, port)
            do("ip", "-n", self._switch, "link", "set", port, "master", "bridge", "up")
            self.switch_on(name, card, address)
            self.limit_card(name, card, self.mbit[number])
