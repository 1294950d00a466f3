"""Replacement of random layers, which draw from the process's generator, by keyed ones."""

from typing import Any, TypeVar
from zlib import crc32

from torch import nn

from ..torch_compat import DropoutBase
from .dropout import KeyedAlphaDropout, KeyedDropout, KeyedDropPath, SampleKeys

Module = TypeVar("Module", bound=nn.Module)

_SHARED: dict[type, int] = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}
"""Trailing dimensions that share one draw: nn.Dropout2d drops whole channels."""
_ALPHA: dict[type, bool] = {nn.AlphaDropout: False, nn.FeatureAlphaDropout: True}
"""Whether whole channels are dropped."""


def with_keyed_layers(task: Module, sample_keys: SampleKeys) -> Module:
    """The task with every layer replaced that drops units or residual branches at random.

    A layer is identified by its name; one used in several places is one layer.
    """
    made: dict[int, nn.Module | None] = {}
    for name, module in list(task.named_modules(remove_duplicate=False)):
        if id(module) not in made:
            made[id(module)] = _counterpart(module, crc32(name.encode()), sample_keys)
        layer = made[id(module)]
        if layer is not None and layer is not module:
            parent, _, own = name.rpartition(".")
            setattr(task.get_submodule(parent), own, layer)
    return task


def _counterpart(module: nn.Module, number: int, sample_keys: SampleKeys) -> nn.Module | None:
    layer: Any = _keyed_layer(module, number, sample_keys)
    if layer is not None:
        layer.train(module.training)
    elif getattr(module, "fused_attn", None) is True and getattr(getattr(module, "attn_drop", None), "p", 0.0) > 0.0:
        # fused, timm's attention draws inside scaled_dot_product_attention; unfused, by its layer attn_drop
        module.fused_attn = False  # pyright: ignore[reportArgumentType]
    return layer


def _keyed_layer(module: nn.Module, number: int, sample_keys: SampleKeys) -> nn.Module | None:
    kind = type(module)
    if kind in _SHARED:
        assert isinstance(module, DropoutBase)
        return KeyedDropout(module.p, number, _SHARED[kind], sample_keys)
    if kind in _ALPHA:
        assert isinstance(module, DropoutBase)
        return KeyedAlphaDropout(module.p, number, sample_keys, _ALPHA[kind])
    if kind.__name__ == "DropPath" and hasattr(module, "drop_prob"):  # timm.layers.drop.DropPath; timm is optional
        scaled = bool(getattr(module, "scale_by_keep", True))
        return KeyedDropPath(float(module.drop_prob or 0.0), number, sample_keys, scaled)  # pyright: ignore[reportArgumentType]
    return None
