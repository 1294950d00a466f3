"""Work queue of asynchronous workers: a counter of tickets, from which each worker draws its next slice."""

from dataclasses import dataclass, field

from ...core.ticket_source import SyncReason, WorkRange


@dataclass
class WorkQueue:
    """The tickets of one run: number n is slice n % workers of round n // workers of the epoch.

    One counter, not a share for each worker: a slow worker draws fewer tickets, and an epoch still has every sample
    once.

    Workers synchronize between two rounds alone, so that the progress of training is a number of rounds, whichever
    workers trained them: a checkpoint keeps no more than that, and any number of workers can resume.

    Args:
        workers: slices a round.
        warm_start: the first slices of the whole training that go to worker 0 alone, a multiple of `workers`; the other
            workers wait until all of them are trained and pushed: a synchronization ends the warm start.
    """

    workers: int
    warm_start: int = 0
    work: WorkRange | None = None
    next: int = 0
    requested: SyncReason | None = None
    """The synchronization that a worker has requested."""
    sync: SyncReason | None = None
    """The synchronization that has begun: no ticket is handed out until the next work range."""
    requeued: list[int] = field(default_factory=list)
    """Tickets of workers that died before training them: handed out first."""
    outstanding: dict[int, list[int]] = field(default_factory=dict)
    """Each worker's tickets that are not known to be trained, in order."""
    trained: dict[int, int] = field(default_factory=dict)
    """Each worker's number of trained tickets of this work range."""

    def begin(self, work: WorkRange) -> None:
        """Start a work range; every worker announces it, the first announcement counts."""
        if self.work is not None and work.serial <= self.work.serial:
            return
        self.work = work
        self.next = work.first_round * self.workers
        self.requested = self.sync = None
        self.requeued, self.outstanding, self.trained = [], {}, {}

    def request_sync(self, reason: SyncReason) -> None:
        """Have all workers synchronize after the current round. A stop takes precedence over a checkpoint."""
        if self.sync is None and self.requested != "stop":
            self.requested = reason

    def draw(self, worker: int, trained: int | None = None) -> int | SyncReason | None:
        """The worker's next ticket; the reason to synchronize instead; None: the worker has to wait.

        Args:
            trained: number of its tickets of this work range that are trained; None: all.
        """
        assert self.work is not None
        self._mark_trained(worker, trained)
        # worker 0 gets its own tickets back when it has restarted; once a synchronization has begun it cannot join
        has_to_wait = worker != 0 and self.sync is None
        if self.requeued and not (has_to_wait and self._in_warm_start(self.requeued[0])):
            return self._hand_out(worker, self.requeued.pop(0))
        if self.sync is None:
            self.sync = self._due_sync()
        if self.sync is not None:
            return self.sync
        if has_to_wait and self._in_warm_start(self.next):
            return None
        self.next += 1
        return self._hand_out(worker, self.next - 1)

    def _due_sync(self) -> SyncReason | None:
        """The synchronization that comes before the next new ticket."""
        assert self.work is not None
        if self.next >= self.work.end_round * self.workers:
            return "stop" if self.requested == "stop" else "epoch"
        if self.requested is not None and self.next % self.workers == 0:
            return self.requested
        return "warm" if self.ends_warm_start else None

    def _slices_before(self, number: int) -> int:
        """Slices of the whole training before this ticket of the epoch."""
        assert self.work is not None
        return (self.work.step - self.work.first_round) * self.workers + number

    def _in_warm_start(self, number: int) -> bool:
        return self._slices_before(number) < self.warm_start

    @property
    def ends_warm_start(self) -> bool:
        """Whether the last ticket that was handed out was the last one of the warm start."""
        assert self.work is not None
        begun = self.next > self.work.first_round * self.workers
        return begun and self._slices_before(self.next) == self.warm_start

    def _mark_trained(self, worker: int, trained: int | None) -> None:
        outstanding, before = self.outstanding.get(worker, []), self.trained.get(worker, 0)
        count = len(outstanding) if trained is None else trained - before
        del outstanding[:count]
        self.trained[worker] = before + count

    def _hand_out(self, worker: int, number: int) -> int:
        self.outstanding.setdefault(worker, []).append(number)
        return number

    def drop_worker(self, worker: int) -> None:
        """A worker has left or died: its tickets that are not trained go to others."""
        self.requeued += self.outstanding.pop(worker, [])
        self.trained.pop(worker, None)

    @property
    def rounds(self) -> int:
        """Rounds of the epoch whose tickets have all been handed out."""
        return self.next // self.workers


class LockstepWorkQueue(WorkQueue):
    """Tickets of simulated workers in lockstep: slice k of every round is worker k's, however long the others take."""

    def begin(self, work: WorkRange) -> None:
        super().begin(work)
        self.rounds_of = [work.first_round] * self.workers
        self.last_round = work.end_round

    def request_sync(self, reason: SyncReason) -> None:
        super().request_sync(reason)
        self.last_round = max(self.rounds_of)

    def draw(self, worker: int, trained: int | None = None) -> int | SyncReason | None:
        assert self.work is not None
        if self.rounds_of[worker] >= min(self.last_round, self.work.end_round):
            done = self.last_round >= self.work.end_round and self.requested != "stop"
            self.sync = "epoch" if done else self.requested
            return self.sync
        self.rounds_of[worker] += 1
        return (self.rounds_of[worker] - 1) * self.workers + worker

    @property
    def rounds(self) -> int:
        return min(self.rounds_of)
