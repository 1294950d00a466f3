"""What Leyden keeps out of the imports of others, and that a user's own import gets the real thing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FIRST = {
    "torchmetrics": "import torchmetrics",
    "Lightning": "import lightning.pytorch",
    "Leyden's state": "import leyden.trainer.core.state",
}
AFTER = """
import sys
assert "torchmetrics" in sys.modules
assert "scipy.signal" not in sys.modules
import scipy
assert scipy.signal.butter(2, 0.5)
import scipy.signal, torchmetrics, torch
assert scipy.signal.find_peaks([0, 1, 0])[0].tolist() == [1]
assert torchmetrics.AUROC(task="binary")(torch.tensor([0.1, 0.9]), torch.tensor([0, 1])) == 1
assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("leyden.")]
"""


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.thinned(3)
@pytest.mark.parametrize("first", FIRST)
def test_torchmetrics_is_imported_without_scipys_signal(first: str) -> None:
    run(f"import leyden.trainer\n{FIRST[first]}\n{AFTER}")


@pytest.mark.slow
def test_an_earlier_import_of_the_users_is_left_alone() -> None:
    run("import scipy.signal as mine, leyden.trainer, torchmetrics, sys\nassert sys.modules['scipy.signal'] is mine")


BROKEN = """
import sys
import leyden.trainer
import lightning.pytorch, torchmetrics, torch
assert torchmetrics.Accuracy(task="binary")(torch.tensor([0.1, 0.9]), torch.tensor([0, 1])) == 1
from lightning_utilities.core.imports import RequirementCache
assert RequirementCache("torchvision")
from leyden.models.timm_model import TimmModel
try:
    TimmModel(2, (3, 32, 32), "resnet18")
except ValueError as error:
    print(error)
"""


def test_a_torchvision_for_another_torch_is_one_sentence_where_it_is_needed(tmp_path: Path) -> None:
    """What pip makes of `timm` beside a torch that it does not replace."""
    for name, code in (("torchvision", "raise RuntimeError('operator torchvision::nms does not exist')"),
                       ("timm", "import torchvision")):  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(code)
    (tmp_path / "torchvision-0.28.0.dist-info").mkdir()
    (tmp_path / "torchvision-0.28.0.dist-info/METADATA").write_text("Name: torchvision\nVersion: 0.28.0\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "needs a torchvision that was built for torch" in done.stdout
    assert f"pip install --upgrade torchvision torch=={torch.__version__}" in done.stdout
