"""strategy=asgd: asynchronous SGD over parameter servers; no worker waits for another."""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor
from typing_extensions import override

from ...base.errors import Problem
from ...config.locate import locate
from ...config.schema import Config
from ...core.traffic import Workload, even_share
from ...core.transfers import DeviceShare, ExtraMemory, Transfer
from ...hardware.schema import Topology
from ..declarations import ParameterServers
from ..execution import PROCESSES, Execution
from ..local_update.checks import at_least, local_update_problems, server_optimizer_problems
from ..local_update.flat_parameters import Replica, flat_bytes, shard_bytes
from ..local_update.ops import UpdateRule
from ..local_update.strategy import LocalUpdateStrategy
from ..param_server.shard import OptimizedShard, ParamShard
from .update_rule import Downpour, server_optimizer


class ASGD(ParameterServers, LocalUpdateStrategy):
    """Downpour SGD (Dean et al. 2012, Large scale distributed deep networks) and GPU A-SGD (Paine et al. 2013,
    arXiv 1312.6186).

    A worker fetches w from the servers every n_fetch steps, sums the raw gradients g of its steps, and pushes the sum
    every n_push steps; the servers step the config's optimizer with it, in the order of arrival: for SGD
    w <- w - lr sum g. Between fetches the worker takes local steps, x <- x - lr g. Where n_push > 1, weights decay
    once a push, n_push times as much. With one worker and n_push = n_fetch = 1 it is `single`, bit for bit.

    On the wire: N numbers from the servers every n_fetch steps of a worker, N to them every n_push steps.

    The staleness of a push is the number of pushes that the servers have applied since its worker's fetch; p workers
    in round robin have p - 1. With `max_staleness` a push waits where it would make another exceed it. Before
    workers synchronize (a checkpoint, an epoch's end) each pushes its pending sum, and fetches afterwards.

    Args:
        n_fetch: steps from one fetch to the next.
        n_push: steps from one push to the next.
        divide_lr: the learning rate divided by the number of workers: their updates add up.
        warm_start_steps: first steps of training, done by worker 0 alone with the whole learning rate; the others wait
            until it has pushed all of them, and then fetch.
        max_staleness: at least workers - 1; None: no bound.
        execution: processes or a simulation, and the servers of the parameters.
        timeout_s: a collective that takes longer raises.
    """

    def __init__(
        self, topology: Topology, n_fetch: int = 1, n_push: int = 1, divide_lr: bool = True, warm_start_steps: int = 0,
        max_staleness: int | None = None, execution: Execution = PROCESSES, timeout_s: float = 1800,
    ):  # fmt: skip
        super().__init__(topology, execution, timeout_s)
        self.n_fetch = n_fetch
        self.n_push = n_push
        self.divide_lr = divide_lr
        self.warm_start_steps = warm_start_steps

    @property
    @override
    def kind(self) -> str:
        return "asgd"

    @override
    @staticmethod
    def validate_config(config: Config) -> Iterator[Problem]:
        """Problems that the config alone shows."""
        given, workers = config.strategy.arguments, config.topology.workers
        yield from at_least(config, n_fetch=1, n_push=1, warm_start_steps=0)
        alone = given.get("warm_start_steps", 0)
        if isinstance(alone, int) and alone % workers:
            text = f"must be a multiple of the number of workers, {workers}: the start ends between two rounds"
            yield Problem("strategy.warm_start_steps", text, alone,
                          f"strategy.warm_start_steps={alone // workers * workers}")  # fmt: skip
        bound = given.get("max_staleness")
        if bound is not None and bound < workers - 1:
            text = (
                f"must be null or at least {workers - 1}: of {workers} workers that fetched the same, one is the last"
            )
            yield Problem("strategy.max_staleness", text, bound, f"strategy.max_staleness={workers - 1}")
        if bound is not None and given.get("n_fetch", 1) != given.get("n_push", 1):
            text = "bounds how old what was fetched is when it is pushed for: n_fetch and n_push must be equal"
            yield Problem("strategy.max_staleness", text, bound, f"strategy.n_fetch={given.get('n_push', 1)}")
        yield from local_update_problems(config, asynchronous=True)
        yield from server_optimizer_problems(config)

    @override
    def make_rule(self, replica: Replica) -> UpdateRule:
        return Downpour(replica, self.n_fetch, self.n_push, self._lr_factor)

    def _lr_factor(self) -> float:
        alone = not self.divide_lr or self.state.step * self.workers < self.warm_start_steps
        return 1.0 if alone else 1.0 / self.workers

    @override
    def servers(self) -> int:
        return self.server_count

    @override
    def simulated_shard(self, values: Tensor, segments: list[tuple[int, int]], config: Config) -> ParamShard:
        return self.make_shard(config, values, segments)

    @staticmethod
    def make_shard(config: Config, values: Tensor, segments: list[tuple[int, int]]) -> ParamShard:
        """A server's shard of the parameters, with the config's optimizer over it."""
        assert config.optimizer is not None
        given, settings = config.strategy.arguments, config.optimizer.arguments
        apart = not config.optimizer.decay_bias_and_norm and "weight_decay" in settings
        decays = [settings["weight_decay"], 0.0] if apart else [None]
        optimizer = server_optimizer(
            locate(config.optimizer.target), settings, decays, values, segments, given.get("n_push", 1)
        )
        return OptimizedShard(values, optimizer, config.topology.workers, given.get("max_staleness"))

    @override
    def traffic(self, workload: Workload) -> list[Transfer]:
        """Parameters from the servers to a worker, and its gradients to them."""
        sizes, with_servers = shard_bytes(workload, self.server_count), workload.placement.with_servers
        return [
            with_servers("parameters", "forward", sizes, every=self.n_fetch, needed_by="forward"),
            with_servers("gradients", "update", sizes, every=self.n_push, needed_by="next forward"),
        ]

    @override
    def device_share(self, workload: Workload) -> DeviceShare:
        """The sum of gradients to be pushed; the optimizer and its state are the servers'."""
        pending = ExtraMemory("gradients to push", flat_bytes(workload))
        return replace(even_share(workload), optimizer=0.0, extra=(pending,))
