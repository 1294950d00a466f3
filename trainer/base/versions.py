"""Versions of the software that made a result."""

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

TESTED_PYTHON, TESTED_TORCH = "3.11", "2.13.0"
"""What CI runs the tests with."""
_PACKAGES = ("leyden", "torch", "lightning", "hydra-core", "numpy")


def versions() -> dict[str, str]:
    """Versions of Python and the main packages, and the git revision if the code is in a checkout."""
    return dict(_find_version())


@cache  # of the code that this process has loaded, whatever the checkout is later
def _find_version() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    revision = _git_revision()
    return {**found, "git": revision} if revision else found


def version_text() -> str:
    """What is installed here, and what is tested."""
    try:
        torch = f"torch {version('torch')}"
    except PackageNotFoundError:
        torch = "no torch"
    return (
        f"leyden {version('leyden')} with Python {platform.python_version()} and {torch}, on {platform.system()}\n"
        f"tested: Python {TESTED_PYTHON} with torch {TESTED_TORCH} on Linux; 3.12 and 3.13 in what needs no torch"
    )


def _git_revision() -> str | None:
    # without the environment's git config, which may name programs
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True, env=environment)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
