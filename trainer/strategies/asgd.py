"""strategy=asgd: asynchronous SGD over parameter servers; nobody waits for anybody."""

from collections.abc import Iterator

from torch import Tensor

from ..config import Config, Topology
from ..errors import Problem
from ..servers.pieces import Optimized, Piece
from ..targets import locate
from .ahead_checks import few_servers, fewest, refused_ahead, refused_server_optimizer
from .downpour import Downpour, server_optimizer
from .flat_parameters import Replica
from .ledger import Transfer
from .requests import Rule
from .runs_ahead import RunsAhead


class ASGD(RunsAhead):
    """Downpour SGD (Dean et al. 2012, Large scale distributed deep networks) and GPU A-SGD (Paine et al. 2013,
    arXiv 1312.6186).

    A worker fetches w from the servers every n_fetch steps, sums the raw gradients g of its steps, and pushes the sum
    every n_push steps; the servers step the config's optimizer with it, in the order of arrival: for SGD
    w <- w - lr sum g. Between fetches the worker moves by itself, x <- x - lr g. Where n_push > 1, weights decay once a
    push, n_push times as much. With one worker and n_push = n_fetch = 1 it is `single`, bit for bit.

    On the wire: N numbers from the servers every n_fetch steps of a worker, N to them every n_push steps.

    A push is as many versions late (stale) as the servers have applied pushes since its worker's fetch; p workers in
    turn make that p - 1. With `max_staleness` a push that would make another one later than that waits. Before workers
    meet (a checkpoint, an epoch's end) each pushes what it has, and fetches after it.

    Args:
        n_fetch: steps from one fetch to the next.
        n_push: steps from one push to the next.
        servers: processes that hold the parameters, each an even piece; None: as the topology has it, one a node.
        divide_lr: the learning rate divided by the number of workers: their updates add up.
        warm_start_steps: so many first steps are worker 0's alone, with the whole learning rate; the others wait until
            it has pushed all of them, and fetch what they have come to.
        max_staleness: at least workers - 1; None: no bound.
        elastic: workers come and go: one that dies is started again (topology.max_restarts) and joins the others,
            which go on; a dead server restarts all of them.
        validate_workers: also validate each worker's own weights.
    """

    def __init__(
        self, topology: Topology, n_fetch: int = 1, n_push: int = 1, servers: int | None = None, divide_lr: bool = True,
        warm_start_steps: int = 0, max_staleness: int | None = None, validate_workers: bool = False,
        elastic: bool = False, record: bool = False, simulate: bool = False, delay: str = "constant",
        delay_ms: float = 100, slower: float = 4, link_mbit_s: float | None = None, replay: str | None = None,
        timeout_s: float = 1800,
    ):  # fmt: skip
        super().__init__(topology, simulate, delay, delay_ms, slower, link_mbit_s, timeout_s, elastic)
        self.n_fetch = n_fetch
        self.n_push = n_push
        self.server_count = topology.usual_servers if servers is None else servers
        self.divide_lr = divide_lr
        self.warm_start_steps = warm_start_steps
        self.validate_workers = validate_workers

    @property
    def kind(self) -> str:
        return "asgd"

    @staticmethod
    def refuses(config: Config) -> Iterator[Problem]:
        """What cannot work, from the config alone."""
        given, workers = config.strategy.arguments, config.topology.workers
        yield from fewest(config, n_fetch=1, n_push=1, warm_start_steps=0)
        yield from few_servers(config)
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
        yield from refused_ahead(config, by_own_clocks=True)
        yield from refused_server_optimizer(config)

    def make_rule(self, replica: Replica) -> Rule:
        return Downpour(replica, self.n_fetch, self.n_push, self._share_of_rate)

    def _share_of_rate(self) -> float:
        alone = not self.divide_lr or self.state.step * self.workers < self.warm_start_steps
        return 1.0 if alone else 1.0 / self.workers

    def servers(self) -> int:
        return self.server_count

    def piece(self, values: Tensor, segments: list[tuple[int, int]], config: Config) -> Piece:
        return self.make_piece(config, values, segments)

    @staticmethod
    def make_piece(config: Config, values: Tensor, segments: list[tuple[int, int]]) -> Piece:
        """A server's piece of the parameters, with the config's optimizer over it."""
        assert config.optimizer is not None
        given, settings = config.strategy.arguments, config.optimizer.arguments
        apart = not config.optimizer.decay_bias_and_norm and "weight_decay" in settings
        decays = [settings["weight_decay"], 0.0] if apart else [None]
        optimizer = server_optimizer(
            locate(config.optimizer.target), settings, decays, values, segments, given.get("n_push", 1)
        )
        return Optimized(values, optimizer, config.topology.workers, given.get("max_staleness"))

    def traffic(self) -> list[Transfer]:
        """What a worker sends, and what the servers send back to it."""
        size, servers = float(self.flat.values.nbytes), float(self.server_count)
        leaving = self.ledger.placement.share_apart_from_servers(self.server_count) * size
        return [
            Transfer("parameters", "forward", size, leaving, servers, every=self.n_fetch),
            Transfer("gradients", "update", size, leaving, servers, every=self.n_push),
        ]
