"""Networks with one mistake each."""

from typing import Any

import torch
from torch import Tensor, nn


class Raises(nn.Module):
    def __init__(self, classes: int):
        super().__init__()
        self.missing = {}["no such key"]


class NoForward(nn.Module):
    def __init__(self, classes: int):
        super().__init__()
        self.layer = nn.Linear(3, classes)


class Lazy(nn.Module):
    def __init__(self, classes: int):
        super().__init__()
        self.layer = nn.LazyLinear(classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images.flatten(1))


class Fixed(nn.Module):
    """Takes images of 1 x 8 x 8 alone."""

    def __init__(self, classes: int):
        super().__init__()
        self.layer = nn.Linear(64, classes)

    def forward(self, images: Tensor) -> Any:
        return self.layer(images.flatten(1))


class Few(Fixed):
    def __init__(self, classes: int):
        super().__init__(3)


class Pair(Fixed):
    def forward(self, images: Tensor) -> Any:
        return super().forward(images), images


class Huge(nn.Module):
    """1.2e9 parameters: 4.9 GB; gives too few scores."""

    def __init__(self, classes: int):
        super().__init__()
        self.wide = nn.Linear(64, 16_000_000)
        self.narrow = nn.Linear(16_000_000, 9)

    def forward(self, images: Tensor) -> Tensor:
        return self.narrow(self.wide(images.flatten(1)))


class NeedsValues(Fixed):
    """Cannot be built or called without values, and is right."""

    def __init__(self, classes: int):
        super().__init__(classes)
        self.rates = torch.linspace(0, 1, 4).tolist()

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) * (1.0 if images.max().item() > -1e9 else 0.0)


class NeedsValuesAndRaises(NeedsValues):
    def __init__(self, classes: int):
        super().__init__(classes)
        raise KeyError("only a worker finds this")


def text(classes: int) -> str:
    return "no network"
