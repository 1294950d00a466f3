"""The wheel holds what the tree holds; it and an editable install are one package, started by `python -m leyden`."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from folders import ROOT

from leyden.trainer.cli.completion.index import lines

ISLANDS = ("conf", "trainer", "datasets", "models")


IN_ISOLATION = """
import runpy, site, sys
site.addsitedir(sys.argv[1])
import leyden
assert leyden.__version__ == "0.1.0"
assert "leyden.trainer" not in sys.modules, "import leyden is to cost nothing"
import leyden.conf, leyden.datasets, leyden.models, leyden.trainer
assert leyden.datasets.__file__ is None, "datasets/ is no package, so that it hides no other of that name"
import leyden.datasets.limits
try:
    import datasets
except ImportError:
    pass
else:
    raise AssertionError(f"{datasets} is importable without leyden")
sys.argv = ["leyden", "--help"]
runpy.run_module("leyden", run_name="__main__")
"""
"""Run without the site-packages of this environment, from a folder elsewhere."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree, with what is new in it."""
    copy = tmp_path_factory.mktemp("tree") / "source"
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
        elif (ROOT / name).is_symlink():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).symlink_to((ROOT / name).readlink())
    return copy


def assert_is_leyden(installed: Path) -> None:
    elsewhere = installed.parent / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-S", "-c", IN_ISOLATION, str(installed)],
        capture_output=True, text=True, check=False, cwd=elsewhere,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "resnet20" in done.stdout


@pytest.mark.slow
def test_the_wheel_is_the_tree(source: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)],
        check=True, capture_output=True,
    )  # fmt: skip
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
        wheel.extractall(tmp_path / "installed")
    tree = {
        f"leyden/{path.relative_to(source)}"
        for island in ISLANDS
        for path in (source / island).rglob("*")
        if path.suffix in (".py", ".yaml")
    }
    completion = {f"leyden/trainer/cli/completion/{name}" for name in ("candidates.sh", "function.bash", "function.zsh",
                                                                       "function.fish", "index.txt")}  # fmt: skip
    assert shipped == tree | completion | {f"leyden/{path.name}" for path in (source / "package").glob("*.py")}
    index = tmp_path / "installed/leyden/trainer/cli/completion/index.txt"
    assert index.read_text().splitlines() == list(lines())
    assert_is_leyden(tmp_path / "installed")


@pytest.mark.slow
def test_an_editable_install_is_the_same_package(source: Path, tmp_path: Path) -> None:
    build = "import sys; from setuptools.build_meta import build_editable; build_editable(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], check=True, capture_output=True, cwd=source)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        assert not [name for name in wheel.namelist() if name.startswith("leyden/")]
        wheel.extractall(tmp_path / "installed")
    assert_is_leyden(tmp_path / "installed")
    lint = "from importlinter.cli import lint_imports_command as c; c(['--no-logo', '--no-cache'])"
    start = f"import site; site.addsitedir({str(tmp_path / 'installed')!r}); {lint}"
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=False, cwd=source)
    assert done.returncode == 0, done.stdout + done.stderr
