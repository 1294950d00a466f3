"""Sessions of a run: steps, samples and seconds of each start, and their totals. No torch.

A session is recorded in up to three places: summary.json (if it ended by itself), progress.json (a few seconds old if
it was killed) and the checkpoint from which the next one continues. Of several records of one session the one with most
steps is the newest.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ..base.untrusted_file import DamagedFile, check_types, read_mapping

_TYPES = {"started_at": str, "from_step": int, "steps": int, "samples": int, "train_seconds": float}
Record = dict[str, Any]
"""A session in plain values, see `Session.record`."""


@dataclass(frozen=True)
class Session:
    """The start of one session of a training."""

    started_at: str
    """ISO 8601, to the millisecond; identifies the session."""
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
        """The session so far, in plain values.

        Args:
            step: optimizer steps of the whole training.
            samples: those of the whole training, over all workers.
            train_seconds: spent in steps of this session, on rank 0.
            more: further values.
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


def merge_sessions(*records: Iterable[Record]) -> list[Record]:
    """Every session once, by start; sessions without a step are left out."""
    newest: dict[str, Record] = {}
    for record in (one for some in records for one in some):
        known = newest.get(record["started_at"])
        if record["steps"] and (known is None or _age(record) > _age(known)):
            newest[record["started_at"]] = record
    return sorted(newest.values(), key=lambda record: datetime.fromisoformat(record["started_at"]))


def _age(record: Record) -> tuple[int, float]:
    """Larger for a later record of one session."""
    return record["steps"], sum((record.get("seconds") or {}).values())


def read_recorded(summary: Mapping[str, Any], progress_file: Path) -> list[Record]:
    """The sessions in a run's files: those of its summary, and the last one to report progress."""
    try:
        last = read_mapping(progress_file, {"session": dict}).get("session")
        if last is not None:
            check_session(progress_file, last, "session")
    except (OSError, DamagedFile):
        last = None
    return merge_sessions(summary.get("sessions") or [], [] if last is None else [last])


def check_session(path: Path, record: object, name: str) -> None:
    """Raise DamagedFile unless a record read from a file is that of a session."""
    if not isinstance(record, dict) or any(record.get(key) is None for key in _TYPES):
        raise DamagedFile(path, f"{name} is no session: it lacks one of {', '.join(_TYPES)}")
    check_types(path, record, {**_TYPES, "seconds": dict}, f"{name}.")
    seconds = record.get("seconds") or {}
    check_types(path, seconds, dict.fromkeys(seconds, float), f"{name}.seconds.")
    if None in seconds.values():
        raise DamagedFile(path, f"{name}.seconds must be numbers")
    try:
        whole = datetime.fromisoformat(record["started_at"]).tzinfo is not None
    except ValueError:
        whole = False
    if not whole:  # without its offset from UTC it cannot be compared with the others
        raise DamagedFile(path, f"{name}.started_at is no time: {record['started_at'][:40]!r}")


def totals(records: Iterable[Record]) -> dict[str, float]:
    """Sums over sessions. Steps repeated after a kill count each time, as they took time."""
    kept = list(records)
    sums = {name: sum(record[name] for record in kept) for name in ("steps", "samples", "train_seconds")}
    seconds = sums["train_seconds"]
    return {**sums, "samples_per_second": sums["samples"] / seconds if seconds else 0.0}
