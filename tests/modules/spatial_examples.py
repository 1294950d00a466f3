"""What the configs of test_spatial.py name: images that start a measurement of memory, and a callback that ends it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from traffic_examples import traffic_of_run

from leyden.datasets.synthetic import Synthetic
from leyden.models.local_net import LocalNet


def _status(name: str) -> int:
    """A size of this process in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


class StemNet(LocalNet):
    """A convolution that every worker computes, before the part that is tiled."""

    def __init__(self, classes: int, image_shape: tuple[int, int, int], seed: int = 0):
        super().__init__(classes, (2, *image_shape[1:]), seed, maps=[3], rf=4)
        self.stem = nn.Conv2d(image_shape[0], 2, 3, padding=1)
        self.initialize()

    def initialize(self) -> None:
        super().initialize()
        if hasattr(self, "stem") and not self.stem.weight.is_meta:
            with torch.no_grad():
                for number, parameter in enumerate(self.stem.parameters()):
                    stream = torch.Generator().manual_seed(number)
                    parameter.copy_(torch.empty(parameter.shape).normal_(0.0, 0.3, generator=stream))

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(self.stem(images))


class MeasuredImages(Synthetic):
    """Built before the model: the peak of memory is counted from here."""

    before = 0

    def __init__(self, split: str, **settings: Any):
        super().__init__(split, **settings)
        Path("/proc/self/clear_refs").write_text("5")
        MeasuredImages.before = _status("VmRSS")


class Measure:
    """Writes memory-RANK.json: peak while building, and bytes of parameters, gradients and optimizer state."""

    def on_fit_start(self, state: Any) -> None:
        self.building = _status("VmHWM") - MeasuredImages.before

    def on_step_end(self, state: Any) -> None:
        held: list[torch.Tensor] = []
        for parameter in state.task.parameters():
            kept = state.raw_optimizer.state.get(parameter, {}).values()
            held += [parameter, parameter.grad, *(value for value in kept if isinstance(value, torch.Tensor))]
        sizes = {"building": self.building, "held": sum(t.nbytes for t in held if t is not None)}
        (state.run_dir / f"memory-{state.fabric.global_rank}.json").write_text(json.dumps(sizes))

    def on_fit_end(self, state: Any) -> None:
        if state.fabric.is_global_zero:
            transfers = [asdict(transfer) for transfer in traffic_of_run(state)]
            (state.run_dir / "traffic.json").write_text(json.dumps(transfers))
