"""Callbacks that look into the workers of a butterfly run, and models that are hard for it."""

import json
import signal
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from traffic_examples import traffic_of_run

from leyden.trainer.core.state import RunState
from leyden.trainer.core.traffic import Ledger
from leyden.trainer.core.transfers import Placement
from leyden.trainer.strategies.butterfly.halving_doubling import ButterflyAllReduce, ButterflySchedule, Order


def same_everywhere(tensors: list[Tensor]) -> bool:
    """Whether all workers hold the same bits."""
    mine = torch.cat([t.detach().reshape(-1).double() for t in tensors])
    all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_of_them, mine)
    return all(torch.equal(mine, other) for other in all_of_them)


class SameBits:
    """Raises where two workers end with different weights or optimizer states."""

    def on_fit_end(self, state: RunState) -> None:
        kept = [v for s in state.raw_optimizer.state.values() for v in s.values() if isinstance(v, Tensor)]
        assert kept
        assert same_everywhere([*state.task.parameters(), *kept])


class Averages:
    """The exchange alone, on vectors of odd sizes: equal to all_reduce, the same bits on all, counted."""

    def __init__(self, order: Order):
        self.order: Order = order

    def on_fit_start(self, state: RunState) -> None:
        rank, workers = dist.get_rank(), dist.get_world_size()
        strategy: Any = state.fabric.strategy
        placement = Placement(workers, strategy.num_processes)
        butterfly = ButterflySchedule(placement, self.order)
        exchange = ButterflyAllReduce(rank, butterfly, dist.new_group(timeout=timedelta(seconds=60)))
        for dtype, tolerance in ((torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 2e-2)):
            for size in (1, 2, 3, 5, 17, 1000, 1001):
                ledger = Ledger(rank, placement)
                mine = torch.randn(size, generator=torch.Generator().manual_seed(rank)).to(dtype)
                expected = mine.double().clone()
                dist.all_reduce(expected)
                exchange.count(mine, ledger)
                exchange.average(mine)
                assert same_everywhere([mine])
                assert torch.allclose(mine.double(), expected / workers, rtol=tolerance, atol=tolerance)
                counted = torch.tensor([ledger.bytes, ledger.inter_node_bytes, ledger.messages], dtype=torch.float64)
                dist.all_reduce(counted)
                sends = partial(butterfly.sends, [(size, mine.element_size())])
                formula = placement.transfer("gradients", "backward", sends)
                assert (counted / workers).tolist() == [formula.bytes, formula.inter_node_bytes, formula.messages]
                assert float(counted[0]) == 2 * (workers - 1) * size * mine.element_size()


_SUMMED = ("bytes", "inter_node_bytes", "messages")


class Traffic:
    """Writes what the strategy says it sends, and how it orders the pieces, into a file in the run's folder."""

    def on_fit_end(self, state: RunState) -> None:
        strategy: Any = state.fabric.strategy
        fronts = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(fronts, torch.tensor([strategy._comm.front]))
        if state.fabric.is_global_zero:
            transfers = traffic_of_run(state)
            values: dict[str, Any] = {name: sum(getattr(t, name) for t in transfers) for name in _SUMMED}
            values |= {"overlaps": transfers[0].overlaps, "pieces": sum(len(b.pieces) for b in strategy._buckets)}
            values["fronts"] = [int(front) for front in fronts]
            (state.run_dir / "traffic.json").write_text(json.dumps(values))


class Watch:
    """Notes the weights' sum as a callback sees it after each step."""

    def __init__(self, file: str):
        self.file = Path(file)
        self.sums: list[float] = []

    def on_fit_start(self, state: RunState) -> None:
        self._note(state)

    def on_step_end(self, state: RunState) -> None:
        self._note(state)

    def _note(self, state: RunState) -> None:
        self.sums.append(sum(float(p.detach().double().sum()) for p in state.task.parameters()))

    def on_fit_end(self, state: RunState) -> None:
        if state.fabric.is_global_zero:
            self.file.write_text(json.dumps(self.sums))


class Stop:
    """As a signal would, at another step on each worker."""

    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, state: RunState) -> None:
        if state.step == self.step + dist.get_rank():
            state.stop_request.signal = signal.SIGTERM


class Fails:
    """Raises in one worker."""

    def on_step_end(self, state: RunState) -> None:
        if state.step == 4 and dist.get_rank() == 1:
            raise RuntimeError("the eleventh hour")


class Awkward(nn.Module):
    """Reads weights where one would not look for them: attention's projection, a tied matrix, a plain Parameter."""

    def __init__(self, classes: int, image_shape: tuple[int, ...]):
        super().__init__()
        width = image_shape[-1]
        self.scale = nn.Parameter(torch.ones(width))
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.first = nn.Linear(width, width, bias=False)
        self.tied = nn.Linear(width, width, bias=False)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(width, width)
        self.frozen.requires_grad_(False)
        self.out = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        rows = images.mean(1) * self.scale
        attended, _ = self.attention(rows, rows, rows)
        hidden = torch.tanh(self.first(attended)) @ self.tied.weight.T
        return self.out(self.frozen(hidden).mean(1)) + 0.1 * self.out.weight.square().sum()


class Unused(nn.Module):
    """Holds a layer that no forward comes to."""

    def __init__(self, classes: int, image_shape: tuple[int, ...]):
        super().__init__()
        self.out = nn.Linear(image_shape[-1], classes)
        self.never = nn.Linear(3, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.out(images.mean((1, 2)))
