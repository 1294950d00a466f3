"""The child's side of a process of the agent: it dies with the agent, and leaves an error file where it fails."""

import os
import signal
from collections.abc import Callable
from typing import NoReturn

from ..base.process import end_with_parent, exit_at_once, set_name
from .error_files import ErrorFiles

AGENT = "LEYDEN_AGENT"
"""Environment variable: process id of the agent."""


def end_with_agent() -> None:
    """Have the kernel kill this process when its agent dies; exit now where the agent is dead already."""
    # PR_SET_PDEATHSIG: an agent that was killed (SIGKILL, out of memory) can end nothing itself, and workers that
    # outlive it hold the devices while they wait for peers
    if not end_with_parent(int(os.environ[AGENT]), signal.SIGKILL):
        os._exit(1)


def run_as_child(name: str, work: Callable[[], None]) -> NoReturn:
    """Do the work of a process that has installed its signal handlers, and exit: 0, or 1 with an error file."""
    set_name(f"leyden-{name}")
    error_files = ErrorFiles.of_agent()
    error_files.publish_heartbeat(name)
    error_files.mark_ready(name)
    spare = os.open(os.devnull, os.O_RDONLY)
    try:
        work()
    except Exception as error:
        os.close(spare)  # there may be no other descriptor for the error file
        # before the exit: its peers fail as soon as this process's sockets close, and the earliest record is the cause
        error_files.write_error(name, error)
        exit_at_once(1)
    # as above: peers see closed sockets now, and no thread of gloo's can abort the interpreter's slow shutdown
    exit_at_once(0)
