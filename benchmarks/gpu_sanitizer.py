"""compute-sanitizer on a run: accesses outside memory, and uses of memory that was not written or freed."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gpu_battery import Outcome, Skipped

_TOOL = "compute-sanitizer"
_FOUND = 99
"""Exit code by which it reports errors."""


def sanitized(device: str, words: Sequence[str]) -> Outcome:
    """Whether `leyden WORDS`, of a few steps, accesses memory of the device as it may; 10 to 50 times slower."""
    tool = shutil.which(_TOOL) or shutil.which(_TOOL, path="/usr/local/cuda/bin")
    if device == "cpu" or tool is None:
        raise Skipped("the host has valgrind" if device == "cpu" else f"there is no {_TOOL} here")
    with tempfile.TemporaryDirectory() as folder:
        run = [sys.executable, "-P", "-m", "leyden", *words, f"hydra.run.dir='{Path(folder) / 'run'}'"]
        # torch keeps freed memory: without its cache each tensor has an allocation of its own, whose bounds are checked
        done = subprocess.run(
            [tool, "--tool=memcheck", f"--error-exitcode={_FOUND}", "--target-processes=all", *run],
            env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    errors = [line for line in done.stdout.splitlines() if line.startswith("=========") and "ERROR SUMMARY" not in line]
    if done.returncode not in (0, _FOUND):
        raise RuntimeError(f"exit code {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}")
    return Outcome(float(done.returncode == _FOUND), 0, " ".join(errors)[:500])
