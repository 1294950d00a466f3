"""The side of a worker or server that its agent sees: it ends with the agent, and says why it failed."""

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from .parent import end_with_parent
from .records import Records

AGENT = "LEYDEN_AGENT"
"""Environment variable: process id of the agent."""


def end_with_agent() -> None:
    """Have the kernel end this process when its agent dies; end it now where the agent is dead already."""
    if not end_with_parent(int(os.environ[AGENT]), signal.SIGKILL):
        os._exit(1)


def run_as_child(name: str, work: Callable[[], None]) -> NoReturn:
    """Do the work of a process that has taken its signals over, and exit: 0, or 1 with a record of the exception."""
    records = Records.of_agent()
    records.tell(name)
    records.listen(name)
    try:
        work()
    except Exception as error:
        records.fail(name, error)
        _exit(1)
    _exit(0)


def _exit(code: int) -> NoReturn:
    """Straight out: peers see closed sockets now, and no thread of gloo's can abort the interpreter's slow end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
