"""Lookahead that keeps the weights that it finds."""

import torch
from typing_extensions import override

from leyden.trainer.components.callbacks.lookahead import Lookahead
from leyden.trainer.core.state import RunState


class Noting(Lookahead):
    """Keeps the weights that it finds at the start and after each step."""

    @override
    def on_fit_start(self, state: RunState) -> None:
        super().on_fit_start(state)
        _note(state)

    @override
    def on_step_end(self, state: RunState) -> None:
        _note(state)
        super().on_step_end(state)


def _note(state: RunState) -> None:
    weights = {name: w.detach().clone() for name, w in state.task.named_parameters()}
    torch.save(weights, state.run_dir / f"found-{state.step}.pt")
