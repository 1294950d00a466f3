"""NCCL's flight recorder: each worker's last collectives, written next to the stacks when the run hangs.

torch's watchdog writes them when a collective passes `strategy.timeout_s`, and when it is asked through a pipe. The
buffer's size is among the variables of `hardware.comm_env`.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_FILE = "TORCH_FR_DUMP_TEMP_FILE"
_EARLIER_FILE = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
"""The name before torch 2.9, which is still read; the new one goes before it."""


def recorder_environment(dumps: Path, folder: Path, user_environment: Mapping[str, str]) -> dict[str, str]:
    """Variables for workers that communicate by NCCL, without those that the user has set.

    Args:
        dumps: folder of the dumps.
        folder: of the worker group, on this machine: not every shared file system has pipes.
    """
    wanted = {_PIPE: folder / "nccl-"}
    if _EARLIER_FILE not in user_environment:
        wanted[_FILE] = dumps / "nccl_rank_"
    return {name: str(path) for name, path in wanted.items() if name not in user_environment}


def remove_empty_folder(dumps: Path) -> None:
    with suppress(OSError):
        dumps.rmdir()


def request_dump(folder: Path, rank: int) -> None:
    """Ask a worker's watchdog thread for a dump; it looks once a second, also where its main thread hangs."""
    with suppress(OSError):  # no pipe: it has not begun to communicate; no reader: it has ended
        pipe = os.open(folder / f"nccl-{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(pipe, b"1\n")
        finally:
            os.close(pipe)
