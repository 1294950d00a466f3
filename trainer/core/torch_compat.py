# pyright: reportPrivateUsage=false
"""Private names of torch, read in torch 2.13.0: base classes of layers, what is inside a loader's iterator, groups, the
compiler's settings.

FSDP's are in strategies/fsdp/torch_compat.py. tests/integration/test_compat.py checks these names.
"""

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import torch
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _DatasetKind, _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

__all__ = [
    "READ_IN",
    "BatchNormBase",
    "DropoutBase",
    "NormBase",
    "at_each_epoch",
    "begin_reading",
    "draw_base_seed",
    "draw_order",
    "end_readers",
    "in_backward",
    "is_traceable_wrapper_subclass",
    "raise_graph_limit",
    "set_group_timeout",
]

READ_IN = "2.13.0"

BatchNormBase = _BatchNorm
NormBase = _NormBase
DropoutBase = _DropoutNd
set_group_timeout = _set_pg_timeout


def raise_graph_limit(limit: int) -> None:
    """Let the compiler make at least this number of graphs of one function; above its limit it runs it uncompiled."""
    from torch._dynamo import config

    config.recompile_limit = max(config.recompile_limit, limit)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, limit)


def in_backward() -> bool:
    """Whether autograd is computing gradients: a forward is then the second one, of activation checkpointing."""
    return torch._C._current_graph_task_id() != -1


def draw_order(batches: Iterator[Any]) -> bool:
    """Make the sampler behind a loader's iterator draw its order now instead of at the first batch.

    Returns:
        Whether the iterator has such a sampler: no reader processes, and a dataset that is read by index.
    """
    if not isinstance(batches, _SingleProcessDataLoaderIter) or batches._dataset_kind != _DatasetKind.Map:
        return False
    indices = batches._sampler_iter
    batches._sampler_iter = chain(list(islice(indices, 1)), indices)  # pyright: ignore[reportAttributeAccessIssue]
    return True


def draw_base_seed(loader: DataLoader[Any]) -> None:
    """Draw what a loader draws before its order when it starts its processes, and not where these go on.

    So the order of an epoch is the same in both cases.
    """
    if loader._iterator is not None:
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)


def end_readers(loader: DataLoader[Any]) -> None:
    """End the processes of a loader that live for many epochs, also those from which an epoch that was not read to its
    end still expects batches. A later epoch starts them again."""
    readers: Any = loader._iterator
    if readers is not None:
        readers._shutdown_workers()
        loader._iterator = None


def begin_reading(loader: Any) -> Iterator[Any]:
    """Iterator of a loader, whose reader processes `terminate()` ends by SIGKILL.

    They ignore SIGTERM, which torch and multiprocessing would send, and multiprocessing joins them when Python exits.
    """
    batches = iter(loader)
    if isinstance(batches, _MultiProcessingDataLoaderIter):
        readers: Any = batches._workers
        for process in readers:
            process._popen.terminate = process._popen.kill
    return batches


def at_each_epoch(call: Callable[[], None]) -> None:
    """Have this called before the first sample of every epoch, in a process that reads for a loader."""
    create = _DatasetKind.create_fetcher

    def begun(*arguments: Any) -> Any:
        call()
        return create(*arguments)

    _DatasetKind.create_fetcher = staticmethod(begun)  # pyright: ignore[reportAttributeAccessIssue]
