"""Whether all nodes see the run folder that node 0 writes to: a word left in it must be found there by everybody."""

import contextlib
import os
import secrets
import time
from pathlib import Path

from ..errors import Problem

_APPEARS_WITHIN_S = 5.0
"""A network file system answers at once for a name that it was never asked for; this is for slow ones."""
_LOOK_AGAIN_S = 0.1


def leave_word(run_dir: Path) -> str:
    """Write the word that the others are to find. Returns it."""
    word = secrets.token_hex(8)
    _file(run_dir, word).write_text(word)
    return word


def problem(run_dir: Path, word: str) -> Problem | None:
    """What is wrong with the run folder on this node."""
    shared = "a folder that all nodes share: hydra.run.dir=FOLDER on NFS, Lustre or the like"
    if not _appears(run_dir, word):
        text = f"this is not the folder that node 0 writes to: {run_dir} holds another run, or lies on a local disk"
        return Problem("run folder", text, remedy=shared)
    own = _file(run_dir, f"{word}-{os.environ['GROUP_RANK']}")
    try:
        own.write_text(word)
        own.unlink()
    except OSError as error:
        text = f"{run_dir} cannot be written: {error.strerror or error}"
        return Problem("run folder", text, remedy=f"a user who may write there on all nodes, or {shared}")
    return None


def forget(run_dir: Path, word: str, rank: int) -> None:
    """Remove what was written. Only once all have looked."""
    if rank == 0:
        with contextlib.suppress(OSError):
            _file(run_dir, word).unlink()


def _appears(run_dir: Path, word: str) -> bool:
    end = time.monotonic() + _APPEARS_WITHIN_S
    while True:
        if _file(run_dir, word).exists():
            return True
        if time.monotonic() > end:
            return False
        time.sleep(_LOOK_AGAIN_S)


def _file(run_dir: Path, word: str) -> Path:
    return run_dir / f".preflight-{word}"
