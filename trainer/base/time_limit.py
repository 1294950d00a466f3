"""Time limit of a training: trainer.max_time."""

import math
import re
from collections.abc import Mapping
from datetime import timedelta
from time import monotonic

_TEXT = re.compile(r"(\d+):(\d\d):(\d\d):(\d\d)")
_UNITS = ("weeks", "days", "hours", "minutes", "seconds")


def seconds_of(max_time: str | Mapping[str, int | float]) -> float:
    """Seconds of a duration in Lightning's formats: DD:HH:MM:SS, or arguments of datetime.timedelta.

    Raises:
        ValueError: it is neither, or negative.
    """
    if isinstance(max_time, str):
        match = _TEXT.fullmatch(max_time.strip())
        if match is None:
            raise ValueError("must be DD:HH:MM:SS (days, hours, minutes, seconds)")
        days, hours, minutes, seconds = map(int, match.groups())
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
    if not max_time or set(max_time) - set(_UNITS) or any(amount < 0 for amount in max_time.values()):
        raise ValueError(f"must hold some of {', '.join(_UNITS)}, none of them negative")
    return timedelta(**max_time).total_seconds()


def as_text(seconds: float) -> str:
    """The duration as DD:HH:MM:SS, rounded up."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days:02}:{hours:02}:{minutes:02}:{rest:02}"


class TimeLimit:
    """Elapsed training time, over all sessions, and its limit.

    Args:
        max_time: as trainer.max_time; None: no limit.
    """

    def __init__(self, max_time: str | Mapping[str, int | float] | None = None):
        self.seconds = None if max_time is None else seconds_of(max_time)
        self.before = 0.0
        """Seconds of training in earlier sessions."""
        self._began: float | None = None

    def begin(self) -> None:
        """Start the clock of this session."""
        self._began = monotonic()

    def elapsed_s(self) -> float:
        """Seconds of training, including validation."""
        return self.before + (0.0 if self._began is None else monotonic() - self._began)

    @property
    def over(self) -> bool:
        return self.seconds is not None and self.elapsed_s() >= self.seconds

    @property
    def reason(self) -> str:
        return f"trainer.max_time is over: {timedelta(seconds=self.seconds or 0.0)} of training"
