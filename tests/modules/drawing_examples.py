"""Networks and tasks that draw at random in every way that is no nn.Dropout."""

import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leyden.trainer.components.tasks.classification import Classification


class DropPath(nn.Module):
    """Signature and rule of timm.layers.drop.DropPath (timm 1.0, Apache 2.0), written anew."""

    def __init__(self, drop_prob: float = 0.0, scale_by_keep: bool = True):
        super().__init__()
        self.drop_prob = drop_prob
        self.scale_by_keep = scale_by_keep

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.drop_prob == 0.0:
            return x
        kept = x.new_empty((len(x), *[1] * (x.ndim - 1))).bernoulli_(1.0 - self.drop_prob)
        if self.scale_by_keep and self.drop_prob < 1.0:
            kept.div_(1.0 - self.drop_prob)
        return x * kept


class Block(nn.Module):
    """Attention and a residual branch that is dropped at times (as a block of timm's VisionTransformer)."""

    def __init__(self, width: int, dropout: float, attention_dropout: float):
        super().__init__()
        self.attn = nn.MultiheadAttention(width, 2, dropout=attention_dropout, batch_first=True)
        self.drop_path = DropPath(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop_path(self.attn(x, x, x, need_weights=False)[0])


class Attends(nn.Module):
    """Rows of an image as tokens; dropout of every kind that Leyden knows, and that of attention, which it does not."""

    def __init__(
        self, classes: int, image_shape: Any, width: int = 8, dropout: float = 0.3, attention_dropout: float = 0.0
    ):
        super().__init__()
        self.embed = nn.Linear(image_shape[2], width)
        self.block = Block(width, dropout, attention_dropout)
        self.alpha = nn.AlphaDropout(dropout)
        self.maps = nn.FeatureAlphaDropout(dropout)
        self.classify = nn.Linear(image_shape[1] * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.maps(self.alpha(self.block(self.embed(images[:, 0]))))
        return self.classify(x.flatten(1))


class Noise(nn.Module):
    """Draws by itself, from one generator of the process."""

    def __init__(self, source: str):
        super().__init__()
        self.source = source

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        if self.source == "torch":
            return F.dropout(x, 0.3)
        scale = random.random() if self.source == "python" else np.random.random()
        return x * (0.5 + scale)


class Draws(nn.Module):
    """A network whose layers draw by themselves, as users write them."""

    def __init__(self, classes: int, image_shape: Any, sources: Any = ("torch", "python", "numpy")):
        super().__init__()
        pixels = image_shape[1] * image_shape[2]
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(pixels, 8), *(Noise(source) for source in sources))
        self.dropout = nn.Dropout(0.2)
        self.classify = nn.Linear(8, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.classify(self.dropout(self.layers(images)))


class DrawsInEvaluation(Classification):
    """Its validation moves every generator."""

    def validation_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        _ = (torch.rand(1), random.random(), np.random.random())
        return super().validation_step(batch, batch_idx)


class DrawsInTraining(Classification):
    """Mixes images in training_step, as mixup does."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        images, labels = batch
        return super().training_step((images * torch.rand(()), labels), batch_idx)
