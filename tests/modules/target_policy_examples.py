"""What a config may and may not name: classes and functions of a user's, and other names of what runs code."""

import os
import os as system_of  # a module under another name
from collections import OrderedDict
from functools import partial
from os import environ
from os import system as shell
from typing import Any

import torch
from torch import Tensor, nn

OTHERS = OrderedDict
touch = partial(os.system, "touch canary")
small = partial(nn.Linear, 64)
__all__ = ["Net", "environ", "shell", "system_of"]


class Tools:
    run = staticmethod(os.system)
    inner = os


class Net(nn.Module):
    """A linear network that takes any further argument."""

    def __init__(self, classes: int, image_shape: Any, **others: Any):
        super().__init__()
        self.others = others
        self.layer = nn.Linear(int(torch.tensor(image_shape).prod()), classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images.flatten(1))

    @classmethod
    def made(cls, classes: int, image_shape: Any) -> "Net":
        return cls(classes, image_shape)


class Family:
    Inner = Net


def network(classes: int, image_shape: Any, layer: Any = None, **others: Any) -> nn.Module:
    return Net(classes, image_shape, **others)


anonymous = lambda classes, image_shape: Net(classes, image_shape)  # noqa: E731
ready = partial(network, width=3)


def text(*_: Any, **others: Any) -> str:
    return "no object of any group"


def no_task(model: nn.Module) -> nn.Module:
    return model


def no_dataset(split: str) -> list[int]:
    return [1, 2, 3]


def optimizer(params: Any, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr)


def schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.ConstantLR(optimizer)
