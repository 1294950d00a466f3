"""Goodput: the share of a run's life, restarts and queue included, that trained what was kept. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from .sessions import Record


@dataclass(frozen=True)
class Goodput:
    """Seconds of a run's life, from the start of its first session to the last sign of its newest.

    Attributes:
        kept: training whose steps are in the run; `goodput` is its share of the whole.
        causes: what the rest was spent on. start: imports, data, network, restoring a checkpoint; data: waiting for
            batches; waiting: for other workers and the network; validation, and the test; saving: checkpoints; lost:
            training of steps that were made again; other: logging and callbacks; down: between two sessions, in a
            queue as well.
    """

    kept: float
    causes: dict[str, float]

    @property
    def seconds(self) -> float:
        return self.kept + sum(self.causes.values())

    @property
    def share(self) -> float:
        return self.kept / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, float]:
        return {"share": self.share, "seconds": self.seconds, "kept": self.kept, **self.causes}

    def __str__(self) -> str:
        """`83 % of 1,234 s; start 9 %, lost 5 %`: causes of at least 1 %, the longest first."""
        longest = sorted(self.causes.items(), key=lambda item: -item[1])
        shares = [f"{cause} {100 * s / self.seconds:.0f} %" for cause, s in longest if s >= 0.01 * self.seconds]
        return f"{100 * self.share:.0f} % of {self.seconds:,.0f} s" + (f"; {', '.join(shares)}" if shares else "")


def goodput(sessions: Sequence[Record]) -> Goodput | None:
    """The goodput of a run's sessions, in order; None where one of them is of a version that did not count causes."""
    if not sessions or not all("seconds" in session for session in sessions):
        return None
    causes = dict.fromkeys(sessions[0]["seconds"], 0.0) | {"lost": 0.0, "down": 0.0}
    for number, session in enumerate(sessions):
        for cause, seconds in session["seconds"].items():
            causes[cause] += seconds
        if number + 1 < len(sessions):
            following = sessions[number + 1]
            causes["lost"] += _lost(session, following)
            causes["down"] += max(0.0, _time(following["began_at"]) - _time(session["ended_at"]))
    kept = causes.pop("train") - causes["lost"]
    return Goodput(kept, causes)


def _lost(session: Record, following: Record) -> float:
    """Seconds of training whose steps the following session made again."""
    repeated = session["from_step"] + session["steps"] - following["from_step"]
    return session["seconds"]["train"] * min(1.0, max(0, repeated) / session["steps"])


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
