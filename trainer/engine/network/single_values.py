"""Check before the training: batch normalization in the smallest batch of an epoch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from ...base.errors import CannotStart, Problem
from ...config.schema import Config
from ...core.sync_batchnorm import GlobalBatchNorm
from ...core.torch_compat import BatchNormBase


def refuse_single_values(
    network: nn.Module, image_shape: Sequence[int], smallest: Callable[[int], int], config: Config, multiple: int = 1
) -> None:
    """Refuse batches of one image whose BatchNorm would get one value a channel: it has no variance, and torch ends.

    Which layers these are is found on the meta device, without memory or computation; of a network that does not run
    there nothing is known.

    Args:
        network: on one device, in training mode.
        smallest: rows of the smallest batch that any worker gets in an epoch, by the batch size.
        multiple: of which a batch size has to be one.

    Raises:
        CannotStart: with the layer's name.
    """
    norms: dict[Any, str] = {
        module: name
        for name, module in network.named_modules()
        if isinstance(module, BatchNormBase) and not isinstance(module, GlobalBatchNorm) and module.training
    }
    if smallest(config.batch_size) > 1 or not norms:
        return
    eager = torch.compiler.set_stance("force_eager") if config.trainer.compile else nullcontext()
    with eager, torch.no_grad(), _recorded(norms) as found, _evaluating(network):
        tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
        on_meta = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
        try:
            torch.func.functional_call(network, on_meta, (torch.empty(1, *image_shape, device="meta"),))
        except Exception:  # the worker's own forward will say what is wrong
            return
    single = [norms[module] for module, values in found if values == 1]
    if single:
        text = (
            "with it the smallest batch of an epoch has one image for a worker, of which "
            f"{single[0]}, a BatchNorm, would get one value a channel and no variance"
        )
        sizes = range(multiple, 2 * config.batch_size + 2, multiple)
        nearest = min(
            (size for size in sizes if smallest(size) > 1), key=lambda size: abs(size - config.batch_size), default=None
        )
        remedies = [f"batch_size={nearest}"] * (nearest is not None) + ["dataset.drop_last=true"]
        raise CannotStart(Problem("batch_size", text, config.batch_size, ", or ".join(remedies)))


@contextmanager
def _recorded(norms: dict[Any, str]) -> Iterator[list[tuple[nn.Module, int]]]:
    """The layers that run meanwhile, and the values a channel that each gets of one image."""
    found: list[tuple[nn.Module, int]] = []

    def record(module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        found.append((module, arguments[0].numel() // arguments[0].shape[1]))

    handles = [norm.register_forward_pre_hook(record) for norm in norms]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluation mode meanwhile: nothing is dropped, and no statistics are taken."""
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
