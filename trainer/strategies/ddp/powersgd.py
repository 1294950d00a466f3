"""PowerSGD: averaging gradients over workers as matrices of low rank, with the rest carried over to the next step."""

from collections.abc import Callable, Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from ...base.rng import generator

Mean = Callable[[Tensor], None]
"""Replaces a flat tensor by its mean over all workers."""


class PowerSGD:
    """Rank-r gradient compression with error feedback (Vogels, Karimireddy, Jaggi 2019, arXiv 1905.13727).

    Each worker i has the gradient G_i of a weight matrix (its first dimension by all others, n x m) and the error E_i
    of the steps before; Q (m x r) is the same on all of them (Algorithms 1 and 2):

        M_i = G_i + E_i
        P = mean_i(M_i Q)              first message, n r elements
        P' = orthonormal basis of P
        Q_i = M_i^T P'
        E_i = M_i - P' Q_i^T           stays with the worker
        Q = mean_i(Q_i)                second message, m r elements; it starts the next step (warm start)
        applied: P' Q^T

    So the sum of what was applied, plus the mean error, is at any time the sum of the mean gradients. The applied
    update depends on the errors only through their mean. E_i is taken with the worker's own Q_i, as in Algorithm 2; the
    authors' code takes the mean Q, which has the same mean error, but whose single errors grow with the difference
    between the workers.

    Vectors, and matrices for which r (n + m) >= n m, travel whole, in the first message. Both messages are one flat
    tensor each, laid out in the order of `shapes`, and every worker sends them in this order: nothing can overtake.

    Limiting case: where the mean of the M_i has rank r or less, P' Q^T is the mean gradient and the mean error is zero.

    Args:
        shapes: of every gradient, by a name that lasts; all workers give the same, in the same order.
        rank: r.
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]], rank: int):
        if rank < 1:
            raise ValueError(f"powersgd_rank={rank} must be at least 1")
        self.rank = rank
        self.matrices = {name: (shape[0], prod(shape[1:])) for name, shape in shapes.items() if len(shape) > 1}
        """n and m of each gradient of more than one dimension."""
        self.compressed = [name for name, (n, m) in self.matrices.items() if rank * (n + m) < n * m]
        self._shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self._errors: dict[str, Tensor] = {}
        # Q^T, not Q: M^T P' takes BLAS 30 times as long as P'^T M
        self._factors: dict[str, Tensor] = {}

    @property
    def message_elements(self) -> tuple[int, int]:
        """Numbers in the first and in the second message."""
        factors = [self.matrices[name] for name in self.compressed]
        whole = sum(prod(shape) for name, shape in self._shapes.items() if name not in self.compressed)
        return whole + self.rank * sum(n for n, _ in factors), self.rank * sum(m for _, m in factors)

    @torch.no_grad()
    def average(self, gradients: Mapping[str, Tensor], mean: Mean) -> None:
        """Replace each gradient by the (approximate) mean over workers. Calls `mean` once or twice.

        Args:
            gradients: by name, all of one type and on one device; changed in place.
        """
        corrected = {name: self._correct(name, gradients[name]) for name in self._shapes}
        compressed = set(self.compressed)
        first = [
            corrected[n] @ self._factor(n, corrected[n]).t() if n in compressed else corrected[n] for n in corrected
        ]
        bases: dict[str, Tensor] = {}
        for name, averaged in zip(corrected, _exchange_parts(first, mean), strict=True):
            if name in compressed:
                # Householder's QR: where P lost rank, its basis is completed, and the next Q finds the rest again
                bases[name] = torch.linalg.qr(averaged)[0]
            else:
                gradients[name].copy_(averaged.view(gradients[name].shape))
        if not bases:
            return
        own = {name: basis.t() @ corrected[name] for name, basis in bases.items()}
        for name, basis in bases.items():
            self._errors[name] = corrected[name].addmm_(basis, own[name], alpha=-1)
        for name, factor in zip(own, _exchange_parts(list(own.values()), mean), strict=True):
            self._factors[name] = factor
            _put_product(gradients[name], bases[name], factor)

    def _correct(self, name: str, gradient: Tensor) -> Tensor:
        """Gradient plus error, as a matrix (of which `average` makes the next error) or as it is."""
        if name not in self.matrices:
            return gradient
        error = self._errors.pop(name, None)
        matrix = gradient.reshape(self.matrices[name])
        if error is not None:
            return error.to(gradient).add_(matrix)
        return matrix.clone() if name in self.compressed else matrix

    def _factor(self, name: str, like: Tensor) -> Tensor:
        """Q^T of the step before; at first normal numbers, the same on every worker."""
        if name not in self._factors:
            drawn = generator(self.rank, list(self._shapes).index(name))
            shape = self.rank, self.matrices[name][1]
            self._factors[name] = torch.randn(*shape, generator=drawn, dtype=torch.float64)
        return self._factors[name].to(like)

    @property
    def errors(self) -> dict[str, Tensor]:
        """This worker's errors, n x m; valid until the next `average`."""
        return dict(self._errors)

    @property
    def factors(self) -> dict[str, Tensor]:
        """The common Q^T, r x m."""
        return {name: factor.clone() for name, factor in self._factors.items()}

    def load(self, errors: Mapping[str, Tensor], factors: Mapping[str, Tensor]) -> None:
        """Go on with saved errors and Q's. Q's of another rank are drawn anew.

        An error of a matrix that is no longer compressed is sent with its next gradient.
        """
        self._errors = {n: error.clone() for n, error in errors.items() if tuple(error.shape) == self.matrices.get(n)}
        shapes = {name: (self.rank, self.matrices[name][1]) for name in self.compressed}
        self._factors = {n: factor.clone() for n, factor in factors.items() if tuple(factor.shape) == shapes.get(n)}


def _exchange_parts(parts: Sequence[Tensor], mean: Mean) -> list[Tensor]:
    """All parts as one message, averaged, and cut into parts of the same shapes again."""
    message = torch.cat([part.reshape(-1) for part in parts])
    mean(message)
    pieces = message.split([part.numel() for part in parts])
    return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]


def _put_product(into: Tensor, left: Tensor, right: Tensor) -> None:
    """Write a matrix product into a tensor of another shape."""
    if into.is_contiguous():
        torch.mm(left, right, out=into.view(len(left), -1))
    else:
        into.copy_((left @ right).view(into.shape))


def mean_errors(of_workers: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several workers' errors, which is what the next update sees of them."""
    sums = {name: error.double() for name, error in of_workers[0].items()}
    for errors in of_workers[1:]:
        sums = {name: total + errors[name] for name, total in sums.items()}
    return {name: (total / len(of_workers)).to(of_workers[0][name].dtype) for name, total in sums.items()}
