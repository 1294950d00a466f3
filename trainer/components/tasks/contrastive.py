"""The contrastive loss of pairs of views, whose negatives are the samples of all workers."""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override


def nt_xent(own: Tensor, rows: Tensor, valid: Tensor, first: int, temperature: float) -> tuple[Tensor, Tensor]:
    """Normalized temperature-scaled cross entropy (Chen et al. 2020, arXiv 2002.05709, eq. 1), mean over `own`.

    l(i, j) = - log(exp(s_ij / T) / sum_{k != i} exp(s_ik / T)), j the other view of i, s the cosine similarity.

    Args:
        own: (n, width) of length 1; rows 2k and 2k + 1 are the views of one sample.
        rows: (m, width) of length 1: the k of the sum.
        valid: bool (m,): rows that count.
        first: row of `rows` that is the first of `own`; the others follow.
        temperature: T.

    Returns:
        The loss, and the fraction of `own` whose other view is the most similar of all; scalars.
    """
    numbers = torch.arange(len(own), device=own.device)
    itself = torch.arange(len(rows), device=own.device) == (numbers + first)[:, None]
    similar = (own @ rows.T / temperature).masked_fill(itself | ~valid, -torch.inf)
    positive = (own * own[numbers ^ 1]).sum(1) / temperature
    # the most similar is the other view itself, up to the rounding of two ways to compute it
    found = similar.detach().argmax(1) == (numbers ^ 1) + first
    return (similar.logsumexp(1) - positive).mean(), found.double().mean()


def normalize_rows(outputs: Tensor) -> Tensor:
    """Rows of length 1, in float32 or better."""
    wide = outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs
    return F.normalize(wide, dim=1)


def gather_rows(own: Tensor, counts: bool, most: int, group: Any) -> tuple[Tensor, Tensor]:
    """Rows of all workers, with gradient: (workers x most, width), and which of them count, (workers x most).

    The number of each worker's rows travels with them, so that the host does not wait for the device.

    Args:
        counts: whether this worker's rows count; False for a batch that only completes collectives.
        most: rows of the worker that has most.
        group: the process group.
    """
    flags = torch.full((len(own), 1), float(counts), dtype=own.dtype, device=own.device)
    padded = F.pad(torch.cat([own, flags], 1), (0, 0, 0, most - len(own)))
    every: Tensor = _GatherViews.apply(padded, group)
    return every[:, :-1], every[:, -1].detach() > 0.5


class _GatherViews(torch.autograd.Function):
    """All workers' rows, one worker's after the other; backward sums the gradients of all workers."""

    @override
    @staticmethod
    def forward(ctx: Any, own: Tensor, group: Any) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, own.contiguous(), group=group)
        return torch.cat(parts)

    @override
    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        summed = grad_outputs[0].contiguous()
        dist.all_reduce(summed, group=ctx.group)
        return summed.chunk(dist.get_world_size(ctx.group))[dist.get_rank(ctx.group)], None
