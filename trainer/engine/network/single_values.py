"""Check before the training: batch normalization in the smallest batch of an epoch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from ...base.errors import CannotStart, Problem
from ...config.schema import Config
from ...core.data_contract import DataContract
from ...core.sync_batchnorm import GlobalBatchNorm
from ...core.torch_compat import BatchNormBase
from ...data.datamodule import ImageData
from ...data.lightning_data import LoaderData
from ...data.order.smallest_batch import sample_shape


def check_smallest_batch(data: DataContract, network: nn.Module, config: Config, workers: int) -> None:
    """Refuse what `refuse_single_values` does, of Leyden's datasets and of DataLoaders whose length is known.

    Raises:
        CannotStart: with the layer's name.
    """
    if isinstance(data, ImageData):
        multiple = data.share[1] * data.accumulate
        refuse_single_values(network, data.image_shape, data.smallest_batch, config, multiple)
    elif isinstance(data, LoaderData) and data.smallest_batch(config.batch_size) == 1:
        shape, loader = sample_shape(data.loader_of("train")), f"{type(data.source).__name__}.train_dataloader"
        if shape is not None:
            smallest = partial(_count_known, data)
            refuse_single_values(network, shape, smallest, config, workers * data.accumulate, loader)


def _count_known(data: LoaderData, batch_size: int) -> int:
    return data.smallest_batch(batch_size) or 1


def refuse_single_values(
    network: nn.Module,
    image_shape: Sequence[int],
    smallest: Callable[[int], int],
    config: Config,
    multiple: int = 1,
    loader: str = "",
) -> None:
    """Refuse batches of one image whose BatchNorm would get one value a channel: it has no variance, and torch ends.

    Which layers these are is found on the meta device, without memory or computation; of a network that does not run
    there nothing is known.

    Args:
        network: on one device, in training mode.
        smallest: rows of the smallest batch that any worker gets in an epoch, by the batch size.
        multiple: of which a batch size has to be one.
        loader: what gives the batches, if they are not of Leyden's datasets.

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
    with eager, torch.no_grad(), _record_layers(norms) as found, _evaluating(network):
        tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
        on_meta = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
        try:
            torch.func.functional_call(network, on_meta, (torch.empty(1, *image_shape, device="meta"),))
        except Exception:  # the worker's own forward will say what is wrong
            return
    single = [norms[module] for module, values in found if values == 1]
    if single:
        raise CannotStart(_problem(single[0], smallest, config, multiple, loader))


def _problem(norm: str, smallest: Callable[[int], int], config: Config, multiple: int, loader: str) -> Problem:
    text = (
        "the smallest batch of an epoch has one image for a worker, of which "
        f"{norm}, a BatchNorm, would get one value a channel and no variance"
    )
    sizes = range(multiple, 2 * config.batch_size + 2, multiple)
    nearest = min(
        (size for size in sizes if smallest(size) > 1), key=lambda size: abs(size - config.batch_size), default=None
    )
    if loader and nearest is None:  # the loader has a batch size of its own
        return Problem("dataset", f"{text}; {loader} keeps it", ..., f"drop_last=True in the DataLoader of {loader}")
    remedies = [f"batch_size={nearest}"] * (nearest is not None) + ["dataset.drop_last=true"] * (not loader)
    return Problem("batch_size", f"with it {text}", config.batch_size, ", or ".join(remedies))


@contextmanager
def _record_layers(norms: dict[Any, str]) -> Iterator[list[tuple[nn.Module, int]]]:
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
