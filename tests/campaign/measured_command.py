"""Commands in processes of their own, with their output, CPU time and memory."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from folders import CAMPAIGN, MODULES, SUPPORT

_TIMEOUT_S = 120


@dataclass(frozen=True)
class Measured:
    """How a command has ended."""

    code: int
    """Minus the signal's number where one has ended it."""
    output: str
    cpu_s: float
    memory_mb: float
    """Largest resident set of it or of a child."""


class Runner(Protocol):
    """Runs `leyden WORDS`, or a hostile peer for `message NAME`, in a folder."""

    def __call__(self, words: Sequence[str], folder: Path) -> Measured: ...


def as_process(words: Sequence[str], folder: Path) -> Measured:
    """The real command in a new interpreter."""
    module = ["hostile_peer", *words[1:]] if words[0] == "message" else ["leyden", *words]
    given = os.environ.get("PYTHONPATH")
    paths = os.pathsep.join([*map(str, (CAMPAIGN, SUPPORT, MODULES)), *([given] if given else [])])
    with open(folder.parent / f"{folder.name}.output", "w+b") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", *module],
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,
        )
        measured = _waited(process.pid, output)
        process.returncode = measured.code
    return measured


def as_fork(words: Sequence[str], folder: Path) -> Measured:
    """The same call in a fork of this process, which has imported what the command needs, and computed nothing."""
    with open(folder.parent / f"{folder.name}.output", "w+b") as output:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.chdir(folder)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            os._exit(_called(words))
        return _waited(pid, output)


def _called(words: Sequence[str]) -> int:
    from leyden.trainer.cli.main import main

    code = 70
    try:
        if words[0] == "message":
            from hostile_peer import meet

            code = meet(words[1])
        else:
            code = main(list(words))
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return code


def _waited(pid: int, output: BinaryIO) -> Measured:
    end = time.monotonic() + _TIMEOUT_S
    while True:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            break
        if time.monotonic() > end:
            os.killpg(pid, signal.SIGKILL)
            end += _TIMEOUT_S
        time.sleep(0.005)
    output.seek(0)
    text = output.read().decode(errors="replace")
    return Measured(os.waitstatus_to_exitcode(status), text, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
