"""Traceback of the exception that ends a process: all of it in run.log, the user's frames on the screen."""

import traceback
from pathlib import Path
from sysconfig import get_path

from .errors import Explained
from .log import write_to_run_log

_OURS = [Path(__file__).parents[1], *(Path(__file__).parents[2] / folder for folder in ("models", "datasets"))]


def log_traceback(error: Exception) -> str:
    """Write the whole traceback to run.log. Returns that of the screen, whole where it has no other place.

    An explained failure has none: its message says it all.
    """
    if isinstance(error, Explained):
        return ""
    whole = "".join(traceback.format_exception(error))
    return users_traceback(error) if write_to_run_log(whole) else whole


def users_traceback(error: BaseException) -> str:
    """The traceback with the user's frames alone; whole where it has none of them."""
    described = traceback.TracebackException.from_exception(error)
    chain = list(_chain(described))
    if not any(_is_users(frame.filename) for part in chain for frame in part.stack):
        return "".join(described.format())
    for part in chain:
        part.stack = traceback.StackSummary.from_list([f for f in part.stack if _is_users(f.filename)])
    return "".join(described.format())


def _chain(part: traceback.TracebackException | None) -> list[traceback.TracebackException]:
    """An exception with its causes."""
    return [] if part is None else [part, *_chain(part.__cause__), *_chain(part.__context__)]


def _is_users(filename: str) -> bool:
    """Whether a file is neither Leyden's, nor an installed package's, nor Python's own."""
    path = Path(filename)
    packed = {"site-packages", "dist-packages"} & set(path.parts) or filename.startswith("<")
    return not packed and not any(path.is_relative_to(folder) for folder in (*_OURS, get_path("stdlib")))
