"""`trainer.compile`: torch.compile of a network, or of its repeated blocks."""

from collections.abc import Hashable, Iterable

import torch
from torch import nn

from ...config.schema import CompileOptions
from ...core.network.blocks import repeated_blocks
from ...core.torch_compat import raise_graph_limit

WITH_CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
"""Modes in which a compiled backward gives gradients in memory that its next replay overwrites."""
_GRAPHS = 8
"""Graphs for each module, torch's own limit: for training, evaluation and batches of another size."""
_compiled: set[Hashable] = set()
"""Structures of the modules that this process has compiled."""


def compile_network(network: nn.Module, given: bool | CompileOptions) -> None:
    """Compile a network in place, as `trainer.compile` says; names of parameters stay.

    Raises:
        ValueError: the blocks are to be compiled, and there are none.
    """
    if not given:
        return
    options = CompileOptions() if given is True else given
    modules = [network]
    if options.regional:
        modules = repeated_blocks(network)
        if not modules:
            raise ValueError(
                f"trainer.compile.regional: {type(network).__name__} repeats no block: no nn.Sequential or "
                "nn.ModuleList in it holds two composite modules of one class; trainer.compile=true compiles all of it"
            )
    _allow_graphs(modules)
    for module in modules:
        module.compile(mode=options.mode, fullgraph=options.fullgraph, dynamic=options.dynamic)


def _allow_graphs(modules: Iterable[nn.Module]) -> None:
    """Raise torch's limit of graphs, which all modules of a class share, to that many for each of different structure.

    Above it torch runs modules uncompiled: of a deep network's blocks those of the later widths, of a process that
    trains a network after another the later networks.
    """
    _compiled.update((repr(module), *(parameter.shape for parameter in module.parameters())) for module in modules)
    raise_graph_limit(_GRAPHS * len(_compiled))


def uses_cuda_graphs(given: bool | CompileOptions, device: torch.device) -> bool:
    """Whether compiled modules replay CUDA graphs."""
    return device.type == "cuda" and not isinstance(given, bool) and given.mode in WITH_CUDA_GRAPHS


@torch.no_grad()
def own_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Copy gradients out of memory that a CUDA graph owns.

    Autograd takes a first gradient as `grad` without copying it, and the replay for the next part of a step would
    overwrite it: the sum would silently lose the parts before (torch issue 169545).
    """
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad = parameter.grad.clone()
