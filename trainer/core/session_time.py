"""Wall time of a session by cause, from the phases of its process's heartbeat."""

from datetime import datetime
from typing import Any

from ..base.heartbeat import (
    CALLBACKS,
    CHECKPOINT,
    DATA,
    EVALUATION,
    PREPARATION,
    START,
    SYNCHRONIZATION,
    Heartbeat,
)


def session_time(heartbeat: Heartbeat, communication: float) -> dict[str, Any]:
    """When the session began, when it was last seen, and the seconds in between by cause; `train` is the remainder.

    Args:
        communication: seconds inside steps that waited for the network.
    """
    began = heartbeat.began
    if began is None:
        return {}
    heartbeat.count()
    spent = heartbeat.seconds
    seconds = {
        "start": spent[START] + spent[PREPARATION],
        "data": spent[DATA],
        "waiting": spent[SYNCHRONIZATION] + communication,
        "validation": spent[EVALUATION],
        "saving": spent[CHECKPOINT],
        "other": spent[CALLBACKS],
    }
    whole = sum(spent)
    seconds["train"] = whole - sum(seconds.values())
    return {"began_at": _iso(began), "ended_at": _iso(began + whole), "seconds": seconds}


def _iso(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp).astimezone().isoformat(timespec="milliseconds")
