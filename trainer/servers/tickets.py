"""Who trains on what, for workers that go by their own clocks: one counter, from which each takes the next slice."""

from dataclasses import dataclass, field
from typing import Literal

Meeting = Literal["epoch", "save", "stop", "warm"]
"""Why all workers meet: the epoch's slices are all taken; a checkpoint is wanted; so is an end; the warm start's slices
are all taken, and the workers that have waited start from what it has come to."""


@dataclass(frozen=True)
class Stretch:
    """What is trained between two meetings, in rounds: global batches of one slice for each worker."""

    serial: int
    """Number of the stretch: a repeated announcement is known by it."""
    epoch: int
    first_round: int
    """Of the epoch."""
    end_round: int
    step: int
    """Rounds trained before this stretch, over all epochs."""


@dataclass
class Tickets:
    """The counter of one run. A ticket's number n is slice n % workers of round n // workers of the epoch.

    Meetings are held between two rounds, so that where training stands is a number of rounds, whoever did them: that
    is what a checkpoint keeps, and any number of workers can go on from there.

    Args:
        workers: slices a round.
        alone_until: so many first slices of the whole training go to worker 0 (a warm start), a multiple of `workers`;
            the others wait until all of them are trained and pushed: for that, a meeting ends the warm start.
    """

    workers: int
    alone_until: int = 0
    stretch: Stretch | None = None
    next: int = 0
    wanted: Meeting | None = None
    """The meeting that was asked for."""
    meeting: Meeting | None = None
    """The meeting that has been called: no ticket is given until the next stretch begins."""
    returned: list[int] = field(default_factory=list)
    """Taken by workers that died with them: given again first."""
    taken: dict[int, list[int]] = field(default_factory=dict)
    """Each worker's tickets that are not known to be trained, in order."""
    trained: dict[int, int] = field(default_factory=dict)
    """How many each worker has trained in this stretch."""

    def begin(self, stretch: Stretch) -> None:
        """Every worker announces the same stretch; the first one counts."""
        if self.stretch is not None and stretch.serial <= self.stretch.serial:
            return
        self.stretch = stretch
        self.next = stretch.first_round * self.workers
        self.wanted = self.meeting = None
        self.returned, self.taken, self.trained = [], {}, {}

    def ask(self, meeting: Meeting) -> None:
        """Have everybody meet after the round that is being given out. A stop goes before a checkpoint."""
        if self.meeting is None and self.wanted != "stop":
            self.wanted = meeting

    def give(self, worker: int, trained: int | None = None) -> int | Meeting | None:
        """The worker's next ticket; a meeting to go to; None: it has to wait.

        Args:
            trained: how many it has trained in this stretch; None: all that it took.
        """
        assert self.stretch is not None
        self._done(worker, trained)
        # worker 0 gets back what it had when it is started again; once a meeting is called it cannot join before that
        has_to_wait = worker != 0 and self.meeting is None
        if self.returned and not (has_to_wait and self._in_warm_start(self.returned[0])):
            return self._take(worker, self.returned.pop(0))
        if self.meeting is None:
            self.meeting = self._due()
        if self.meeting is not None:
            return self.meeting
        if has_to_wait and self._in_warm_start(self.next):
            return None
        self.next += 1
        return self._take(worker, self.next - 1)

    def _due(self) -> Meeting | None:
        """The meeting to call before the next new ticket is given."""
        assert self.stretch is not None
        if self.next >= self.stretch.end_round * self.workers:
            return "stop" if self.wanted == "stop" else "epoch"
        if self.wanted is not None and self.next % self.workers == 0:
            return self.wanted
        return "warm" if self.ends_warm_start else None

    def _before(self, number: int) -> int:
        """Slices of the whole training before this ticket of the epoch."""
        assert self.stretch is not None
        return (self.stretch.step - self.stretch.first_round) * self.workers + number

    def _in_warm_start(self, number: int) -> bool:
        return self._before(number) < self.alone_until

    @property
    def ends_warm_start(self) -> bool:
        """Whether the last ticket that was given out was the last one of the warm start."""
        assert self.stretch is not None
        begun = self.next > self.stretch.first_round * self.workers
        return begun and self._before(self.next) == self.alone_until

    def _done(self, worker: int, trained: int | None) -> None:
        taken, before = self.taken.get(worker, []), self.trained.get(worker, 0)
        count = len(taken) if trained is None else trained - before
        del taken[:count]
        self.trained[worker] = before + count

    def _take(self, worker: int, number: int) -> int:
        self.taken.setdefault(worker, []).append(number)
        return number

    def lose(self, worker: int) -> None:
        """A worker is gone: what it had taken and not trained is given to others."""
        self.returned += self.taken.pop(worker, [])
        self.trained.pop(worker, None)

    @property
    def round(self) -> int:
        """Rounds of the epoch that are given out whole."""
        return self.next // self.workers


class FixedTickets(Tickets):
    """For virtual workers in lockstep: slice k of every round is worker k's, however long the others take."""

    def begin(self, stretch: Stretch) -> None:
        super().begin(stretch)
        self.rounds = [stretch.first_round] * self.workers
        self.last_round = stretch.end_round

    def ask(self, meeting: Meeting) -> None:
        super().ask(meeting)
        self.last_round = max(self.rounds)

    def give(self, worker: int, trained: int | None = None) -> int | Meeting | None:
        assert self.stretch is not None
        if self.rounds[worker] >= min(self.last_round, self.stretch.end_round):
            done = self.last_round >= self.stretch.end_round and self.wanted != "stop"
            self.meeting = "epoch" if done else self.wanted
            return self.meeting
        self.rounds[worker] += 1
        return (self.rounds[worker] - 1) * self.workers + worker

    @property
    def round(self) -> int:
        return min(self.rounds)
