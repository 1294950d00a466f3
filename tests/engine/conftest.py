"""Graphs that torch.compile makes of a run."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn


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
