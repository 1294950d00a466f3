"""The workers of an examination: who they are, how they wait for each other, how they stop."""

import os
import platform
import signal
import socket
from typing import Any

import torch
import torch.distributed as dist

from ..config import Config
from ..hardware import Device
from ..signals import StopRequest
from ..topology import device_kind
from .figures import LinkKind, Worker


class Interrupted(Exception):
    """A worker was asked to stop."""

    def __init__(self, number: signal.Signals):
        super().__init__(number.name)
        self.number = number


class Team:
    """All workers, in a group of NCCL or Gloo, and in one of Gloo's to talk about the work."""

    def __init__(self, config: Config, stop_request: StopRequest):
        topology = config.topology
        self._stop_request = stop_request
        self._sockets = topology.device.sockets
        self.rank, local = int(os.environ.get("RANK", 0)), int(os.environ.get("LOCAL_RANK", 0))
        self.count = config.processes
        self.device = torch.device("cpu")
        if device_kind(topology) == "cuda":
            self.device = torch.device("cuda", local)
            torch.cuda.set_device(self.device)
        self._talk: Any = None
        if self.count > 1:
            on_gpu = self.device.type == "cuda"
            dist.init_process_group("nccl" if on_gpu else "gloo", device_id=self.device if on_gpu else None)
            self._talk = dist.new_group(backend="gloo")
        node = int(os.environ.get("GROUP_RANK", 0))
        me = Worker(self.rank, node, local, socket.gethostname(), _name(topology.device, self.device))
        self.workers: list[Worker] = self.told(me)

    @property
    def me(self) -> Worker:
        return self.workers[self.rank]

    @property
    def nodes(self) -> list[list[int]]:
        """Ranks of each node."""
        here: dict[int, list[int]] = {}
        for worker in self.workers:
            here.setdefault(worker.node, []).append(worker.rank)
        return [here[node] for node in sorted(here)]

    def kind(self, one: int, other: int) -> LinkKind:
        """What lies between two workers."""
        a, b = self.workers[one], self.workers[other]
        if a.node != b.node:
            return "fabric"
        apart = self._sockets is not None and self._sockets[a.local] != self._sockets[b.local]
        return "across_sockets" if apart else "in_node"

    def told(self, mine: Any) -> list[Any]:
        """What every worker says, by rank."""
        if self.count == 1:
            return [mine]
        said: list[Any] = [None] * self.count
        dist.all_gather_object(said, mine, group=self._talk)
        return said

    def meet(self) -> None:
        """Wait for all.

        Raises:
            Interrupted: one of them was asked to stop; all raise it.
        """
        asked = torch.tensor(int(self._stop_request.signal or 0))
        if self.count > 1:
            dist.all_reduce(asked, dist.ReduceOp.MAX, group=self._talk)
        if asked:
            raise Interrupted(signal.Signals(int(asked)))

    def slowest(self, seconds: float) -> float:
        """The largest of what all workers measured."""
        if self.count == 1:
            return seconds
        largest = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._talk)
        return float(largest)

    def finish_work(self) -> None:
        """Wait until the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _name(declared: Device, device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return declared.name or platform.processor() or platform.machine()
