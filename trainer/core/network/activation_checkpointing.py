"""`trainer.activation_checkpointing`: less memory for one more forward of the chosen modules."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ...base.log import log
from ..keyed.dropout import KeyedDropout
from ..sync_batchnorm import statistics_kept
from .blocks import named_blocks, repeated_blocks

KEY = "trainer.activation_checkpointing"


def checkpoint_activations(network: nn.Module, chosen: bool | Sequence[str]) -> None:
    """Let modules keep only their inputs in the forward, and compute the rest again in the backward (Chen et al. 2016,
    arXiv 1604.06174). Gradients, running statistics and names of parameters stay as they are without it.

    Args:
        chosen: classes or names of modules; True: the network's repeated blocks.

    Raises:
        ValueError: there are none.
    """
    if not chosen:
        return
    modules = repeated_blocks(network) if chosen is True else named_blocks(network, chosen, KEY)
    if not modules:
        raise ValueError(
            f"{KEY}=true: {type(network).__name__} repeats no block: no nn.Sequential or nn.ModuleList in it holds two "
            f"composite modules of one class; {KEY}=[NAME] chooses by class or name"
        )
    _refuse_shared_dropout(modules)
    for module in modules:
        _checkpoint(module)
    log.info("activations are computed again in the backward of %d modules", len(modules))


def _checkpoint(module: nn.Module) -> None:
    computed = module.forward
    dropouts = [layer for layer in module.modules() if isinstance(layer, KeyedDropout)]

    def compiled(*arguments: Any, **more: Any) -> Any:
        output = computed(*arguments, **more)
        for layer in dropouts:  # a part of a graph that is computed twice must leave no counts behind
            layer.calls = 0
        return output

    def forward(*arguments: Any, **more: Any) -> Any:
        if not torch.is_grad_enabled():
            return computed(*arguments, **more)
        if torch.compiler.is_compiling():  # recomputes operations, not writes to buffers
            return checkpoint(compiled, *arguments, use_reentrant=False, **more)

        def contexts() -> Any:
            # running statistics count a batch once
            return nullcontext(), statistics_kept(module, of_all_workers=True)

        return checkpoint(computed, *arguments, use_reentrant=False, context_fn=contexts, **more)

    module.forward = forward


def _refuse_shared_dropout(modules: Sequence[nn.Module]) -> None:
    holders: dict[int, int] = {}
    for holder, module in enumerate(modules):
        for layer in module.modules():
            if isinstance(layer, KeyedDropout) and holders.setdefault(id(layer), holder) != holder:
                raise ValueError(
                    f"{KEY}: two of the modules share a dropout layer, whose masks could not be repeated: one layer "
                    "for each, or trainer.exact_dropout=false"
                )
