"""The wheel holds what the tree holds."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ISLANDS = ("conf", "trainer", "datasets", "models")


@pytest.mark.slow
def test_the_wheel_is_the_tree(tmp_path: Path) -> None:
    source = tmp_path / "source"
    subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], check=True, capture_output=True)
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)],
        check=True, capture_output=True,
    )  # fmt: skip
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    tree = {
        f"leyden/{path.relative_to(source)}"
        for island in ISLANDS
        for path in (source / island).rglob("*")
        if path.suffix in (".py", ".yaml")
    }
    assert shipped == tree
