"""strategy=easgd: elastic averaging of workers and a center variable."""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor
from typing_extensions import override

from ...base.errors import Problem
from ...base.log import log
from ...config.schema import Config
from ...core.traffic import Workload, even_share
from ...core.transfers import DeviceShare, ExtraMemory, Transfer
from ...hardware.schema import Topology
from ..declarations import ServersByForm
from ..execution import PROCESSES, Execution
from ..local_update.checks import at_least, choice, local_update_problems
from ..local_update.flat_parameters import Replica, flat_bytes, shard_bytes
from ..local_update.ops import UpdateRule
from ..local_update.strategy import LocalUpdateStrategy
from ..param_server.shard import CenterShard, ParamShard
from .update_rules import ElasticByAllReduce, ElasticByServer

FORMS = ("allreduce", "server")
ORDERS = ("before", "after")
ORDER_OF_FORM = {"allreduce": "after", "server": "before"}
"""When the elastic difference is taken if the config does not say: each form as it is best known."""


class EASGD(ServersByForm, LocalUpdateStrategy):
    """EASGD and EAMSGD (Zhang, Choromanska, LeCun 2015, arXiv 1412.6651; the NYU cluster's own).

    Worker i of p trains on x_i with the config's optimizer, and every tau steps is pulled towards the center c, and the
    center towards it, with alpha = beta / p:

    - `form: allreduce` (synchronous): d_i = alpha (x_i - c);  x_i <- x_i - d_i;  c <- c + sum_i d_i. On the wire: one
      all-reduce of the N differences every tau steps, 1/tau of ddp's bytes.
    - `form: server` (asynchronous): pull c, e = alpha (x_i - c), push e (c <- c + e), x_i <- x_i - e. On the wire: 2 N
      numbers every tau steps of a worker.

    In both forms `difference` selects the x_i of the difference, with the local step x_i <- x_i - lr g(x_i):

    - `before`: the paper's order, at x_t: x_i <- x_i - lr g(x_i) - alpha (x_i - c), all of it at the old x_i. The
      default of `form: server`, whose push then travels while the gradient is computed.
    - `after`: at the x_i after the local step, as AllReduceEA of torch-distlearn has it. The default of
      `form: allreduce`.

    With momentum and Nesterov's form in the optimizer (optimizer.momentum=0.9 optimizer.nesterov=true) it is EAMSGD:
    v <- d v - lr g(x + d v), x <- x + v, and the elastic difference is taken at x. The center is evaluated. The sum of
    all x_i and c is conserved by every exchange. For which beta each form is stable: `stability_bound`.

    Args:
        form: allreduce or server.
        difference: before or after the local step; None: that of the form.
        tau: local steps from one exchange to the next.
        beta: p alpha.
        execution: processes or a simulation, and with form=server the servers of the center.
        timeout_s: a collective that takes longer raises.
    """

    def __init__(
        self, topology: Topology, form: str = "allreduce", difference: str | None = None, tau: int = 10,
        beta: float = 0.9, execution: Execution = PROCESSES, timeout_s: float = 1800,
    ):  # fmt: skip
        super().__init__(topology, execution, timeout_s)
        self.form = form
        self.difference = ORDER_OF_FORM[form] if difference is None else difference
        self.tau = self.max_step_skew = tau
        self.beta = beta
        self.alpha = beta / topology.workers

    @property
    @override
    def kind(self) -> str:
        return f"easgd {self.form}"

    @override
    @staticmethod
    def validate_config(config: Config) -> Iterator[Problem]:
        """Problems that the config alone shows."""
        given = config.strategy.arguments
        yield from choice(config, "form", FORMS)
        if given.get("difference") is not None:
            yield from choice(config, "difference", ORDERS)
        yield from at_least(config, tau=1)
        if not 0 < given.get("beta", 0.9) <= config.topology.workers:
            text = f"must be greater than 0 and at most the number of workers, {config.topology.workers} (alpha <= 1)"
            yield Problem("strategy.beta", text, given["beta"], "strategy.beta=0.9")
        yield from local_update_problems(config, asynchronous=given.get("form") == "server")

    @override
    def make_rule(self, replica: Replica) -> UpdateRule:
        rule = ElasticByServer if self.form == "server" else ElasticByAllReduce
        return rule(replica, self.alpha, self.tau, before=self.difference == "before")

    @override
    def servers(self) -> int:
        return self.server_count if self.form == "server" else 0

    @override
    def simulated_shard(self, values: Tensor, segments: list[tuple[int, int]], config: Config) -> ParamShard | None:
        return self.make_shard(config, values, segments) if self.form == "server" else None

    @staticmethod
    def make_shard(config: Config, values: Tensor, segments: list[tuple[int, int]]) -> ParamShard:
        """A server's shard of the center."""
        return CenterShard(values, config.topology.workers)

    @override
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

    @override
    def traffic(self, workload: Workload) -> list[Transfer]:
        """An all-reduce of differences, or with servers the center to a worker and its difference to them."""
        if self.form == "allreduce":
            placement = workload.placement
            return [placement.all_reduce("elastic differences", "update", flat_bytes(workload), every=self.tau)]
        sizes, with_servers = shard_bytes(workload, self.server_count), workload.placement.with_servers
        if self.difference == "after":
            return [with_servers(what, "update", sizes, every=self.tau) for what in ("center", "elastic differences")]
        return [
            with_servers("center", "forward", sizes, every=self.tau, needed_by="forward"),
            with_servers(
                "elastic differences", "forward", sizes, every=self.tau, overlaps=("forward", "backward"),
                needed_by="next forward",
            ),
        ]  # fmt: skip

    @override
    def device_share(self, workload: Workload) -> DeviceShare:
        """A copy of the center without servers, and a difference that was taken before the local step."""
        whole = flat_bytes(workload)
        extra = [ExtraMemory("center", whole)] if self.form == "allreduce" else []
        if self.difference == "before":
            extra.append(ExtraMemory("elastic difference", whole))
        return replace(even_share(workload), extra=tuple(extra))


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
