"""The sessions of a run: what each of its starts has trained, and what all of them took together. No torch.

A session is known from up to three places: summary.json (it came to an end of its own), progress.json (a few seconds
old where it was killed) and the checkpoint that the next one goes on from. Of several records of one session the one
with most steps is the newest.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

Record = dict[str, Any]
"""A session in plain values, see `Session.record`."""


@dataclass(frozen=True)
class Session:
    """One start of a training, at the moment of its start."""

    started_at: str
    """ISO 8601, to the millisecond: it names the session."""
    from_step: int
    from_sample: int
    world_size: int

    @classmethod
    def begun(cls, step: int, samples: int, world_size: int) -> "Session":
        now = datetime.now().astimezone().isoformat(timespec="milliseconds")
        return cls(now, step, samples, world_size)

    @classmethod
    def of(cls, record: Record) -> "Session":
        return cls(**{name: record[name] for name in ("started_at", "from_step", "from_sample", "world_size")})

    def record(self, step: int, samples: int, train_seconds: float, **more: Any) -> Record:
        """What it has done so far.

        Args:
            step: optimizer steps of the whole training.
            samples: those of the whole training, over all workers.
            train_seconds: inside the steps of this session, at the first worker.
            more: what else is worth keeping.
        """
        done = samples - self.from_sample
        return {
            "started_at": self.started_at,
            "from_step": self.from_step,
            "from_sample": self.from_sample,
            "steps": step - self.from_step,
            "samples": done,
            "train_seconds": train_seconds,
            "samples_per_second": done / train_seconds if train_seconds else 0.0,
            "world_size": self.world_size,
            **more,
        }


def merged(*records: Iterable[Record]) -> list[Record]:
    """Every session once, in the order of their starts; those that made no step are left out."""
    newest: dict[str, Record] = {}
    for record in (one for some in records for one in some):
        known = newest.get(record["started_at"])
        if record["steps"] > (known["steps"] if known else 0):
            newest[record["started_at"]] = record
    return sorted(newest.values(), key=lambda record: datetime.fromisoformat(record["started_at"]))


def recorded(summary: Mapping[str, Any], progress_file: Path) -> list[Record]:
    """The sessions that the files of a run know of: its summary's, and the one that was last seen training."""
    try:
        progress = json.loads(progress_file.read_text())
    except (OSError, ValueError):
        progress = {}
    last = progress.get("session") if isinstance(progress, dict) else None
    return merged(summary.get("sessions", []), [] if last is None else [last])


def totals(records: Iterable[Record]) -> dict[str, float]:
    """Sums over sessions. Steps that were made again after a kill count each time: they took their time."""
    kept = list(records)
    sums = {name: sum(record[name] for record in kept) for name in ("steps", "samples", "train_seconds")}
    seconds = sums["train_seconds"]
    return {**sums, "samples_per_second": sums["samples"] / seconds if seconds else 0.0}
