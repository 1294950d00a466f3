"""What test_ddp_compression.py puts into real runs: callbacks that look inside, networks with unused layers."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from traffic_examples import traffic_of_run


class Witness:
    """Writes what each worker has in the end: `witness0.json` and so on, in the run's folder."""

    def on_fit_end(self, state: Any) -> None:
        seen = {
            "weights": [hashlib.sha256(_bytes(p)).hexdigest() for p in state.task.parameters()],
            "traffic": [asdict(transfer) for transfer in traffic_of_run(state)] if state.config.model else [],
            "messages": state.contract.ledger.messages,
            "bucket_bytes_cap": state.module._forward_module.bucket_bytes_cap,
            "static_graph": state.module._forward_module.static_graph,
            "gradient_as_bucket_view": state.module._forward_module.gradient_as_bucket_view,
            "find_unused_parameters": state.module._forward_module.find_unused_parameters,
        }
        (state.run_dir / f"witness{state.fabric.global_rank}.json").write_text(json.dumps(seen))


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()


class Feedback:
    """Sums what workers computed and what was applied; `feedback.json` has how far the two are apart."""

    def on_fit_start(self, state: Any) -> None:
        self.powersgd = state.fabric.strategy._low_rank.powersgd
        self.computed: dict[str, Tensor] = {}
        self.applied: dict[str, Tensor] = {}
        average = self.powersgd.average

        def recorded(gradients: Mapping[str, Tensor], mean: Callable[[Tensor], None]) -> None:
            _add(self.computed, gradients)
            average(gradients, mean)
            _add(self.applied, gradients)

        self.powersgd.average = recorded

    def on_fit_end(self, state: Any) -> None:
        apart: dict[str, float] = {}
        owed: dict[str, float] = {}
        for name, computed in self.computed.items():
            error = self.powersgd.errors.get(name, torch.zeros_like(computed)).reshape(computed.shape).clone()
            for tensor in (error, computed):
                dist.all_reduce(tensor)
                tensor /= dist.get_world_size()
            apart[name] = float((self.applied[name] + error - computed).norm() / computed.norm())
            owed[name] = float(error.norm() / computed.norm())
        if dist.get_rank() == 0:
            (state.run_dir / "feedback.json").write_text(json.dumps({"apart": apart, "owed": owed}))


def _add(sums: dict[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
    for name, gradient in gradients.items():
        sums[name] = sums[name] + gradient if name in sums else gradient.clone()


class WithUnused(nn.Module):
    """Two layers, of which only one is used.

    Args:
        alternating: the other one is used in the second half of the steps.
    """

    def __init__(self, classes: int, image_shape: Sequence[int], alternating: bool = False, steps: int = 4):
        super().__init__()
        self.used = nn.Linear(prod(image_shape), classes)
        self.spare = nn.Linear(prod(image_shape), classes)
        self.alternating = alternating
        self.steps = steps
        self.calls = 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += self.training
        layer = self.spare if self.alternating and self.calls > self.steps // 2 else self.used
        return layer(images.flatten(1))


class Steep(LightningModule):
    """One parameter, whose gradient is 2 ** 15 on every worker."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.bias * 2.0**15
