"""Callbacks that injure a run on purpose."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from leyden.trainer.components.callbacks.faults import RefuseHostWaits


def test_waits_are_refused_between_two_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    callback = RefuseHostWaits(after=2, until=4)
    for kind, expected in {"cpu": [], "cuda": ["error", "default"]}.items():
        for step in range(1, 6):
            state: Any = SimpleNamespace(step=step, fabric=SimpleNamespace(device=torch.device(kind)))
            callback.on_step_end(state)
        assert modes == expected
