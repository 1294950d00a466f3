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
ORDERS = ("before", "after")
ORDER_OF_FORM = {"allreduce": "after", "server": "before"}
"""When the elastic difference is taken if the config does not say: each form as it is best known."""


class EASGD(RunsAhead):
    """EASGD and EAMSGD (Zhang, Choromanska, LeCun 2015, arXiv 1412.6651; the NYU cluster's own).

    Worker i of p trains on x_i with the config's optimizer, and every tau steps is pulled towards the center c, and the
    center towards it, with alpha = beta / p:

    - `form: allreduce` (synchronous): d_i = alpha (x_i - c);  x_i <- x_i - d_i;  c <- c + sum_i d_i. On the wire: one
      all-reduce of the N differences every tau steps, 1/tau of ddp's bytes.
    - `form: server` (asynchronous): pull c, e = alpha (x_i - c), push e (c <- c + e), x_i <- x_i - e. On the wire: 2 N
      numbers every tau steps of a worker.

    In both forms `difference` says at which x_i the difference is taken, with the local step x_i <- x_i - lr g(x_i):

    - `before`: the paper's order, at x_t: x_i <- x_i - lr g(x_i) - alpha (x_i - c), all of it at the old x_i. The
      default of `form: server`, whose push then travels while the gradient is computed.
    - `after`: at the x_i after the local step, as AllReduceEA of torch-distlearn has it. The default of
      `form: allreduce`.

    With momentum and Nesterov's form in the optimizer (optimizer.momentum=0.9 optimizer.nesterov=true) it is EAMSGD:
    v <- d v - lr g(x + d v), x <- x + v, and the elastic difference is taken at x. Judged is the center. The sum of all
    x_i and c is conserved by every exchange. For which beta each form is stable: `stability_bound`.

    Args:
        form: allreduce or server.
        difference: before or after the local step; None: that of the form.
        tau: local steps from one exchange to the next.
        beta: p alpha.
        servers: processes that hold the center, each an even piece (form=server); None: as the topology has
            it, one a node.
        elastic: workers come and go (form=server): one that dies is started again (topology.max_restarts) and joins
            the others, which go on; a dead server restarts all of them.
        validate_workers: also validate each worker's own weights.
    """

    def __init__(
        self, topology: Topology, form: str = "allreduce", difference: str | None = None, tau: int = 10,
        beta: float = 0.9, servers: int | None = None, validate_workers: bool = False, elastic: bool = False,
        record: bool = False, simulate: bool = False, delay: str = "constant", delay_ms: float = 100,
        slower: float = 4, link_mbit_s: float | None = None, replay: str | None = None, timeout_s: float = 1800,
    ):  # fmt: skip
        super().__init__(topology, simulate, delay, delay_ms, slower, link_mbit_s, timeout_s, elastic)
        self.form = form
        self.difference = ORDER_OF_FORM[form] if difference is None else difference
        self.tau = tau
        self.beta = beta
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
        if given.get("difference") is not None:
            yield from choice(config, "difference", ORDERS)
        yield from fewest(config, tau=1)
        yield from few_servers(config)
        if not 0 < given.get("beta", 0.9) <= config.topology.workers:
            text = f"must be greater than 0 and at most the number of workers, {config.topology.workers} (alpha <= 1)"
            yield Problem("strategy.beta", text, given["beta"], "strategy.beta=0.9")
        yield from refused_ahead(config, by_own_clocks=given.get("form") == "server")

    def make_rule(self, replica: Replica) -> Rule:
        rule = ElasticByServer if self.form == "server" else ElasticByAllReduce
        return rule(replica, self.alpha, self.tau, before=self.difference == "before")

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
        # a schedule may begin at a fraction of the rate that it comes to
        rate = max(float(group.get("initial_lr", group["lr"])) for group in self.state.raw_optimizer.param_groups)
        limit, formula = warning_limit(self.form, self.difference, self.workers, rate)
        if self.beta > limit and not self._begun:
            log.warning(
                "strategy=easgd form=%s difference=%s: beta = %.3g is above %s = %.3g for p = %d workers, lr = %.3g: "
                "unstable already on a quadratic; lower %s",
                self.form, self.difference, self.beta, formula, limit, self.workers, rate,
                "strategy.beta" if limit > 0 else "optimizer.lr",
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
        if self.difference == "after":
            return [
                Transfer(what, "update", size, leaving, servers, every=self.tau)
                for what in ("center", "elastic differences")
            ]
        return [
            Transfer("center", "forward", size, leaving, servers, every=self.tau),
            Transfer("elastic differences", "forward", size, leaving, servers, self.tau, ("forward", "backward")),
        ]


def stability_bound(form: str, difference: str, workers: int, rate: float) -> float:
    """The largest stable beta = p alpha of p workers on a quadratic of curvature 1, with tau = 1 and plain SGD.

    The update of (x_1, ..., x_p, c) is linear there, and stable where all its eigenvalues are inside the unit circle.
    Curvature h is curvature 1 with the learning rate h lr: the limit for lr -> 0 is that of a flat direction.

    - allreduce: the differences between workers shrink wherever their mean m and c are stable. (m, c) moves by a
      2 x 2 matrix of trace T and determinant D, stable where |D| < 1 and |T| < 1 + D.
      `after`: T = (1 - alpha) (1 - lr) + 1 - beta, D = (1 - lr) (1 - alpha - beta), hence
      beta < 2 (2 - lr) / (2 - lr + 2 (1 - lr) / p), and for lr > 1 also beta < p / (p + 1) lr / (lr - 1);
      `before`: T = 2 - lr - alpha - beta, D = (1 - lr) (1 - beta) - alpha, hence beta < 2 (2 - lr) / (2 - lr + 2 / p).
      Both tend to 2 p / (p + 1) for lr -> 0.
    - server, one worker after the other (round robin): each turn multiplies (x_i, c) by a matrix.
      `before`: it is symmetric, and its eigenvalues are inside [-1, 1] for alpha <= (4 - 2 lr) / (4 - lr) (the bound of
      the paper, section 3): then every order of turns is stable. For an odd p it is also the limit in round robin; for
      an even p the limit is a few percent higher.
      `after`: the product of two matrices of norm 1 for every alpha <= 1: stable, in every order of turns.

    Returns:
        0 where the local steps alone are unstable, lr >= 2.
    """
    if rate >= 2:
        return 0.0
    if form == "server":
        return workers * (1.0 if difference == "after" else (4 - 2 * rate) / (4 - rate))
    if difference == "before":
        return 2 * (2 - rate) / (2 - rate + 2 / workers)
    if rate <= 1:
        return 2 * (2 - rate) / (2 - rate + 2 * (1 - rate) / workers)
    by_determinant = workers / (workers + 1) * rate / (rate - 1)
    over = 2 - rate - 2 * (rate - 1) / workers  # <= 0: T + D > -1 for every beta
    return min(by_determinant, 2 * (2 - rate) / over) if over > 0 else by_determinant


def warning_limit(form: str, difference: str, workers: int, rate: float) -> tuple[float, str]:
    """The largest beta that is stable on every quadratic of curvature 0 to 1, and its formula.

    The loss's curvature is unknown, and every network has directions that are almost flat. Under `after` they are the
    first to become unstable, whatever lr is; under `before` a curvature of 1 is.
    """
    if difference == "after":
        flat = stability_bound(form, difference, workers, 0.0)
        return flat, "2 p / (p + 1)" if form == "allreduce" else "p"
    formula = "p (4 - 2 lr) / (4 - lr)" if form == "server" else "2 (2 - lr) / (2 - lr + 2 / p)"
    return stability_bound(form, difference, workers, rate), formula
