"""strategy=easgd: elastic averaging; workers explore by themselves, tied to a center by a spring."""

from collections.abc import Iterator

from torch import Tensor

from ..config import Config, Topology
from ..errors import Problem
from ..log import log
from ..servers.pieces import Center, Piece
from .ahead_checks import choice, few_servers, fewest, refused_ahead
from .elastic_averaging import ElasticByAllReduce, ElasticByServer
from .flat_parameters import Replica
from .ledger import Transfer
from .requests import Rule
from .runs_ahead import RunsAhead

FORMS = ("allreduce", "server")


class EASGD(RunsAhead):
    """EASGD and EAMSGD (Zhang, Choromanska, LeCun 2015, arXiv 1412.6651; the NYU cluster's own).

    Worker i of p trains on x_i with the config's optimizer, and every tau steps is pulled towards the center c, and the
    center towards it, with alpha = beta / p:

    - `form: allreduce` (synchronous): x_i <- x_i - alpha (x_i - c);  c <- c + sum_i alpha (x_i - c), after the local
      step. On the wire: one all-reduce of the N differences every tau steps, 1/tau of ddp's bytes.
    - `form: server` (asynchronous): pull c, e = alpha (x_i - c), push e, x_i <- x_i - lr g(x_i), x_i <- x_i - e. On the
      wire: 2 N numbers every tau steps of a worker.

    With momentum and Nesterov's form in the optimizer (optimizer.momentum=0.9 optimizer.nesterov=true) it is EAMSGD:
    v <- d v - lr g(x + d v), x <- x + v, and the elastic difference is taken at x. Judged is the center. The sum of all
    x_i and c is conserved by every exchange.

    Stable for a quadratic of curvature 1 in round-robin order if 0 <= lr <= 2 and 0 <= alpha <= (4 - 2 lr) / (4 - lr)
    (section 3 of the paper).

    Args:
        form: allreduce or server.
        tau: local steps from one exchange to the next.
        beta: p alpha.
        servers: processes that hold the center, each an even piece (form=server); None: as the topology has
            it, one a node.
        elastic: workers come and go (form=server): one that dies is started again (topology.max_restarts) and joins
            the others, which go on; a dead server restarts all of them.
        validate_workers: also validate each worker's own weights.
    """

    def __init__(
        self, topology: Topology, form: str = "allreduce", tau: int = 10, beta: float = 0.9, servers: int | None = None,
        validate_workers: bool = False, elastic: bool = False, record: bool = False, simulate: bool = False,
        delay: str = "constant", delay_ms: float = 100, slower: float = 4, link_mbit_s: float | None = None,
        replay: str | None = None, timeout_s: float = 1800,
    ):  # fmt: skip
        super().__init__(topology, simulate, delay, delay_ms, slower, link_mbit_s, timeout_s, elastic)
        self.form = form
        self.tau = tau
        self.alpha = beta / topology.workers
        self.server_count = topology.usual_servers if servers is None else servers
        self.validate_workers = validate_workers

    @property
    def kind(self) -> str:
        return f"easgd {self.form}"

    @staticmethod
    def refuses(config: Config) -> Iterator[Problem]:
        """What cannot work, from the config alone."""
        given = config.strategy.arguments
        yield from choice(config, "form", FORMS)
        yield from fewest(config, tau=1)
        yield from few_servers(config)
        if not 0 < given.get("beta", 0.9) <= config.topology.workers:
            text = f"must be greater than 0 and at most the number of workers, {config.topology.workers} (alpha <= 1)"
            yield Problem("strategy.beta", text, given["beta"], "strategy.beta=0.9")
        yield from refused_ahead(config, by_own_clocks=given.get("form") == "server")

    def make_rule(self, replica: Replica) -> Rule:
        if self.form == "server":
            return ElasticByServer(replica, self.alpha, self.tau)
        return ElasticByAllReduce(replica, self.alpha, self.tau)

    def servers(self) -> int:
        return self.server_count if self.form == "server" else 0

    def lead(self) -> int:
        """Steps by which a worker can be ahead of another."""
        return self.tau

    def piece(self, values: Tensor, segments: list[tuple[int, int]], config: Config) -> Piece | None:
        return self.make_piece(config, values, segments) if self.form == "server" else None

    @staticmethod
    def make_piece(config: Config, values: Tensor, segments: list[tuple[int, int]]) -> Piece:
        """A server's piece of the center."""
        return Center(values, config.topology.workers)

    def begin_fit(self) -> None:
        rate = self.state.learning_rate()
        bound = stability_bound(rate)
        if self.alpha > bound and not self._begun:
            log.warning(
                "strategy=easgd: alpha = beta / workers = %.3g is above (4 - 2 lr) / (4 - lr) = %.3g for lr = %.3g: "
                "unstable already on a quadratic of curvature 1; lower strategy.beta or optimizer.lr",
                self.alpha, bound, rate,
            )  # fmt: skip
        super().begin_fit()

    def traffic(self) -> list[Transfer]:
        """What a worker sends, and with servers what they send back to it."""
        size = float(self.flat.values.nbytes)
        if self.form == "allreduce":
            placement, share = self.ledger.placement, 2 * (self.workers - 1) / self.workers
            messages = 2.0 * (self.workers - 1)
            return [placement.ring("elastic differences", "update", share * size, messages, every=self.tau)]
        leaving = self.ledger.placement.share_apart_from_servers(self.server_count) * size
        servers = float(self.server_count)
        return [
            Transfer("center", "forward", size, leaving, servers, every=self.tau),
            Transfer("elastic differences", "forward", size, leaving, servers, self.tau, ("forward", "backward")),
        ]


def stability_bound(rate: float) -> float:
    """The largest stable alpha in round-robin order on a quadratic of curvature 1; 0 where no alpha is stable."""
    return max(0.0, (4 - 2 * rate) / (4 - rate)) if rate < 4 else 0.0
