"""Vision transformer.

Source: A. Dosovitskiy et al., An image is worth 16 x 16 words: transformers for image recognition at scale, ICLR 2021,
section 3.1, table 1 and appendix B.1. The small one: H. Touvron et al., Training data-efficient image transformers,
ICML 2021, table 1.
"""

import math
from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .drop_path import drop_paths

_EPSILON = 1e-6  # of LayerNorm, in the authors' code
_MLP_RATIO = 4  # hidden units of a block's MLP for each unit of width, in all variants of the paper


class ViT(nn.Module):
    """An image cut into patches, a class token before them, transformer blocks, and a linear layer on the class token.

    On 3 x 224 x 224 with patches of 16 and 1000 classes the base model (width 768, 12 heads) has 86,567,656 parameters,
    the small one (384, 6) 22,050,664. Initial weights are those of the authors' code: Glorot's uniform ones in the
    blocks, positions with standard deviation 0.02, class token and classifier zero.

    Args:
        classes: number of logits.
        image_shape: channels, height, width in pixels; 3 x 224 x 224 in the paper.
        patch: pixels a side of a patch.
        width: features of a patch inside the network.
        depth: number of blocks.
        heads: heads of each attention.
        dropout: probability, 0 <= dropout < 1, that a feature is dropped in training after every linear layer (except
            that of queries, keys and values) and after the positions are added.
        drop_path: probability, 0 <= drop_path < 1, that a sample skips attention, and that it skips the perceptron, of
            the last block in training; it falls linearly to 0 at the first (stochastic depth).

    Raises:
        ValueError: height or width is not a multiple of `patch`, `width` not one of `heads`, or `dropout` or
            `drop_path` is out of range.
    """

    def __init__(
        self,
        classes: int,
        image_shape: Sequence[int],
        patch: int = 16,
        width: int = 768,
        depth: int = 12,
        heads: int = 12,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        channels, height, columns = image_shape
        if patch < 1 or height % patch or columns % patch:
            raise ValueError(
                f"patch={patch} does not divide images of {height} x {columns} pixels; resize them to multiples of it "
                f"(it was published for 224 x 224 and patch=16) or set another patch"
            )
        if heads < 1 or width % heads:
            raise ValueError(f"width={width} is not a multiple of heads={heads}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout} must be at least 0 and less than 1")
        patches = (height // patch) * (columns // patch)
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 1 + patches, width))
        self.dropout = nn.Dropout(dropout)
        # one draw each for attention and perceptron
        dropped = zip(drop_paths(drop_path, depth), drop_paths(drop_path, depth), strict=True)
        self.blocks = nn.Sequential(*(_EncoderBlock(width, heads, dropout, *layers) for layers in dropped))
        self.norm = nn.LayerNorm(width, eps=_EPSILON)
        self.classifier = nn.Linear(width, classes)
        self._initialize()

    def forward(self, images: Tensor) -> Tensor:
        """Logits [N, classes] of images [N, C, H, W]."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(patches), -1, -1), patches], dim=1)
        tokens = self.blocks(self.dropout(tokens + self.positions))
        return self.classifier(self.norm(tokens[:, 0]))

    @staticmethod
    def public_names(names: Iterable[str]) -> dict[str, dict[str, str]]:
        """By layout of a public file: its name for each of these names."""
        names = list(names)
        return {
            layout: {name: _public_name(name, modules, block) for name in names}
            for layout, (block, modules) in _LAYOUTS.items()
        }

    def no_weight_decay(self) -> set[str]:
        """Parameters without weight decay, by the convention of timm's models."""
        return {"class_token", "positions"}

    def _initialize(self) -> None:
        self.apply(_initialize)
        nn.init.normal_(self.positions, std=0.02)
        nn.init.zeros_(self.classifier.weight)


_LAYOUTS: dict[str, tuple[str, dict[str, str]]] = {
    "timm": (
        "blocks.",
        {
            "patches.": "patch_embed.proj.", "class_token": "cls_token", "positions": "pos_embed", "norm.": "norm.",
            "classifier.": "head.", "norm1.": "norm1.", "norm2.": "norm2.", "attention.qkv.": "attn.qkv.",
            "attention.proj.": "attn.proj.", "mlp.0.": "mlp.fc1.", "mlp.3.": "mlp.fc2.",
        },
    ),
    "torchvision": (
        "encoder.layers.encoder_layer_",
        {
            "patches.": "conv_proj.", "class_token": "class_token", "positions": "encoder.pos_embedding",
            "norm.": "encoder.ln.", "classifier.": "heads.head.", "norm1.": "ln_1.", "norm2.": "ln_2.",
            "attention.qkv.": "self_attention.in_proj_", "attention.proj.": "self_attention.out_proj.",
            "mlp.0.": "mlp.0.", "mlp.3.": "mlp.3.",
        },
    ),
}  # fmt: skip
"""By layout: what the names of a block begin with, and the begin of a name there for that of one here."""


def _public_name(name: str, modules: dict[str, str], block: str) -> str:
    prefix, rest = "", name
    if name.startswith("blocks."):
        _, number, rest = name.split(".", 2)
        prefix = f"{block}{number}."
    begin = next(own for own in modules if rest.startswith(own))
    return prefix + modules[begin] + rest.removeprefix(begin)


class _EncoderBlock(nn.Module):
    """Attention and a perceptron, each after a LayerNorm and added to its input; [N, T, width] to the same."""

    def __init__(self, width: int, heads: int, dropout: float, drop_path1: nn.Module, drop_path2: nn.Module) -> None:
        super().__init__()
        self.drop_path1, self.drop_path2 = drop_path1, drop_path2
        self.norm1 = nn.LayerNorm(width, eps=_EPSILON)
        self.attention = _Attention(width, heads)
        self.dropout = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(width, eps=_EPSILON)
        self.mlp = nn.Sequential(
            nn.Linear(width, _MLP_RATIO * width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(_MLP_RATIO * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path1(self.dropout(self.attention(self.norm1(x))))
        return x + self.drop_path2(self.mlp(self.norm2(x)))


class _Attention(nn.Module):
    """Self-attention over all tokens; [N, T, width] to the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value)
        return self.proj(attended.transpose(1, 2).flatten(2))


def _initialize(module: nn.Module) -> None:
    """Glorot's initialization for linear layers, LeCun's for the patches; biases start at zero."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
    elif isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
    if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, _Attention):
        # Queries, keys and values are three square layers in one; initialized as one layer they would be too small.
        bound = math.sqrt(6 / (2 * module.proj.in_features))
        nn.init.uniform_(module.qkv.weight, -bound, bound)
