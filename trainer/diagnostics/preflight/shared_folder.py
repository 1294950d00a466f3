"""Check that all nodes share the run folder: every node must find a marker file written by node 0."""

import contextlib
import os
import secrets
import time
from pathlib import Path

from ...base.errors import Problem

_APPEARS_WITHIN_S = 5.0
"""Seconds to wait for the marker on slow network file systems."""
_LOOK_AGAIN_S = 0.1


def write_marker(run_dir: Path) -> str:
    """Write the marker file. Returns the random part of its name: failed look-ups of a known name may be cached."""
    marker = secrets.token_hex(8)
    _file(run_dir, marker).write_text(marker)
    return marker


def problem(run_dir: Path, marker: str) -> Problem | None:
    """The problem of the run folder on this node, if any."""
    shared = "a folder that all nodes share: hydra.run.dir=FOLDER on NFS, Lustre or the like"
    if not _appears(run_dir, marker):
        text = f"this is not the folder that node 0 writes to: {run_dir} holds another run, or is on a local disk"
        return Problem("run folder", text, remedy=shared)
    own = _file(run_dir, f"{marker}-{os.environ['GROUP_RANK']}")
    try:
        own.write_text(marker)
        own.unlink()
    except OSError as error:
        text = f"{run_dir} cannot be written: {error.strerror or error}"
        return Problem("run folder", text, remedy=f"a user who may write there on all nodes, or {shared}")
    return None


def remove_marker(run_dir: Path, marker: str, rank: int) -> None:
    """Remove the marker files, after all nodes have searched for them."""
    if rank == 0:
        with contextlib.suppress(OSError):
            _file(run_dir, marker).unlink()


def _appears(run_dir: Path, marker: str) -> bool:
    end = time.monotonic() + _APPEARS_WITHIN_S
    while True:
        if _file(run_dir, marker).exists():
            return True
        if time.monotonic() > end:
            return False
        time.sleep(_LOOK_AGAIN_S)


def _file(run_dir: Path, marker: str) -> Path:
    return run_dir / f".preflight-{marker}"
