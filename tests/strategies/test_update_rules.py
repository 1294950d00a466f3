"""The update rules of easgd, asgd and local_sgd on a quadratic, step by step, against the papers' equations by hand."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from quadratic import Worker, step, together
from torch import nn

from leyden.trainer.strategies.asgd.update_rule import Downpour, server_optimizer
from leyden.trainer.strategies.easgd.update_rules import ElasticByAllReduce, ElasticByServer
from leyden.trainer.strategies.local_sgd.update_rule import LocalAveraging
from leyden.trainer.strategies.local_update.flat_parameters import FlatParameters, Replica
from leyden.trainer.strategies.local_update.ops import Compute, Push, UpdateRule
from leyden.trainer.strategies.param_server.shard import (
    CenterShard,
    OptimizedShard,
    merge_states,
    segments_within,
    shard_bounds,
)


def test_easgd_by_all_reduce_by_hand() -> None:
    """p = 2, tau = 2, lr = 0.1, alpha = 0.25, from 1; curvatures 1 and 2 set the workers apart."""
    rules = [Worker([1.0], lambda r: ElasticByAllReduce(r, 0.25, 2, before=False), c, lr=0.1) for c in (1.0, 2.0)]
    together(rules)
    assert [w.x for w in rules] == [[pytest.approx(0.9)], [pytest.approx(0.8)]]
    together(rules)
    # before the elastic step 0.81 and 0.64, center 1: differences 0.25 * -0.19 = -0.0475 and 0.25 * -0.36 = -0.09
    assert rules[0].x == [pytest.approx(0.8575)]
    assert rules[1].x == [pytest.approx(0.73)]
    centers = [w.rule.state()["center"] for w in rules]
    assert centers[0].tolist() == centers[1].tolist() == [pytest.approx(1 - 0.1375)]


def test_the_elastic_step_conserves_the_sum() -> None:
    starts = [[1.0, -2.0], [0.5, 4.0], [-3.0, 0.25]]
    workers = [Worker(s, lambda r: ElasticByAllReduce(r, 0.3, 1, before=False), 0.0, lr=0.1) for s in starts]
    for worker in workers:
        worker.rule.state()["center"].copy_(torch.tensor([7.0, -1.0]))
    before = sum(torch.tensor(w.x) for w in workers) + torch.tensor([7.0, -1.0])
    together(workers)
    after = sum(torch.tensor(w.x) for w in workers) + workers[0].rule.state()["center"]
    assert torch.allclose(after.double(), before.double(), rtol=1e-6)
    assert workers[0].x != starts[0]


def test_easgd_by_server_takes_the_gradient_before_the_elastic_term() -> None:
    """lr 0.1, alpha 0.5, tau 2; the center moves at once, the worker after its gradient step."""
    center = CenterShard(torch.tensor([2.0], dtype=torch.float64), workers=1)
    worker = Worker([1.0], lambda r: ElasticByServer(r, 0.5, 2, before=True), lr=0.1)
    step(worker, 0, center)
    assert center.values.tolist() == [1.5]  # e = 0.5 * (1 - 2)
    assert worker.x == [pytest.approx(0.9 + 0.5)]
    step(worker, 0, center)
    assert center.values.tolist() == [1.5], "only every second step exchanges"
    assert worker.x == [pytest.approx(1.26)]


def test_eamsgd_is_the_papers() -> None:
    """v <- d v - lr g(x + d v); x <- x + v - alpha (x_before - c), by hand for three steps, with tau = 1."""
    center = CenterShard(torch.tensor([0.5], dtype=torch.float64), workers=1)
    worker = Worker([1.0], lambda r: ElasticByServer(r, 0.2, 1, before=True), lr=0.1, momentum=0.9, nesterov=True)
    x, v, c = 1.0, 0.0, 0.5
    for _ in range(3):
        e = 0.2 * (x - c)
        c += e
        v = 0.9 * v - 0.1 * (x + 0.9 * v)
        x = x + v - e
        step(worker, 0, center)
        assert worker.rule.replica.position().tolist() == [pytest.approx(x)]  # pyright: ignore[reportAttributeAccessIssue]
        assert center.values.tolist() == [pytest.approx(c)]


def downpour(n_fetch: int, n_push: int, factor: float = 1.0) -> Callable[[Replica], UpdateRule]:
    return lambda replica: Downpour(replica, n_fetch, n_push, lambda: factor)


def optimized(values: list[float], n_push: int = 1, workers: int = 1, **settings: Any) -> OptimizedShard:
    tensor = torch.tensor(values, dtype=torch.float64)
    segments = [(0, len(values))]
    return OptimizedShard(
        tensor, server_optimizer(torch.optim.SGD, settings, [None], tensor, segments, n_push), workers
    )


def test_downpour_by_hand() -> None:
    """n_fetch = 4, n_push = 2, lr = 0.1: two pushes of summed gradients in between moves of the worker's own."""
    server = optimized([1.0], lr=0.1)
    worker = Worker([5.0], downpour(4, 2), lr=0.1)
    for local, on_server in ((0.9, 1.0), (0.81, 1 - 0.1 * 1.9), (0.729, 0.81), (0.729, 0.81 - 0.1 * (0.81 + 0.729))):
        step(worker, 0, server)
        assert worker.x == [pytest.approx(local)]
        assert server.values.tolist() == [pytest.approx(on_server)]
    step(worker, 0, server)
    assert worker.x == [pytest.approx(0.9 * server.values.item())], "fetched, then moved"


def test_a_sum_that_a_flush_pushes_keeps_the_rate_of_its_gradients() -> None:
    """The schedule, and the end of a warm start, may have moved on by then."""
    share = 1.0
    server = optimized([1.0], lr=0.1)
    worker = Worker([0.0], lambda replica: Downpour(replica, 4, 4, lambda: share), lr=0.1)
    step(worker, 0, server)
    step(worker, 0, server)
    share = 0.5
    worker.optimizer.param_groups[0]["lr"] = 0.01
    (op,) = worker.rule.flush()
    assert isinstance(op, Push)
    assert op.learning_rates == (0.1,)
    assert op.value.tolist() == [pytest.approx(1 + 0.9)]


def test_weights_decay_as_often_as_gradients_are_summed() -> None:
    server = optimized([1.0], n_push=3, lr=0.1, weight_decay=0.5)
    worker = Worker([0.0], downpour(3, 3), curvature=0.0, lr=0.1)
    for _ in range(3):
        step(worker, 0, server)
    assert server.values.tolist() == [pytest.approx(1 - 0.1 * 3 * 0.5)]


def test_the_staleness_of_workers_in_round_robin_is_workers_minus_one() -> None:
    server = optimized([1.0], workers=4, lr=0.01)
    team = [Worker([1.0], downpour(1, 1), lr=0.01) for _ in range(4)]
    running = [worker.rule.step() for worker in team]
    for turn in range(20 * 4):  # in its turn a worker pushes and fetches again
        number = turn % 4
        if turn < 4:
            next(running[number])
            assert isinstance(running[number].send(server.pull(number).clone()), Compute)
            continue
        team[number].compute()
        op = running[number].send(None)
        assert isinstance(op, Push)
        server.push(number, op.value, op.learning_rates)
        running[number] = team[number].rule.step()
        next(running[number])
        running[number].send(server.pull(number).clone())
    staleness = server.staleness
    assert sum(staleness.values()) == 76
    assert set(list(staleness.elements())[3:]) == {3}, "after the first round"


def test_bounded_staleness_delays_pushes_without_a_deadlock() -> None:
    server = CenterShard(torch.zeros(1), workers=3, max_staleness=2)
    for number in range(3):
        server.pull(number)
    server.push(0, torch.zeros(1))
    server.pull(0)
    assert server.may_push(1)
    assert server.may_push(2)
    assert not server.may_push(0), "1 and 2 could not both have a staleness of at most 2"
    server.push(1, torch.zeros(1))
    server.pull(1)
    assert [server.may_push(number) for number in range(3)] == [False, False, True]
    server.push(2, torch.zeros(1))
    assert max(server.staleness) == 2
    assert server.may_push(0)


def test_a_push_that_is_not_finite_is_refused() -> None:
    server = CenterShard(torch.zeros(2), workers=1)
    with pytest.raises(FloatingPointError, match=r"worker 0 pushed NaN or infinite"):
        server.push(0, torch.tensor([1.0, torch.inf]))


def test_diloco_by_hand() -> None:
    """h = 2, lr 0.1, outer lr 0.7, outer momentum 0.9 (Nesterov), curvatures 1 and 2."""
    team = [
        Worker([1.0], lambda r: LocalAveraging(r, 2, 2, outer_lr=0.7, outer_momentum=0.9), c, lr=0.1)
        for c in (1.0, 2.0)
    ]
    w, b = 1.0, 0.0
    for _ in range(3):
        together(team)
        together(team)
        d = w - (0.81 * w + 0.64 * w) / 2
        b = 0.9 * b + d
        w -= 0.7 * (d + 0.9 * b)
        assert [worker.x for worker in team] == [[pytest.approx(w)]] * 2


def test_adacomm_lowers_h_with_the_loss() -> None:
    """ceil(sqrt(F / F_0) h_0), or half of h where that is not less."""
    worker = Worker([1.0], lambda r: LocalAveraging(r, 1, 8, adapt_every=8), lr=0.0)
    rule = worker.rule
    assert isinstance(rule, LocalAveraging)
    seen = []
    for loss in (4.0, 1.0, 1.0, 1.0):
        for _ in range(8):
            rule.record_loss(torch.tensor(loss))
        while rule.state()["losses"][1]:
            together([worker])
        seen.append(rule.h)
    assert seen == [8, 4, 2, 1]


def test_the_flat_vector_keeps_layouts_and_groups() -> None:
    convolution, linear = nn.Conv2d(3, 4, 3), nn.Linear(2, 2)
    convolution.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    module = nn.Sequential(convolution, linear)
    linear.bias.requires_grad_(False)
    before = [parameter.detach().clone() for parameter in module.parameters()]
    flat = FlatParameters(module)
    assert flat.values.numel() == 3 * 4 * 9 + 4 + 4
    assert all(torch.equal(p, kept) for p, kept in zip(module.parameters(), before, strict=True))
    assert convolution.weight.is_contiguous(memory_format=torch.channels_last)
    flat.values.zero_()
    assert float(linear.weight.detach().abs().sum()) == 0.0
    assert torch.equal(linear.bias, before[3])
    groups = [{"params": [convolution.weight, linear.weight]}, {"params": [convolution.bias]}]
    assert flat.segments(torch.optim.SGD(groups, lr=0.1)) == [(0, 108), (1, 4), (0, 4)]


@pytest.mark.parametrize("servers", [1, 2, 3, 5])
def test_shards_are_even_and_can_be_resharded(servers: int) -> None:
    edges = [shard_bounds(11, servers, index) for index in range(servers)]
    assert edges[0][0] == 0
    assert edges[-1][1] == 11
    assert all(one[1] == other[0] for one, other in pairwise(edges))
    assert max(b - a for a, b in edges) - min(b - a for a, b in edges) <= 1
    segments = [(0, 4), (1, 2), (0, 5)]
    assert sum(elements for a, b in edges for _, elements in segments_within(segments, a, b)) == 11
    assert segments_within(segments, 3, 7) == [(0, 1), (1, 2), (0, 1)]
    values, momentum = torch.arange(11.0), torch.arange(11.0) + 100
    step_count = ["step", torch.tensor(3.0)]
    saved = [
        {"values": values[a:b], "version": 5, "optimizer": [["momentum_buffer", momentum[a:b]], step_count]}
        for a, b in edges
    ]
    whole = merge_states(saved, 2, 9)
    assert torch.equal(whole["values"], values[2:9])
    assert torch.equal(whole["optimizer"][0][1], momentum[2:9])
    assert whole["optimizer"][1][1].item() == 3.0
