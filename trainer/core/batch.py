"""Parts of a global batch, as data yields them to the loop."""

from typing import Any, NamedTuple

from torch import Tensor

from ..base.errors import Explained


class Part(NamedTuple):
    """The unit of computation of one worker: its share of a global batch, or of one of its accumulated parts."""

    batch: Any
    samples: int
    """Samples of this worker that count; 0 for a dummy batch that only completes collectives."""
    all_samples: int
    """Samples of all workers in this part."""
    weight: float
    """Factor on the mean loss of the part, such that the sum over parts and mean over workers is the global mean."""
    ends_step: bool
    keys: Tensor | None = None
    """One key for each sample of the batch, from (seed, epoch, sample): the seed of dropout."""
    rounds: tuple[int, int] | None = None
    """Rounds of the epoch trained before and after this part's step, for asynchronous workers; None: one more after
    it."""
    step_samples: int | None = None
    """Samples of all workers in the step, where each worker's share of a part is that of `Tensor.tensor_split`; None:
    a worker knows only its own."""
    seeded: bool = False
    """Whether the generators of this process's CPU were seeded for this part before it was read."""


class BadSamples(Explained, ValueError):
    """More unreadable samples than dataset.max_bad_samples allows."""
