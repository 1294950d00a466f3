"""The smallest batch of an epoch of a user-provided loader, and the shape of its samples."""

from collections.abc import Sequence, Sized
from typing import Any

from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader

from ...base.rng import keep_host_state


def smallest_batch(loader: Any, batch_size: int | None = None) -> int | None:
    """Samples of it; None: unknown, as of a stream or of a batch sampler of the user's.

    Args:
        batch_size: in place of the loader's.
    """
    if not isinstance(loader, DataLoader) or type(loader.batch_sampler) is not BatchSampler:
        return None
    sampler, size = loader.batch_sampler.sampler, batch_size or loader.batch_sampler.batch_size
    if not isinstance(sampler, Sized):
        return None
    return size if loader.batch_sampler.drop_last else len(sampler) % size or size


def sample_shape(loader: Any) -> Sequence[int] | None:
    """Shape of the first tensor of a sample, which is read; None: it has none, or cannot be read."""
    with keep_host_state():
        try:
            batch: Any = loader.collate_fn([loader.dataset[0]])
        except Exception:  # reading it in the training says what is wrong
            return None
    first: Any = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    return first.shape[1:] if isinstance(first, Tensor) and first.ndim > 1 else None
