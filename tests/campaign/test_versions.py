"""Other versions of Python and torch.

LEYDEN_PYTHONS=/opt/python3.12/bin/python:/opt/python3.13/bin/python pytest -m campaign tests/campaign/test_versions.py
LEYDEN_OLDEST_TORCH=torch-2.11.0-cp312-cp312-macosx_11_0_arm64.whl pytest -m campaign tests/campaign/test_versions.py

Other Pythons: the package compiles, and what needs no torch does what it does here. The oldest torch that is accepted:
its names and arguments are read from a wheel, of any platform, as nothing of it is imported:
pip download --no-deps --only-binary=:all: --python-version 3.12 --platform macosx_11_0_arm64 torch==2.11.0
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from functools import cache
from pathlib import Path

import pytest
from folders import CAMPAIGN, MODULES, ROOT, SUPPORT

DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
OLDEST_TORCH = os.environ.get("LEYDEN_OLDEST_TORCH", "")
PYTHONS = [python for python in os.environ.get("LEYDEN_PYTHONS", "").split(":") if python]
_LEFT_OUT = shutil.ignore_patterns(".*", "outputs", "build", "__pycache__", "*.egg-info")
"""Of a copy of the sources, beside which other tests run."""
WITHOUT_TORCH = ("hydra-core", "omegaconf", "pyyaml", "pydantic", "psutil", "rich", "typing-extensions")
COMMANDS = {
    "--help": 0,
    "train --help": 0,
    "--cfg job model=lenet5": 0,
    "--cfg job experiment=resnet50_imagenet dataset.root=x strategy=ddp topology=slurm topology.nodes=2": 0,
    "schema": 0,
    "status .": 0,
    "model=resnet21": 2,
    "batch_size=7x": 2,
    "optimizer.lr=[1": 2,
    "trainer.max_epoch=2": 2,
    "dataset.root=${oc.env:HOME}/x --cfg job --resolve": 0,
}


def run(python: Path, words: str, folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        [python, "-P", "-m", "leyden", *words.split(" ")], cwd=folder, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package's wheel, which is the same for every Python."""
    folder = tmp_path_factory.mktemp("wheel")
    source = shutil.copytree(ROOT, folder / "source", ignore=_LEFT_OUT)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, source]
    subprocess.run(build, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(params=PYTHONS)
def installed(request: pytest.FixtureRequest, tmp_path: Path, wheel: Path) -> Path:
    """Python of an environment that has the wheel, and of its dependencies those that are not built on torch."""
    wanted = [each for each in DECLARED if each.startswith(WITHOUT_TORCH)]
    assert len(wanted) == len(WITHOUT_TORCH)
    subprocess.run([request.param, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    # its own: the pip of an older Python may not know this one
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", ROOT / "constraints.txt", *wanted], check=True)
    subprocess.run([*pip, "--no-deps", wheel], check=True)
    return python


@cache
def here(words: str, folder: Path) -> tuple[int, str]:
    return run(Path(sys.executable), words, folder)


@pytest.mark.campaign
@pytest.mark.skipif(not PYTHONS, reason="LEYDEN_PYTHONS names no other Python")
def test_it_compiles_and_composes_as_here(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    empty = tmp_path_factory.getbasetemp() / "empty"
    empty.mkdir(exist_ok=True)
    folder = subprocess.run(
        [installed, "-P", "-c", "import leyden; print(leyden.__path__[0])"], check=True, capture_output=True, text=True
    ).stdout.strip()
    subprocess.run([installed, "-W", "error", "-m", "compileall", "-q", "-f", folder], check=True)
    code, text = run(installed, "--version", empty)
    assert code == 0
    assert "and no torch" in text
    for words, expected in COMMANDS.items():
        code, text = run(installed, words, empty)
        assert code == expected, text
        own_code, own_text = here(words, empty)
        assert (code, text.replace(folder, "leyden")) == (own_code, own_text.replace(str(ROOT), "leyden")), words


@pytest.mark.campaign
@pytest.mark.skipif(not OLDEST_TORCH, reason="LEYDEN_OLDEST_TORCH names no wheel")
def test_the_oldest_torch_has_every_name_and_argument(tmp_path: Path) -> None:
    oldest = next(each.removeprefix("torch>=") for each in DECLARED if each.startswith("torch>="))
    assert Path(OLDEST_TORCH).name.startswith(f"torch-{oldest}.0-")
    with zipfile.ZipFile(OLDEST_TORCH) as wheel:
        sources = [name for name in wheel.namelist() if name.endswith((".py", ".pyi", "py.typed"))]
        wheel.extractall(tmp_path / "oldest", sources)
    for folder in ("conf", "trainer", "datasets", "models"):
        shutil.copytree(ROOT / folder, tmp_path / "leyden" / folder)
    shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks")
    (tmp_path / "unknown.py").write_text("import torch\n\ntorch.of_no_version()\n")
    config = {
        "include": ["leyden", "benchmarks", "unknown.py"],
        "extraPaths": ["oldest", ".", "benchmarks", *map(str, (SUPPORT, MODULES, CAMPAIGN))],
        "typeCheckingMode": "standard",
        "reportPrivateImportUsage": False,
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "-p", tmp_path]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    errors = [f"{each['file']}: {each['message']}" for each in found["generalDiagnostics"]]
    assert errors == [f'{tmp_path / "unknown.py"}: "of_no_version" is not a known attribute of module "torch"']
