"""Process group of a doctor run: identity of workers, barriers, stopping."""

import os
import platform
import signal
import socket
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from pydantic import TypeAdapter

from ...base.signals import StopRequest
from ...config.schema import Config
from ...core.communication.plain_values import all_gather_values
from ...hardware.schema import Device
from ...hardware.topology import device_kind
from .results import LinkKind, WorkerFigures

_Value = TypeVar("_Value")


class Interrupted(Exception):
    """A worker received a stop signal."""

    def __init__(self, number: signal.Signals):
        super().__init__(number.name)
        self.number = number


class DoctorGroup:
    """All workers, in a group of NCCL or Gloo for measurements, and a group of Gloo for control."""

    def __init__(self, config: Config, stop_request: StopRequest):
        topology = config.topology
        self._stop_request = stop_request
        self._sockets = topology.device.sockets
        self.rank, local = int(os.environ.get("RANK", 0)), int(os.environ.get("LOCAL_RANK", 0))
        self.count = config.worker_processes
        self.device = torch.device("cpu")
        if device_kind(topology) == "cuda":
            self.device = torch.device("cuda", local)
            torch.cuda.set_device(self.device)
        self._control: Any = None
        if self.count > 1:
            on_gpu = self.device.type == "cuda"
            dist.init_process_group("nccl" if on_gpu else "gloo", device_id=self.device if on_gpu else None)
            self._control = dist.new_group(backend="gloo")
        node = int(os.environ.get("GROUP_RANK", 0))
        me = WorkerFigures(self.rank, node, local, socket.gethostname(), _name(topology.device, self.device))
        self.workers: list[WorkerFigures] = self.gather(me, WorkerFigures)

    @property
    def me(self) -> WorkerFigures:
        return self.workers[self.rank]

    @property
    def nodes(self) -> list[list[int]]:
        """Ranks of each node."""
        here: dict[int, list[int]] = {}
        for worker in self.workers:
            here.setdefault(worker.node, []).append(worker.rank)
        return [here[node] for node in sorted(here)]

    def kind(self, one: int, other: int) -> LinkKind:
        """Kind of the link between two workers."""
        a, b = self.workers[one], self.workers[other]
        if a.node != b.node:
            return "fabric"
        apart = self._sockets is not None and self._sockets[a.local] != self._sockets[b.local]
        return "across_sockets" if apart else "in_node"

    def gather(self, mine: _Value, kind: type[_Value]) -> list[_Value]:
        """Every worker's value, by rank. Collective.

        Args:
            kind: type of the value, for its way as JSON.
        """
        if self.count == 1:
            return [mine]
        adapter: TypeAdapter[_Value] = TypeAdapter(kind)
        gathered = all_gather_values(adapter.dump_python(mine, mode="json"), self._control)
        return [adapter.validate_python(value) for value in gathered]

    def wait_for_all(self) -> None:
        """Barrier.

        Raises:
            Interrupted: a worker received a stop signal; all workers raise it.
        """
        requested = torch.tensor(int(self._stop_request.signal or 0))
        if self.count > 1:
            dist.all_reduce(requested, dist.ReduceOp.MAX, group=self._control)
        if requested:
            raise Interrupted(signal.Signals(int(requested)))

    def slowest(self, seconds: float) -> float:
        """The largest value of all workers. Collective."""
        if self.count == 1:
            return seconds
        largest = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._control)
        return float(largest)

    def finish_work(self) -> None:
        """Wait until the device is idle."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _name(declared: Device, device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return declared.name or platform.processor() or platform.machine()
