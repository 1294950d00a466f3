"""Barrier of elastic workers at a real server: the tickets of a worker that dies meanwhile are handed out again."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from runs import PATIENCE_S, TINY, Freeze
from server_process import server_process

from leyden.trainer.core.ticket_source import WorkRange
from leyden.trainer.core.traffic import Ledger
from leyden.trainer.core.transfers import Placement
from leyden.trainer.strategies.local_update.ticket_sources import ServerTicketSource
from leyden.trainer.strategies.param_server.client import ParamServerClient

pytestmark = pytest.mark.slow


@pytest.fixture
def run_dir(freeze: Freeze) -> Iterator[Path]:
    """A run of two elastic workers whose server waits for them."""
    folder = freeze("run", *TINY, "strategy=asgd", "strategy.execution.elastic=true", "topology.devices_per_node=2")
    with server_process(folder) as server:
        yield folder
        assert server.wait(PATIENCE_S) == 0, "it leaves with the last worker"


def test_a_lost_workers_tickets_are_trained_before_the_barrier_ends(run_dir: Path) -> None:
    values = torch.zeros(10)
    clients = [ParamServerClient(1, worker, 0, values, [(0, 10)], Ledger(worker, Placement(2, 2))) for worker in (0, 1)]
    clients[0].start(values)
    clients[0].begin(WorkRange(1, 0, 0, 2, 0))
    clients[1].begin(WorkRange(1, 0, 0, 2, 0))
    assert clients[1].draw(None, 0) == 0
    assert [clients[0].draw(None, trained) for trained in range(4)] == [1, 2, 3, "epoch"]
    released: list[bool] = []
    waiting = threading.Thread(target=lambda: released.append(clients[0].barrier()), daemon=True)
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive()
    del clients[1]  # its connections close
    waiting.join(PATIENCE_S)
    assert released == [True]
    assert [clients[0].draw(None, 3), clients[0].draw(None, 4)] == [0, "epoch"]
    assert not clients[0].barrier()
    clients[0].leave()


def test_no_worker_passes_a_synchronization_before_all_pushes_are_applied(run_dir: Path) -> None:
    """Forty megabytes take the server a while; the other worker pulls as soon as both have synchronized."""
    values = torch.zeros(10_000_000)
    clients = [
        ParamServerClient(1, worker, 0, values, [(0, len(values))], Ledger(worker, Placement(2, 2)))
        for worker in (0, 1)
    ]
    clients[0].start(values)
    barrier = threading.Barrier(2, timeout=PATIENCE_S)
    push = lambda: clients[0].push(torch.ones(len(values)), (0.1,))  # noqa: E731
    both = [ServerTicketSource(client, flush, lambda: bool(barrier.wait() < 0))
            for client, flush in zip(clients, (push, lambda: None), strict=True)]  # fmt: skip
    waiting = threading.Thread(target=_to_the_end, args=(both[0],), daemon=True)
    waiting.start()
    _to_the_end(both[1])
    assert clients[1].pull().unique().tolist() == [pytest.approx(-0.1)]
    waiting.join(PATIENCE_S)
    for client in clients:
        client.leave()


def _to_the_end(source: ServerTicketSource) -> None:
    """Of an epoch without a round."""
    source.begin(0, 0, 0, 0)
    assert list(source.numbers()) == []
    assert source.synchronize() == "epoch"
