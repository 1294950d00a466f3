"""strategy=local_sgd: workers train alone and average every h steps; with an outer momentum it is DiLoCo."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from ..config import Config, Topology
from ..errors import Problem
from .ahead_checks import choice, fewest, refused_ahead
from .flat_parameters import Replica
from .ledger import Transfer
from .local_averaging import LocalAveraging
from .requests import Rule
from .runs_ahead import RunsAhead

H_RULES = ("fixed", "adacomm")


class LocalSGD(RunsAhead):
    """Local SGD (Stich 2019, ICLR) and DiLoCo (Douillard et al. 2023, arXiv 2311.08105).

    Each of W workers makes h steps of the config's optimizer on its own share; then d = w - 1/W sum_i x_i is an outer
    gradient: b <- mu b + d;  w <- w - nu (d + mu b);  x_i <- w. `outer_lr` is nu, `outer_momentum` mu (Nesterov's, as
    in DiLoCo: 0.7 and 0.9). The baseline that keeps elastic averaging honest.

    With h = 1, nu = 1, mu = 0 and plain or momentum SGD it equals `ddp`. On the wire: one all-reduce of N parameters
    every h steps, 1/h of ddp's bytes. `h_rule: adacomm` starts at h and lowers it as the loss falls (Wang and Joshi
    2019, arXiv 1810.08313). Judged is the workers' mean.

    Args:
        h: local steps from one averaging to the next; with adacomm the largest.
        h_rule: fixed or adacomm.
        adapt_every: with adacomm: local steps of an interval, after each of which h is chosen anew.
        outer_lr: nu.
        outer_momentum: mu.
        validate_workers: also validate each worker's own weights.
    """

    def __init__(
        self, topology: Topology, h: int = 10, h_rule: str = "fixed", adapt_every: int = 100, outer_lr: float = 1.0,
        outer_momentum: float = 0.0, validate_workers: bool = False, simulate: bool = False, delay: str = "constant",
        delay_ms: float = 100, slower: float = 4, link_mbit_s: float | None = None, timeout_s: float = 1800,
    ):  # fmt: skip
        super().__init__(topology, simulate, delay, delay_ms, slower, link_mbit_s, timeout_s)
        self.h = h
        self.adapt_every = adapt_every if h_rule == "adacomm" else 0
        self.outer_lr = outer_lr
        self.outer_momentum = outer_momentum
        self.validate_workers = validate_workers

    @property
    def kind(self) -> str:
        return "local_sgd"

    @staticmethod
    def refuses(config: Config) -> Iterator[Problem]:
        """What cannot work, from the config alone."""
        given = config.strategy.arguments
        yield from choice(config, "h_rule", H_RULES)
        yield from fewest(config, h=1, adapt_every=1)
        if not given.get("outer_lr", 1.0) > 0:
            yield Problem("strategy.outer_lr", "must be greater than 0", given["outer_lr"], "strategy.outer_lr=1.0")
        if not 0 <= given.get("outer_momentum", 0.0) < 1:
            yield Problem("strategy.outer_momentum", "must be at least 0 and less than 1", given["outer_momentum"],
                          "strategy.outer_momentum=0.9")  # fmt: skip
        yield from refused_ahead(config, by_own_clocks=False)

    def make_rule(self, replica: Replica) -> Rule:
        return LocalAveraging(replica, self.workers, self.h, self.outer_lr, self.outer_momentum, self.adapt_every)

    def lead(self) -> int:
        """Steps by which a worker can be ahead of another."""
        return self.h

    def backward(self, tensor: Tensor, module: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        """Backward; where h adapts, the rule is told the loss."""
        super().backward(tensor, module, *args, **kwargs)
        if self.adapt_every:
            now = self.here.current
            assert isinstance(now, LocalAveraging)
            now.lost(float(tensor.detach()))

    def measured(self) -> dict[str, float]:
        rule = self.here.current
        assert isinstance(rule, LocalAveraging)
        return {**super().measured(), **({"ahead/h": float(rule.h)} if self.adapt_every else {})}

    def traffic(self) -> list[Transfer]:
        """One all-reduce of all parameters every h steps."""
        share = 2 * (self.workers - 1) / self.workers
        each, messages = share * self.flat.values.nbytes, 2.0 * (self.workers - 1)
        return [self.ledger.placement.ring("parameters", "update", each, messages, every=self.h)]
