"""Versions of the software that made a result."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("leyden", "torch", "lightning", "hydra-core", "numpy")


def versions() -> dict[str, str]:
    """Versions of Python and the main packages, and the git revision if the code is in a checkout."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    revision = _git_revision()
    return {**found, "git": revision} if revision else found


def _git_revision() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
