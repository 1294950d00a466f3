"""Processes that take cores from what is measured or tested."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def taken_cores(count: int) -> Generator[None, None, None]:
    """Other processes that compute meanwhile, each on a core of its own where there are enough."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"], process_group=0) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()
