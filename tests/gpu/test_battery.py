"""The GPU battery's checks of one process, as tests: `pytest -m gpu`, on a machine with a CUDA device."""

from collections.abc import Callable
from pathlib import Path

import gpu_1_correctness
import pytest
import torch
from gpu_battery import Outcome, Skipped

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize(("name", "check"), gpu_1_correctness.checks("cuda", rehearse=False).items())
def test_one_process(name: str, check: Callable[[], Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(gpu_1_correctness.__file__).parent)
    try:
        outcome = check()
    except Skipped as reason:
        pytest.skip(str(reason))
    assert outcome.ok is not False, (name, outcome)
