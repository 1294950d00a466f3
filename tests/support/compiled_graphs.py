"""Graphs that torch.compile makes of a run."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

VIT = [
    "model=vit_small", "model.patch=4", "model.width=16", "model.depth=3", "model.heads=2", "model.dropout=0.1",
    "dataset.image_size=8", "trainer.max_epochs=2", "trainer.limit_train_batches=4", "optimizer.lr=0.1",
]  # fmt: skip
"""Ends each epoch with a batch that is not smaller."""


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that a run in this process compiles; they are interpreted."""
    found: list[Any] = []
    compiled = nn.Module.compile

    def counting(graph: Any, inputs: Any) -> Callable[..., Any]:
        found.append(graph)
        return graph.forward

    def compile_module(module: nn.Module, *, mode: str, **options: Any) -> None:
        compiled(module, backend=counting, **options)

    monkeypatch.setattr(nn.Module, "compile", compile_module)
    torch.compiler.reset()
    return found
