"""Networks whose compiled graphs are interpreted, for which no C++ compiler is started."""

from pathlib import Path
from typing import Any

from torch import nn

from leyden.models.mlp import MLP
from leyden.models.vgg import VGG


class Interpreted(nn.Module):
    """Base class. `noted`: a file that is made when the network is compiled."""

    def __init__(self, classes: int, image_shape: tuple[int, ...], noted: str, **options: Any) -> None:
        super().__init__(classes, image_shape, **options)
        self._noted = Path(noted)

    def compile(self, **options: Any) -> None:
        super().compile(backend="aot_eager", **options)
        self._noted.touch()


class InterpretedMLP(Interpreted, MLP):
    pass


class InterpretedVGG(Interpreted, VGG):
    pass
