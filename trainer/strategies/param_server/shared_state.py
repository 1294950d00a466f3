"""State of a parameter server that the handler threads of all its workers share."""

import threading
from pathlib import Path
from typing import Any

import torch

from ...base.regular_file import open_to_append
from ...config.locate import locate
from ...config.schema import Config
from ..execution import execution_of
from .shard import ParamShard
from .work_queue import WorkQueue


class SharedState:
    """Shard, work queue and membership. `changed` guards all of it.

    Args:
        records: whether `strategy.execution.record` counts.
    """

    def __init__(self, config: Config, run_dir: Path, index: int, records: bool = True):
        self.config = config
        self.run_dir = run_dir
        self.index = index
        self.workers = config.topology.workers
        self.servers = config.servers
        self.strategy = locate(config.strategy.target)
        self.changed = threading.Condition()
        # created by the first worker's request: a server never builds the model, so that only a worker knows the
        # length, dtype and parameter groups
        self.shard: ParamShard | None = None
        self.queue: WorkQueue = self.strategy.make_work_queue(config)
        self.event_log: Any = None
        if records and execution_of(config.strategy.arguments).record and index == 0:
            self.event_log = open_to_append(run_dir / "events.csv")
        self.present = set(range(self.workers))
        self.incarnations = dict.fromkeys(range(self.workers), 0)
        """Restarts of each worker whose connection is expected."""
        self.joining: set[int] = set()
        """Restarted workers that have not left since: they wait for the current work range, or for the end."""
        self.finished = False
        self.at_barrier: set[int] = set()
        """Workers that wait at the barrier."""
        self.more_tickets = False
        """Whether the workers of the last barrier were sent back to the tickets of a lost one."""
        self.error: BaseException | None = None

    def release_barrier(self) -> None:
        """Let the workers go on where all that are present have reached the barrier."""
        if self.present <= self.at_barrier:
            self.more_tickets = bool(self.queue.requeued)
            self.at_barrier.clear()

    @property
    def accepts_joins(self) -> bool:
        """Whether tickets are handed out, so that a restarted worker can join."""
        return self.queue.work is not None and self.queue.sync is None and not self.at_barrier

    def record(self, worker: int, kind: str) -> None:
        """Write an event; with `changed` held, so that the order is that of the effects."""
        if self.event_log is not None:
            self.event_log.write(f"{worker},{kind}\n")
            self.event_log.flush()

    def create_shard(self, values: torch.Tensor, segments: list[tuple[int, int]]) -> ParamShard:
        with self.changed:
            self.shard = self.strategy.make_shard(self.config, values, segments)
            self.changed.notify_all()
        assert self.shard is not None
        return self.shard

    def wait_for_shard(self) -> ParamShard:
        """The shard, as soon as a worker has initialized it; with `changed` held."""
        if self.shard is None:
            self.changed.wait_for(lambda: self.shard is not None)
        assert self.shard is not None
        return self.shard
