"""What tests of strategy=hybrid hand to the workers."""

import json
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from traffic_examples import traffic_of_run

from leyden.trainer.core.state import RunState


class Probe:
    """Callback: writes what the strategy says it sends, and how many messages a step the ledger has counted."""

    def __init__(self) -> None:
        self.at_first: tuple[int, int] | None = None

    def on_step_end(self, state: RunState) -> None:
        ledger = state.contract.ledger
        assert ledger is not None
        now = (state.step, ledger.messages)
        if self.at_first is None:
            self.at_first = now
        elif state.fabric.is_global_zero:
            told: dict[str, Any] = {
                "messages": (now[1] - self.at_first[1]) / (now[0] - self.at_first[0]),
                "traffic": [vars(transfer) for transfer in traffic_of_run(state)],
            }
            (state.run_dir / "probe.json").write_text(json.dumps(told))


class Normed(nn.Module):
    """Convolution and batch normalization; nested chains as head, with parameters around the divided ones."""

    def __init__(self, classes: int, image_shape: Sequence[int]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(image_shape[0], 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.pool = nn.AdaptiveAvgPool2d(3)
        self.head = nn.Sequential(
            nn.Flatten(), nn.LayerNorm(36), nn.Sequential(nn.Linear(36, 14, bias=False), nn.GELU()),
            nn.Linear(14, classes), nn.LayerNorm(classes),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.pool(self.norm(self.conv(images)).relu()))


class TwoHeads(nn.Module):
    """Two heads on one trunk, one of them a single Linear, and no trunk parameters below the second."""

    def __init__(self, classes: int, image_shape: Sequence[int]) -> None:
        super().__init__()
        channels, height, width = image_shape
        self.conv = nn.Conv2d(channels, 4, 3, padding=1)
        self.first = nn.Sequential(nn.Flatten(), nn.Linear(4 * height * width, 9), nn.Tanh(), nn.Linear(9, classes))
        self.second = nn.Linear(channels * height * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.first(self.conv(images)) + self.second(images.flatten(1))


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self, classes: int, image_shape: Sequence[int]) -> None:
        super().__init__()
        channels, height, width = image_shape
        self.down = nn.Linear(channels * height * width, classes, bias=False)
        self.up = nn.Linear(channels * height * width, classes, bias=False)
        self.up.weight = self.down.weight

    def forward(self, images: Tensor) -> Tensor:
        return self.up(images.flatten(1)) + self.down(images.flatten(1))
