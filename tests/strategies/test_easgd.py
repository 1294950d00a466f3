"""EASGD's two forms and two orders of update: on a quadratic against NumPy, their stability, and whole runs."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pool import Pool
from quadratic import Worker, step, together
from runs import FEW, TINY, Freeze, distance, metrics, summary, weights

from leyden.trainer.entrypoints.start import start
from leyden.trainer.strategies.easgd.strategy import ORDER_OF_FORM, stability_bound, warning_limit
from leyden.trainer.strategies.easgd.update_rules import ElasticByAllReduce, ElasticByServer
from leyden.trainer.strategies.param_server.shard import CenterShard

Array = NDArray[np.float64]
EVERY_WORKERS = (1, 2, 4, 8)
RATES = (0.001, 0.1, 0.5, 1.0, 1.5, 1.9)
ORDERS = [(form, difference) for form in ("allreduce", "server") for difference in ("before", "after")]


def mapped(form: str, difference: str, state: Array, alpha: float, rate: float, curvature: Array) -> Array:
    """(x_1, ..., x_p, c) after a step of every worker with tau = 1; form=server: one after the other."""
    x, c = state[:-1].copy(), state[-1]
    if form == "allreduce":
        moved = x - rate * curvature * x
        d = alpha * ((moved if difference == "after" else x) - c)
        return np.append(moved - d, c + d.sum())
    for i in range(len(x)):
        moved = x[i] - rate * curvature[i] * x[i]
        d = alpha * ((moved if difference == "after" else x[i]) - c)
        x[i], c = moved - d, c + d
    return np.append(x, c)


def acted(form: str, difference: str, state: Array, alpha: float, rate: float, curvature: Array) -> Array:
    """The same by the strategy's own update rules."""
    before = difference == "before"
    rule = ElasticByServer if form == "server" else ElasticByAllReduce
    team = [Worker([x], lambda r: rule(r, alpha, 1, before), c, lr=rate)
            for x, c in zip(state[:-1], curvature, strict=True)]  # fmt: skip
    if form == "server":
        center = CenterShard(torch.tensor(state[-1:]), len(team))
        for number, worker in enumerate(team):
            step(worker, number, center)
        c = float(center.values)
    else:
        for worker in team:
            worker.rule.state()["center"].fill_(state[-1])
        together(team)
        c = float(team[0].rule.state()["center"])
    return np.array([*(worker.x[0] for worker in team), c])


def radius(form: str, difference: str, workers: int, beta: float, rate: float) -> float:
    """Spectral radius of the map at curvature 1."""
    ones = np.ones(workers)
    columns = [mapped(form, difference, unit, beta / workers, rate, ones) for unit in np.eye(workers + 1)]
    return float(np.abs(np.linalg.eigvals(np.array(columns).T)).max())


@pytest.mark.parametrize(("form", "difference"), ORDERS)
@pytest.mark.parametrize("workers", EVERY_WORKERS)
def test_the_rules_are_the_maps_whose_stability_is_computed(form: str, difference: str, workers: int) -> None:
    random = np.random.default_rng(0)
    state, curvature = random.normal(size=workers + 1), random.uniform(0.5, 2, size=workers)
    for alpha, rate in ((0.1, 0.3), (0.9, 1.5)):
        found = acted(form, difference, state, alpha, rate, curvature)
        assert found == pytest.approx(mapped(form, difference, state, alpha, rate, curvature), rel=1e-12)


@pytest.mark.parametrize(("form", "difference"), ORDERS)
@pytest.mark.parametrize("workers", EVERY_WORKERS)
@pytest.mark.parametrize("rate", RATES)
def test_the_bound_is_where_the_spectral_radius_reaches_one(
    form: str, difference: str, workers: int, rate: float
) -> None:
    bound = stability_bound(form, difference, workers, rate)
    for share in (0.01, 0.5, 0.9, 0.999):
        assert radius(form, difference, workers, share * bound, rate) < 1
    if (form, difference) == ("server", "after"):
        assert bound == workers, "no beta that is accepted is unstable"
    elif form == "server" and workers > 1:
        assert radius(form, difference, workers, 1.07 * bound, rate) > 1, "of an even number of workers"
        assert radius(form, difference, workers + 1, 1.001 * bound / workers * (workers + 1), rate) > 1
    else:
        assert radius(form, difference, workers, 1.001 * bound, rate) > 1


@pytest.mark.parametrize(("form", "difference"), ORDERS)
@pytest.mark.parametrize("workers", EVERY_WORKERS)
@pytest.mark.parametrize("rate", [0.1, 1.0, 1.9])
def test_below_the_limit_of_the_warning_every_smaller_curvature_is_stable(
    form: str, difference: str, workers: int, rate: float
) -> None:
    limit, _ = warning_limit(form, difference, workers, rate)
    for curvature in (1e-3, 0.1, 0.5, 1.0):
        assert radius(form, difference, workers, 0.999 * limit, curvature * rate) < 1
    if (form, difference) == ("allreduce", "after"):
        assert limit == pytest.approx(2 * workers / (workers + 1))
        assert radius(form, difference, workers, 1.01 * limit, 1e-3 * rate) > 1


def test_the_local_steps_alone_must_be_stable() -> None:
    assert [stability_bound(form, difference, 4, 2.0) for form, difference in ORDERS] == [0.0] * 4


@pytest.mark.parametrize("momentum", [0.0, 0.9], ids=["easgd", "eamsgd"])
@pytest.mark.parametrize("tau", [1, 3])
def test_the_papers_order_step_by_step(tau: int, momentum: float) -> None:
    """x_i <- x_i - lr g - alpha (x_i - c);  c <- c + sum_i alpha (x_i - c), at the old x_i; v of EAMSGD in between."""
    curvature, x, c = np.array([0.5, 1.0, 2.0]), np.array([1.0, -2.0, 3.0]), 0.25
    alpha, rate, v = 0.3, 0.1, np.zeros(3)
    team = [Worker([start], lambda r: ElasticByAllReduce(r, alpha, tau, before=True), h, lr=rate, momentum=momentum,
                   nesterov=momentum > 0) for start, h in zip(x, curvature, strict=True)]  # fmt: skip
    for worker in team:
        worker.rule.state()["center"].fill_(c)
    for t in range(10):
        d = alpha * (x - c) if t % tau == 0 else np.zeros(3)
        v = momentum * v - rate * curvature * (x + momentum * v)
        x = x + v - d
        c = c + d.sum()
        together(team)
        found = [worker.rule.replica.position().item() for worker in team]  # pyright: ignore[reportAttributeAccessIssue]
        assert found == pytest.approx(x, rel=1e-12)
        assert [float(worker.rule.state()["center"]) for worker in team] == [pytest.approx(c, rel=1e-12)] * 3


def test_a_server_after_the_local_step() -> None:
    """lr 0.1, alpha 0.5, tau 2: the second step exchanges, after its own local step."""
    center = CenterShard(torch.tensor([2.0], dtype=torch.float64), workers=1)
    worker = Worker([1.0], lambda r: ElasticByServer(r, 0.5, 2, before=False), lr=0.1)
    step(worker, 0, center)
    assert (worker.x, center.values.tolist()) == ([pytest.approx(0.9)], [2.0])
    step(worker, 0, center)
    assert worker.x == [pytest.approx(0.81 + 0.5 * 1.19)]
    assert center.values.tolist() == [pytest.approx(2 - 0.5 * 1.19)]


SIMULATED = "strategy.execution.simulate=true"
SHORT = [*TINY, "batch_size=48", "trainer.log_every_n_steps=5", "logger=default", *FEW]  # fmt: skip
FOUR = "topology.devices_per_node=4"


def ended(run_dir: Path) -> tuple[dict[str, torch.Tensor], str]:
    assert start(run_dir) == 0
    return weights(run_dir), (run_dir / "run.log").read_text()


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("form", "difference"), ORDERS)
def test_the_default_difference_of_each_form(freeze: Freeze, form: str, difference: str) -> None:
    options = [*SHORT, "strategy=easgd", f"strategy.form={form}", "strategy.tau=3", SIMULATED, FOUR,
               "trainer.max_steps=8"]  # fmt: skip
    default, _ = ended(freeze("default", *options))
    explicit, _ = ended(freeze("explicit", *options, f"strategy.difference={difference}"))
    assert (distance(default, explicit) == 0) == (ORDER_OF_FORM[form] == difference)


WARNED = {
    "allreduce after": ([], 1.9, "beta = 1.9 is above 2 p / (p + 1) = 1.6 for p = 4 workers"),
    "allreduce after, stable": ([], 1.55, None),
    "allreduce before": (["strategy.difference=before"], 1.59, "above 2 (2 - lr) / (2 - lr + 2 / p) = 1.58 for p = 4"),
    "allreduce before, stable": (["strategy.difference=before"], 1.57, None),
    "server": (["strategy.form=server"], 3.95, "beta = 3.95 is above p (4 - 2 lr) / (4 - lr) = 3.9 for p = 4"),
    "server, stable": (["strategy.form=server"], 3.85, None),
    "server after": (["strategy.form=server", "strategy.difference=after"], 4, None),
    "rate": (["strategy.difference=before", "optimizer.lr=2.5"], 0.5, "lr = 2.5: unstable already on a quadratic; "
             "lower optimizer.lr"),
    "warm-up": (["strategy.form=server", "schedule.warmup_steps=1"], 3.95, "= 3.9 for p = 4 workers, lr = 0.1"),
}  # fmt: skip


@pytest.mark.thinned(3)
@pytest.mark.parametrize("case", WARNED)
def test_a_beta_beyond_the_stable_region_is_warned_of(freeze: Freeze, case: str) -> None:
    options, beta, text = WARNED[case]
    _, log = ended(freeze("run", *SHORT, "optimizer.lr=0.1", "strategy=easgd", f"strategy.beta={beta}", SIMULATED, FOUR,
                          *options, "trainer.max_steps=1"))  # fmt: skip
    assert ("unstable" in log) == (text is not None)
    assert text is None or text in log


UNSTABLE = [*SHORT, "strategy=easgd", "strategy.tau=1", "optimizer.lr=0.1", "optimizer.momentum=0", "schedule=constant"]


def test_easgd_diverges_as_warned(freeze: Freeze) -> None:
    """The center swings with a factor of 1 - alpha - beta = -1.4 a step in flat directions; below 1.6 it settles."""
    losses = {}
    for beta in (1.5, 1.9):
        run_dir = freeze(f"beta{beta}", *UNSTABLE, f"strategy.beta={beta}", SIMULATED, FOUR)
        ended(run_dir)
        losses[beta] = metrics(run_dir)["val/loss"]
    assert losses[1.5] < 2.4
    assert losses[1.9] > 1e3


@pytest.mark.slow
@pytest.mark.campaign
def test_four_distributed_workers_diverge_as_warned(freeze: Freeze, pools: Callable[[int], Pool]) -> None:
    run_dir = freeze("run", *UNSTABLE, "strategy.beta=1.9", FOUR)
    pools(4).run(run_dir)
    assert "beta = 1.9 is above 2 p / (p + 1) = 1.6 for p = 4 workers" in (run_dir / "run.log").read_text()
    assert metrics(run_dir)["val/loss"] > 1e3


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.campaign)])
def test_distributed_workers_in_the_papers_order_are_the_simulated_ones(
    freeze: Freeze, pools: Callable[[int], Pool], count: int
) -> None:
    """EAMSGD under a schedule: the difference is taken at x, which the last step's learning rate gives."""
    options = [*SHORT, "strategy=easgd", "strategy.tau=3", "strategy.difference=before", "optimizer.nesterov=true",
               f"topology.devices_per_node={count}", "trainer.precision=64-true", "trainer.max_steps=20"]  # fmt: skip
    distributed, simulated = freeze("distributed", *options), freeze("simulated", *options, SIMULATED)
    pools(count).run(distributed)
    assert distance(weights(distributed), ended(simulated)[0]) <= 1e-10


@pytest.mark.slow
def test_distributed_workers_after_the_local_step_are_replayed(freeze: Freeze, pools: Callable[[int], Pool]) -> None:
    options = [*SHORT, "strategy=easgd", "strategy.form=server", "strategy.difference=after", "strategy.tau=3",
               "topology.devices_per_node=2", "trainer.precision=64-true", "trainer.max_steps=20"]  # fmt: skip
    distributed = freeze("distributed", *options, "strategy.execution.record=true")
    pools(2).run(distributed)
    replay = freeze("replay", *options, SIMULATED, f"strategy.execution.replay={distributed / 'events.csv'}")
    assert distance(weights(distributed), ended(replay)[0]) <= 1e-10
    assert summary(distributed)["communication"]["bytes"] == summary(replay)["communication"]["bytes"] > 0
