"""Memory of a pipeline's trials: the next trial gets that of one that has failed."""

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
import torch
from machines import topology_config
from torch import nn

from leyden.trainer.base.signals import StopRequest
from leyden.trainer.hopping.worker import HoppingWorker


class Holder:
    """A model in a reference cycle, as task and trainer are."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.self: Self = self


class FailingWorker(HoppingWorker):
    """A worker without a coordinator, one of whose trials fails while another error is handled."""

    def __init__(self, run_dir: Path, failure: Callable[[], Exception]):
        self.rank, self.workers, self.folders, self.storage = 0, 1, {0: run_dir}, run_dir
        self.stop_request = StopRequest()
        self.configs = {0: topology_config()}
        self.failure = failure
        self.sent: list[Any] = []
        self.coordinator: Any = SimpleNamespace(send=self.sent.append)
        self.log_forwarder: Any = SimpleNamespace(drain=list)
        self.model: weakref.ref[nn.Module] | None = None

    def _train(self, order: Any, config: Any, run_dir: Path) -> None:
        model = nn.Linear(2, 2)
        self.model = weakref.ref(model)
        holder = Holder(model)
        try:
            holder.model(torch.ones(3))
        except RuntimeError as error:
            raise self.failure() from error


def order() -> Any:
    return SimpleNamespace(incoming=None, request=SimpleNamespace(trial=0, number=7))


@pytest.mark.parametrize("failure", ["a chained error", "out of memory"])
def test_a_failed_trial_gives_its_memory_back(
    tmp_path: Path, failure: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total of 80 GiB. Tip."
    errors: dict[str, Callable[[], Exception]] = {
        "a chained error": lambda: ValueError("wrong"), "out of memory": lambda: torch.OutOfMemoryError(full),
    }  # fmt: skip
    worker = FailingWorker(tmp_path, errors[failure])
    there: list[bool] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def emptied() -> None:
        assert worker.model is not None
        there.append(worker.model() is not None)

    monkeypatch.setattr(torch.cuda, "empty_cache", emptied)
    worker._execute(order())
    assert there == [False], "what still refers to the model is kept out of the device's free memory"
    assert [message.number for message in worker.sent] == [7]
    said = capsys.readouterr().err
    if failure == "out of memory":
        assert "out of memory in step" in said
        assert "trainer.accumulate_grad_batches=2" in said
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "failed"
