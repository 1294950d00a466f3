"""What Leyden keeps out of the imports of others, and that a user's own import gets the real thing."""

import subprocess
import sys

import pytest

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
