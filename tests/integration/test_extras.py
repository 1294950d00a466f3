"""The documented command for each extra keeps the torch that is installed: pip says what it would install."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from folders import ROOT

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TORCHS_INDEX = ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]
NEEDS_VISION = {"timm": TORCHS_INDEX}
OWN = {"test", "bench", "docs", "trackio"}
"""Of developers, and one that docs/training.md names as going without constraints."""


def test_the_documented_command_of_what_needs_torchvision_names_torchs_index() -> None:
    for extra, index in NEEDS_VISION.items():
        (command,) = re.findall(rf"^pip install .*leyden\[{extra}\].*$", (ROOT / "docs/concepts.md").read_text(), re.M)
        assert command.split()[2:] == ["-c", "constraints.txt", f"'leyden[{extra}]'", *index]


@pytest.mark.slow
@pytest.mark.parametrize(
    "extras",
    [sorted(EXTRAS.keys() - OWN - NEEDS_VISION.keys()), pytest.param(["timm"], marks=pytest.mark.campaign)],
    ids=lambda extras: "+".join(extras),
)
def test_no_extra_replaces_the_installed_torch(extras: list[str], tmp_path: Path) -> None:
    pytest.importorskip("pip")
    packages = [package for extra in extras for package in EXTRAS[extra]]
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "-q", "--report", str(tmp_path / "report.json"),
               "-c", str(ROOT / "constraints.txt"), "torch", *packages,
               *(word for extra in extras for word in NEEDS_VISION.get(extra, []))]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    if done.returncode:
        pytest.skip(f"no index is reached: {done.stderr.strip()[-200:]}")
    installed = [each["metadata"]["name"] for each in json.loads((tmp_path / "report.json").read_text())["install"]]
    assert "torch" not in installed
    assert ("torchvision" in installed) <= (set(extras) <= NEEDS_VISION.keys())
