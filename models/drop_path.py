"""Stochastic depth."""

from collections.abc import Iterator

from torch import Tensor, nn
from typing_extensions import override


class DropPath(nn.Module):
    """A residual branch that is dropped for whole samples in training, and divided by 1 - p where it is kept.

    Source: G. Huang et al., Deep networks with stochastic depth, ECCV 2016 (arXiv 1603.09382). Name and attribute are
    those of timm's layer, which Leyden's training replaces by one that draws by sample.

    Args:
        drop_prob: p.
    """

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    @override
    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or self.drop_prob == 0.0:
            return branch
        kept = branch.new_empty(len(branch), *[1] * (branch.ndim - 1)).bernoulli_(1.0 - self.drop_prob)
        return branch * kept.div_(1.0 - self.drop_prob)

    @override
    def extra_repr(self) -> str:
        return f"p={self.drop_prob}"


def drop_paths(last: float, blocks: int) -> Iterator[nn.Module]:
    """One layer for each block: p grows linearly from 0 in the first block to `last` in the last; 0 costs nothing.

    Raises:
        ValueError: `last` is no probability below 1.
    """
    if not 0 <= last < 1:
        raise ValueError(f"drop_path={last} must be at least 0 and less than 1")
    rates = (last * block / max(1, blocks - 1) for block in range(blocks))
    return (DropPath(rate) if rate else nn.Identity() for rate in rates)
