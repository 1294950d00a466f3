"""State dicts in the layouts of torchvision and timm, and their networks as functions of them, written from the
libraries' definitions (torchvision 0.24, timm 1.0), which cannot be imported beside this torch."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = dict[str, Tensor]
BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}


class _Layout:
    def __init__(self, empty: bool):
        self.generator = torch.Generator().manual_seed(0)
        self.empty = empty
        self.weights: Weights = {}

    def add(self, name: str, *shape: int, scale: float | None = None) -> None:
        if self.empty:
            self.weights[name] = torch.empty(shape, device="meta")
            return
        inputs = max(1, int(torch.tensor(shape[1:]).prod())) if len(shape) > 1 else 1
        self.weights[name] = torch.randn(shape, generator=self.generator) * (scale or inputs**-0.5)

    def norm(self, name: str, maps: int) -> None:
        for own in ("weight", "bias", "running_mean"):
            self.add(f"{name}.{own}", maps, scale=0.1)
        self.add(f"{name}.running_var", maps)
        if not self.empty:
            self.weights[f"{name}.weight"] += 1
            self.weights[f"{name}.running_var"] = self.weights[f"{name}.running_var"].abs() + 0.5
        self.weights[f"{name}.num_batches_tracked"] = torch.tensor(7, device="meta" if self.empty else "cpu")

    def linear(self, name: str, outputs: int, inputs: int) -> None:
        self.add(f"{name}.weight", outputs, inputs)
        self.add(f"{name}.bias", outputs, scale=0.1)


def resnet(depth: int, classes: int = 1000, empty: bool = False) -> Weights:
    """torchvision.models.resnet*.state_dict(); timm's resnet* has the same names."""
    layout = _Layout(empty)
    layout.add("conv1.weight", 64, 3, 7, 7)
    layout.norm("bn1", 64)
    inputs = 64
    for stage, count in enumerate(BLOCKS[depth]):
        maps, outputs = 64 * 2**stage, 64 * 2**stage * (1 if depth < 50 else 4)
        for block in range(count):
            at = f"layer{stage + 1}.{block}"
            kernels = [(inputs, maps, 3), (maps, maps, 3)]
            if depth >= 50:
                kernels = [(inputs, maps, 1), (maps, maps, 3), (maps, outputs, 1)]
            for number, (of, to, size) in enumerate(kernels, start=1):
                layout.add(f"{at}.conv{number}.weight", to, of, size, size)
                layout.norm(f"{at}.bn{number}", to)
            if block == 0 and (stage > 0 or inputs != outputs):
                layout.add(f"{at}.downsample.0.weight", outputs, inputs, 1, 1)
                layout.norm(f"{at}.downsample.1", outputs)
            inputs = outputs
    layout.linear("fc", classes, inputs)
    return layout.weights


def resnet_logits(weights: Weights, images: Tensor, depth: int) -> Tensor:
    """torchvision's ResNet.forward in evaluation mode; strides are those of v1.5."""

    def norm(x: Tensor, name: str) -> Tensor:
        mean, variance, scale, shift = (
            weights[f"{name}.{key}"] for key in ("running_mean", "running_var", "weight", "bias")
        )
        return F.batch_norm(x, mean, variance, scale, shift)

    x = F.relu(norm(F.conv2d(images, weights["conv1.weight"], stride=2, padding=3), "bn1"))
    x = F.max_pool2d(x, 3, 2, 1)
    for stage, count in enumerate(BLOCKS[depth]):
        for block in range(count):
            at, stride = f"layer{stage + 1}.{block}", 2 if stage and not block else 1
            y, last, strided = x, 2 if depth < 50 else 3, 1 if depth < 50 else 2
            for number in range(1, last + 1):
                kernel = weights[f"{at}.conv{number}.weight"]
                y = F.conv2d(y, kernel, stride=stride if number == strided else 1, padding=kernel.shape[-1] // 2)
                y = norm(y, f"{at}.bn{number}")
                y = y if number == last else F.relu(y)
            if f"{at}.downsample.0.weight" in weights:
                x = norm(F.conv2d(x, weights[f"{at}.downsample.0.weight"], stride=stride), f"{at}.downsample.1")
            x = F.relu(x + y)
    return F.linear(x.mean((2, 3)), weights["fc.weight"], weights["fc.bias"])


def vit(names: dict[str, str], width: int, depth: int, patch: int, side: int, classes: int = 1000, empty: bool = False) -> Weights:  # fmt: skip # noqa: E501
    """A vision transformer's state dict in one of the two layouts below."""
    layout = _Layout(empty)
    layout.add(names["class"], 1, 1, width)
    layout.add(names["positions"], 1, 1 + (side // patch) ** 2, width)
    layout.add(f"{names['patches']}.weight", width, 3, patch, patch)
    layout.add(f"{names['patches']}.bias", width, scale=0.1)
    for number in range(depth):
        at = names["block"].format(number)
        for norm in ("norm1", "norm2"):
            layout.add(f"{at}.{names[norm]}.weight", width)
            layout.add(f"{at}.{names[norm]}.bias", width, scale=0.1)
        layout.add(f"{at}.{names['qkv']}weight", 3 * width, width)
        layout.add(f"{at}.{names['qkv']}bias", 3 * width, scale=0.1)
        layout.linear(f"{at}.{names['proj']}", width, width)
        layout.linear(f"{at}.{names['fc1']}", 4 * width, width)
        layout.linear(f"{at}.{names['fc2']}", width, 4 * width)
    layout.add(f"{names['norm']}.weight", width)
    layout.add(f"{names['norm']}.bias", width, scale=0.1)
    layout.linear(names["head"], classes, width)
    return layout.weights


TIMM = {"class": "cls_token", "positions": "pos_embed", "patches": "patch_embed.proj", "block": "blocks.{}",
        "norm1": "norm1", "norm2": "norm2", "qkv": "attn.qkv.", "proj": "attn.proj", "fc1": "mlp.fc1", "fc2": "mlp.fc2",
        "norm": "norm", "head": "head"}  # fmt: skip
TORCHVISION = {"class": "class_token", "positions": "encoder.pos_embedding", "patches": "conv_proj",
               "block": "encoder.layers.encoder_layer_{}", "norm1": "ln_1", "norm2": "ln_2",
               "qkv": "self_attention.in_proj_", "proj": "self_attention.out_proj", "fc1": "mlp.0", "fc2": "mlp.3",
               "norm": "encoder.ln", "head": "heads.head"}  # fmt: skip


def vit_logits(names: dict[str, str], weights: Weights, images: Tensor, heads: int) -> Tensor:
    """forward of timm's VisionTransformer, and of torchvision's, which computes the same (nn.MultiheadAttention)."""

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, weights[f"{name}weight"], weights[f"{name}bias"])

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-6)

    kernel = weights[f"{names['patches']}.weight"]
    x = F.conv2d(images, kernel, weights[f"{names['patches']}.bias"], stride=kernel.shape[-1])
    x = x.flatten(2).transpose(1, 2)
    x = torch.cat([weights[names["class"]].expand(len(x), -1, -1), x], 1) + weights[names["positions"]]
    number = 0
    while f"{names['block'].format(number)}.{names['norm1']}.weight" in weights:
        at = names["block"].format(number)
        y = norm(x, f"{at}.{names['norm1']}")
        query, key, value = linear(y, f"{at}.{names['qkv']}").chunk(3, -1)
        split: Callable[[Tensor], Tensor] = lambda t: t.unflatten(-1, (heads, -1)).transpose(1, 2)  # noqa: E731
        scores = split(query) @ split(key).transpose(-1, -2) / (query.shape[-1] / heads) ** 0.5
        y = (scores.softmax(-1) @ split(value)).transpose(1, 2).flatten(2)
        x = x + linear(y, f"{at}.{names['proj']}.")
        y = F.gelu(linear(norm(x, f"{at}.{names['norm2']}"), f"{at}.{names['fc1']}."))
        x = x + linear(y, f"{at}.{names['fc2']}.")
        number += 1
    return linear(norm(x, names["norm"])[:, 0], f"{names['head']}.")
