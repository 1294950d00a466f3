"""Shuffling by blocks of consecutive samples, for disks that are slow at anything but long reads."""

from typing import NamedTuple

import torch
from torch import Tensor


class BlockShuffle(NamedTuple):
    """Blocks of consecutive samples in random order, and the samples of each buffer of blocks in random order.

    The two-level shuffle of CorgiPile (Xu et al. 2022, https://arxiv.org/abs/2206.05830). An epoch is divided into
    buffers of about as many blocks each, so that its last batches are as mixed as the others.
    """

    samples: int
    """Samples of a block; the last block of the data may be shorter."""
    buffer: int
    """Blocks of a buffer, at most."""

    def buffers(self, held: range, draw: torch.Generator) -> list[list[range]]:
        """Blocks of the samples in `held` in the order in which they are read, buffer by buffer.

        Args:
            draw: what it draws here, `order` draws first.
        """
        starts = range(held.start, held.stop, self.samples)
        order = torch.randperm(len(starts), generator=draw)
        count = -(-len(starts) // self.buffer)
        return [
            [range(starts[n], min(starts[n] + self.samples, held.stop)) for n in part.tolist()]
            for part in order.tensor_split(count)
        ]

    def order(self, held: range, draw: torch.Generator) -> Tensor:
        """The samples in `held` (int64), in the order of training."""
        shuffled: list[Tensor] = []
        for blocks in self.buffers(held, draw):
            samples = torch.cat([torch.arange(block.start, block.stop) for block in blocks])
            shuffled.append(samples[torch.randperm(len(samples), generator=draw)])
        return torch.cat(shuffled)
