"""Scheme b of strategy=hybrid: the workers' samples go through the divided head one worker after the other."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .p2p import Message, P2PChannel, PendingTransfer
from .sharded_head import Agreement, ShardedHead


class PerWorkerPasses:
    """K passes of a head, pass j with the samples of worker j: its owner. The others serve it.

    Worker r's forward serves the passes 0 to r - 1 from their inputs to the gradients of these, then computes pass r up
    to the scores; its backward ends pass r and serves the passes r + 1 to K - 1. Meanwhile the inputs of the next pass
    are on their way, in a group of their own: behind them the small messages of this pass would wait.

    In memory: the layers of one pass, the inputs of two, and, of a worker whose pass is over, K - 1 gradients of its
    inputs that come back while it serves the others.

    Args:
        ahead: for the inputs of the next pass.
        done: called after each pass with its number and weight, when this worker's part of the gradient is there.
    """

    def __init__(self, head: ShardedHead, ahead: P2PChannel, agreed: Agreement, done: Callable[[int, float], None]):
        self.head = head
        self.exchange = head.exchange
        self.rank = head.exchange.rank
        self.agreed = agreed
        self._ahead = ahead
        self._done = done
        self._leaving: deque[PendingTransfer] = deque()
        self._inputs: Tensor
        self._coming: Tensor
        self._arrival: PendingTransfer
        self._wants_gradient = False
        self._columns: Tensor

    def scores(self, inputs: Tensor) -> Tensor:
        """Scores of this worker's samples."""
        self._wants_gradient = inputs.requires_grad
        kind = inputs.device.type
        # A cached cast of a weight would outlive its update between two passes.
        self._autocast = {
            "device_type": kind, "dtype": torch.get_autocast_dtype(kind),
            "enabled": torch.is_autocast_enabled(kind), "cache_enabled": False,
        }  # fmt: skip
        anchor = next((p for p, _ in self.head.parameters() if p.requires_grad), None)
        scores: Any = _InTurn.apply(inputs, anchor, self)
        return scores

    def forward(self, inputs: Tensor) -> Tensor:
        self._inputs = inputs.detach().contiguous()
        self._fetch(0)
        for turn in range(self.rank):
            self._serve(turn)
        columns = self._compute(self.rank)
        widths = self.head.layers[-1].rows.shares
        received = [columns.new_empty(len(columns), width) for width in widths]
        received[self.rank] = columns.detach()
        self.exchange.swap([], [(worker, received[worker]) for worker in self.exchange.others])
        return torch.cat(received, dim=1)

    def backward(self, gradient: Tensor) -> Tensor | None:
        others = self.exchange.others
        pieces = gradient.split(self.head.layers[-1].rows.shares, dim=1)
        self._send([(worker, pieces[worker].contiguous()) for worker in others])
        of_inputs = self._propagate(pieces[self.rank])
        returning: list[Message] = []
        if of_inputs is not None:
            returning = [(worker, torch.empty_like(of_inputs)) for worker in others]
        arrival = self.exchange.start([], returning)
        self._done(self.rank, self.agreed.weights[self.rank])
        for turn in range(self.rank + 1, self.exchange.workers):
            self._serve(turn)
        arrival.wait()
        while self._leaving:
            self._leaving.popleft().wait()
        for _, partial in returning:
            assert of_inputs is not None
            of_inputs.add_(partial)
        return of_inputs

    def _serve(self, turn: int) -> None:
        """All of another worker's pass."""
        while len(self._leaving) > _SENT_AHEAD:
            self._leaving.popleft().wait()
        columns = self._compute(turn)
        self._send([(turn, columns.detach())])
        gradient = torch.empty_like(columns)
        self.exchange.swap([], [(turn, gradient)])
        of_inputs = self._propagate(gradient)
        if of_inputs is not None:
            self._send([(turn, of_inputs)])
        self._done(turn, self.agreed.weights[turn])

    def _fetch(self, turn: int) -> None:
        """Begin to send this worker's inputs, or to receive those of another."""
        if turn == self.rank:
            self._coming = self._inputs
            self._arrival = self._ahead.start([(worker, self._inputs) for worker in self.exchange.others], [])
        elif turn < self.exchange.workers:
            self._coming = self._inputs.new_empty(self.agreed.samples[turn], self._inputs.shape[1])
            self._arrival = self._ahead.start([], [(turn, self._coming)])

    def _compute(self, turn: int) -> Tensor:
        """This worker's columns of a pass, its inputs having arrived; those of the next set out."""
        inputs = self._coming
        if turn == self.rank:
            self._leaving.append(self._arrival)  # the others wait for it, not this worker
        else:
            self._arrival.wait()
        self._fetch(turn + 1)
        keys = None if self.agreed.keys is None else self.agreed.keys[turn]
        with self._computing():
            self._computed = inputs.requires_grad_(self._wants_gradient)
            self._columns = self.head.columns(self._computed, keys).contiguous()
        return self._columns

    def _propagate(self, gradient: Tensor) -> Tensor | None:
        """Gradients of the pass just computed: of the parameters, added up in them, and of its inputs."""
        columns, inputs = self._columns, self._computed
        del self._columns, self._computed
        if columns.requires_grad:
            torch.autograd.backward([columns], [gradient])
        return inputs.grad

    def _send(self, messages: list[Message]) -> None:
        self._leaving.append(self.exchange.start(messages, []))

    @contextmanager
    def _computing(self) -> Iterator[None]:
        with torch.enable_grad(), torch.autocast(**self._autocast):
            yield


_SENT_AHEAD = 2
"""Messages that may be on their way when the next pass begins: the last one's scores and gradient of inputs."""


class _InTurn(torch.autograd.Function):
    """A head's forward and backward around those of the other workers' passes."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, anchor: Tensor | None, turns: PerWorkerPasses) -> Tensor:
        # anchor: a parameter, so that there is a backward where the inputs need none
        ctx.turns = turns
        return turns.forward(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        return ctx.turns.backward(gradients[0]), None, None
