"""A worker process that carries out its rule's requests: sums over all workers, pulls from and pushes to servers."""

from time import perf_counter
from typing import Any, Literal

import torch.distributed as dist

from ..servers.link import ServerLink
from .flat_parameters import Replica
from .ledger import Ledger
from .requests import Compute, Pull, Push, Request, Rule, Steps, Sum


class Live:
    """One worker of several, in a process of its own.

    Args:
        link: to the servers; None for a rule that needs none.
    """

    def __init__(self, replica: Replica, rule: Rule, ledger: Ledger, link: ServerLink | None):
        self.replica = replica
        self.rule = rule
        self.ledger = ledger
        self.link = link
        self._steps: Steps | None = None

    def begin(self) -> None:
        """What comes before the gradient."""
        if self._steps is None:
            self._steps = self.rule.step()
            self._on(self._steps, None)

    def stepped(self) -> None:
        """What comes after it."""
        assert self._steps is not None
        steps, self._steps = self._steps, None
        self._on(steps, None)

    def finish(self, name: Literal["settle", "judged"]) -> Any:
        """What the rule does at a meeting, where every worker is."""
        return self._on(getattr(self.rule, name)(), None, looking=name == "judged")

    def _on(self, steps: Steps, answer: Any, looking: bool = False) -> Any:
        """Up to the next gradient, or to the end, whose value is returned."""
        try:
            while True:
                request = steps.send(answer)
                if isinstance(request, Compute):
                    return None
                answer = self._answer(request, looking)
        except StopIteration as end:
            return end.value

    def _answer(self, request: Request, looking: bool) -> Any:
        if isinstance(request, Sum):
            began = perf_counter()
            total = request.value.to(self.replica.values.device).clone()
            dist.all_reduce(total)
            self.ledger.all_reduce(total.nbytes)
            self.ledger.exposed_seconds += perf_counter() - began
            return total
        assert self.link is not None
        if isinstance(request, Pull):
            return self.link.look() if looking else self.link.pull()
        assert isinstance(request, Push)
        return self.link.push(request.value, request.learning_rates)
