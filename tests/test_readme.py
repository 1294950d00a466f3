"""Every command that the README shows works as it stands there, cut short."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CIFAR = ROOT.parent / "shared" / "data" / "cifar10.zip"
SHORT = [
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=2",
    "trainer.limit_val_batches=1",
    "trainer.limit_test_batches=1",
]
"""Appended to what trains."""

README = (ROOT / "README.md").read_text()
SECTIONS = ("## Use", "## Strategies", "### Many models at once")
BLOCKS = [README.split(title)[1].split("```sh")[1].split("```")[0] for title in SECTIONS]
LINES = [line for block in BLOCKS for line in block.splitlines() if line.startswith("leyden") and "SWEEP" not in line]
COMMANDS = [line.split("#")[0].strip() for line in LINES]


def leyden(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "leyden.trainer", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run called RUN, which can be resumed, and a user's own model, as the README has them."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "MYCONF" / "model").mkdir(parents=True)
    (folder / "MYCONF" / "model" / "mine.yaml").write_text("_target_: my_models.Mine\nwidth: 32\n")
    (folder / "MYCONF" / "my_models.py").write_text(
        "import math, torch\n"
        "class Mine(torch.nn.Sequential):\n"
        "    def __init__(self, classes, image_shape, width):\n"
        "        super().__init__(torch.nn.Flatten(), torch.nn.Linear(math.prod(image_shape), width),\n"
        "                         torch.nn.ReLU(), torch.nn.Linear(width, classes))\n"
    )
    done = leyden(["hydra.run.dir=RUN", "model=mlp", *SHORT], folder)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = folder / "RUN" / "summary.json"
    summary.write_text(summary.read_text().replace('"status": "done"', '"status": "preempted"'))
    return folder


def test_the_readme_has_commands() -> None:
    assert len(COMMANDS) >= 17


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_command(command: str, place: Path) -> None:
    arguments = shlex.split(command.split(">")[0])[1:]
    if "dataset.root=PATH" in arguments and not CIFAR.exists():
        pytest.skip("no CIFAR-10 here")
    arguments = [argument.replace("PATH", str(CIFAR)) for argument in arguments]
    trains = not {"eval", "resume", "schema", "--cfg", "--info"} & set(arguments)
    done = leyden([*arguments, *(SHORT if trains else [])], place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr
    if "-m" in arguments:
        sweep = max(place.glob("outputs/*/*-sweep"), key=lambda folder: folder.stat().st_mtime)
        trials = 9 if "hydra/launcher=pipeline" in arguments else 4
        assert len(list(sweep.glob("[0-9]/config.yaml"))) == trials
    if "--config-dir" in arguments:
        assert "model=mine" in done.stdout


def test_the_mistake_that_it_shows(place: Path) -> None:
    shown = README.split("### Mistakes")[1].split("###")[0]
    block = [line[4:] for line in shown.splitlines() if line.startswith("    ")]
    assert block[0].startswith("$ leyden ")
    done = leyden(shlex.split(block[0])[2:], place)
    assert done.returncode == 2
    assert done.stderr.split() == " ".join(block[1:]).split()


def test_every_yaml_key_that_it_names_exists() -> None:
    from leyden.trainer.validation import schema_keys

    named = set(re.findall(r"`(trainer\.\w+)=", README))
    assert named
    assert named <= set(schema_keys())
