"""A callback that looks into a run whose workers run ahead."""

import json
from typing import Any

import torch

from leyden.trainer.state import RunState
from leyden.trainer.strategies.live import Live
from leyden.trainer.strategies.virtual import Virtual


class Traffic:
    """Writes what the strategy says it sends into a file in the run's folder."""

    def on_fit_end(self, state: RunState) -> None:
        if state.fabric.is_global_zero:
            told = [vars(transfer) for transfer in state.contract.traffic()]
            (state.run_dir / "traffic.json").write_text(json.dumps(told))


class FirstFetch:
    """Writes what the first fetch of any worker but worker 0 got (flat) into a file in the run's folder."""

    def on_fit_start(self, state: RunState) -> None:
        here: Any = state.fabric.strategy.here  # pyright: ignore[reportAttributeAccessIssue]
        path = state.run_dir / "first_fetch.pt"
        holder: Any = here.link if isinstance(here, Live) else here.simulation.piece
        pull = holder.pull

        def noted(*worker: int) -> torch.Tensor:
            values = pull(*worker)
            number = worker[0] if isinstance(here, Virtual) else here.number
            if number != 0 and not path.exists():
                torch.save(values.clone(), path)
            return values

        holder.pull = noted
