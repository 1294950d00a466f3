"""What a divided head sends, by formula: for the docs, the planner, and the test that holds the ledger to it."""

from collections.abc import Callable, Sequence
from typing import Literal

from ...core.transfers import Phase, Placement, Send, Transfer

Scheme = Literal["a", "b", "c"]


def shares(whole: int, workers: int) -> list[int]:
    """Rows of each worker; the first ones have one more where they do not divide evenly (`Tensor.tensor_split`)."""
    return [whole // workers + (worker < whole % workers) for worker in range(workers)]


def head_traffic(
    placement: Placement,
    scheme: Scheme,
    samples: int,
    inputs: int,
    outputs: Sequence[int],
    item_bytes: int,
    input_gradient: bool = True,
) -> list[Transfer]:
    """Messages a step and worker, the mean over all, in one part (no accumulate_grad_batches).

    Args:
        samples: b, of each worker in a step.
        inputs: A, features that the first divided layer gets of a sample.
        outputs: of each divided layer, over all workers; the last one's are the scores.
        item_bytes: of one activation.
        input_gradient: whether something trainable lies before the head.
    """
    sent = _Sent(placement, scheme)
    workers = placement.workers
    found = [sent.inputs("forward", samples * inputs * item_bytes)]
    for width in outputs[:-1]:
        columns = [workers * samples * item_bytes * share for share in shares(width, workers)]
        found.append(sent.ring("columns between layers", "forward", columns, not_sent=1))
        found.append(sent.ring("gradients of columns", "backward", columns, not_sent=0))
    scores = [samples * item_bytes * share for share in shares(outputs[-1], workers)]
    found.append(sent.direct("scores", "forward", lambda source, to: scores[source]))
    found.append(sent.direct("gradients of scores", "backward", lambda source, to: scores[to]))
    if input_gradient:
        found.append(sent.inputs("backward", samples * inputs * item_bytes))
    return found


class _Sent:
    """What each worker sends in the passes of a step."""

    def __init__(self, placement: Placement, scheme: Scheme):
        self.placement = placement
        self.scheme = scheme
        self.workers = placement.workers
        self.passes = 1 if scheme == "a" else placement.workers

    def inputs(self, phase: Phase, own_bytes: float) -> Transfer:
        """A worker's inputs to every other one, or the gradients of the others' inputs to them."""
        what = "inputs of the head" if phase == "forward" else "gradients of inputs"
        if self.scheme == "b":
            overlaps: tuple[Phase, ...] = ("forward", "backward")
            return self.direct(what, phase, lambda source, to: own_bytes, passes=1, overlaps=overlaps)
        return self.ring(what, phase, [own_bytes] * self.workers, not_sent=1 if phase == "forward" else 0)

    def ring(self, what: str, phase: Phase, pieces: Sequence[float], not_sent: int) -> Transfer:
        """Worker r passes on every piece but number r + not_sent, to worker r + 1."""
        total, workers = sum(pieces), self.workers
        messages = (workers - 1) * self.passes

        def sends(rank: int) -> list[Send]:
            return [Send((rank + 1) % workers, total - pieces[(rank + not_sent) % workers], messages)]

        return self.placement.transfer(what, phase, sends, needed_by=phase)

    def direct(
        self,
        what: str,
        phase: Phase,
        size: Callable[[int, int], float],
        passes: int | None = None,
        overlaps: tuple[Phase, ...] = (),
    ) -> Transfer:
        """Every worker sends to every other one: size(from, to) bytes."""
        # scheme b: the owner of the pass sends to all, or gets from all: each pair once in a step, as in scheme a
        times = (self.passes if self.scheme == "c" else 1) if passes is None else passes

        def sends(rank: int) -> list[Send]:
            return [Send(to, size(rank, to), times) for to in range(self.workers) if to != rank]

        return self.placement.transfer(what, phase, sends, pattern="pairs", overlaps=overlaps, needed_by=phase)
