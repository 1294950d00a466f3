"""Outcomes of the checks, and the exit code that follows from them."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ....runs.exit_codes import REFUSED


@dataclass(frozen=True)
class Check:
    """One check and its outcome.

    Args:
        value: what was measured; None: nothing was.
        limit: the largest value that passes; None: a figure without a limit.
        ok: None: skipped, or a figure that nothing is compared with.
    """

    check: str
    value: float | None
    limit: float | None
    ok: bool | None
    seconds: float
    text: str = ""

    def as_data(self) -> dict[str, Any]:
        """The check as JSON values."""
        return asdict(self)


def exit_code(checks: Iterable[Check]) -> int:
    """0: no check has failed; 3: one has."""
    return REFUSED if any(check.ok is False for check in checks) else 0
