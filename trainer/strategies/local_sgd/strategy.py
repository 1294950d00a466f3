"""strategy=local_sgd: local steps, averaged every h steps; with an outer momentum it is DiLoCo."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from ...base.errors import Problem
from ...config.schema import Config
from ...core.traffic import Workload, even_share
from ...core.transfers import DeviceShare, ExtraMemory, Transfer
from ...hardware.schema import Topology
from ..execution import PROCESSES, Execution
from ..local_update.checks import at_least, choice, local_update_problems
from ..local_update.flat_parameters import Replica, flat_bytes
from ..local_update.ops import UpdateRule
from ..local_update.strategy import LocalUpdateStrategy
from .update_rule import LocalAveraging

H_RULES = ("fixed", "adacomm")


class LocalSGD(LocalUpdateStrategy):
    """Local SGD (Stich 2019, ICLR) and DiLoCo (Douillard et al. 2023, arXiv 2311.08105).

    Each of W workers makes h steps of the config's optimizer on its own share; then d = w - 1/W sum_i x_i is an outer
    gradient: b <- mu b + d;  w <- w - nu (d + mu b);  x_i <- w. `outer_lr` is nu, `outer_momentum` mu (Nesterov's, as
    in DiLoCo: 0.7 and 0.9). The baseline of elastic averaging.

    With h = 1, nu = 1, mu = 0 and plain or momentum SGD it equals `ddp`. On the wire: one all-reduce of N parameters
    every h steps, 1/h of ddp's bytes. `h_rule: adacomm` starts at h and lowers it as the loss falls (Wang and Joshi
    2019, arXiv 1810.08313). The workers' mean is evaluated.

    Args:
        h: local steps from one averaging to the next; with adacomm the largest.
        h_rule: fixed or adacomm.
        adapt_every: with adacomm: local steps from one choice of h to the next.
        outer_lr: nu.
        outer_momentum: mu.
        execution: processes or a simulation; there are no servers.
        timeout_s: a collective that takes longer raises.
    """

    def __init__(
        self, topology: Topology, h: int = 10, h_rule: str = "fixed", adapt_every: int = 100, outer_lr: float = 1.0,
        outer_momentum: float = 0.0, execution: Execution = PROCESSES, timeout_s: float = 1800,
    ):  # fmt: skip
        super().__init__(topology, execution, timeout_s)
        self.h = self.max_step_skew = h
        self.adapt_every = adapt_every if h_rule == "adacomm" else 0
        self.outer_lr = outer_lr
        self.outer_momentum = outer_momentum

    @property
    @override
    def kind(self) -> str:
        return "local_sgd"

    @override
    @staticmethod
    def validate_config(config: Config) -> Iterator[Problem]:
        """Problems that the config alone shows."""
        given = config.strategy.arguments
        yield from choice(config, "h_rule", H_RULES)
        yield from at_least(config, h=1, adapt_every=1)
        if not given.get("outer_lr", 1.0) > 0:
            yield Problem("strategy.outer_lr", "must be greater than 0", given["outer_lr"], "strategy.outer_lr=1.0")
        if not 0 <= given.get("outer_momentum", 0.0) < 1:
            yield Problem("strategy.outer_momentum", "must be at least 0 and less than 1", given["outer_momentum"],
                          "strategy.outer_momentum=0.9")  # fmt: skip
        for key in ("servers", "elastic", "record", "replay"):
            value = given.get("execution", {}).get(key)
            if value:
                text = "is for strategies with parameter servers, and local_sgd has none"
                yield Problem(f"strategy.execution.{key}", text, value, "strategy=easgd strategy.form=server")
        yield from local_update_problems(config, asynchronous=False)

    @override
    def make_rule(self, replica: Replica) -> UpdateRule:
        return LocalAveraging(replica, self.workers, self.h, self.outer_lr, self.outer_momentum, self.adapt_every)

    @override
    def backward(self, tensor: Tensor, module: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        """Backward; where h adapts, record the loss."""
        super().backward(tensor, module, *args, **kwargs)
        if self.adapt_every:
            rule = self.executor.current_rule
            assert isinstance(rule, LocalAveraging)
            rule.record_loss(tensor.detach())

    @override
    def extra_metrics(self) -> dict[str, float]:
        rule = self.executor.current_rule
        assert isinstance(rule, LocalAveraging)
        return {**super().extra_metrics(), **({"local_update/h": float(rule.h)} if self.adapt_every else {})}

    @override
    def traffic(self, workload: Workload) -> list[Transfer]:
        """One all-reduce of all parameters every h steps."""
        return [workload.placement.all_reduce("parameters", "update", flat_bytes(workload), every=self.h)]

    @override
    def device_share(self, workload: Workload) -> DeviceShare:
        """The last common weights, and with an outer momentum that."""
        whole = flat_bytes(workload)
        extra = [ExtraMemory("common weights", whole)]
        if self.outer_momentum:
            extra.append(ExtraMemory("outer momentum", whole))
        return replace(even_share(workload), extra=tuple(extra))
