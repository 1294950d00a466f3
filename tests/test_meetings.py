"""A meeting of elastic workers at a real server: what one was at that dies while others wait is given out again."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from runs import TINY, Freeze

from leyden.trainer.launch.child import AGENT
from leyden.trainer.launch.records import FAILURES
from leyden.trainer.launch.store import AgentStore
from leyden.trainer.servers.link import ServerLink
from leyden.trainer.servers.tickets import Stretch
from leyden.trainer.strategies.ledger import Ledger, Placement
from leyden.trainer.strategies.turns import LinkTurns


@pytest.fixture
def run_dir(freeze: Freeze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run of two elastic workers whose server waits for them."""
    folder = freeze("run", *TINY, "strategy=asgd", "strategy.elastic=true", "topology.devices_per_node=2")
    store = AgentStore()
    store.open()
    store.set("leyden/worker/0/incarnation", "0")
    monkeypatch.setenv("MASTER_ADDR", store.host)
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    told = {AGENT: str(os.getpid()), FAILURES: str(tmp_path), "LEYDEN_SERVER": "0", "LEYDEN_SERVERS": "1"}
    command = [sys.executable, "-m", "leyden.trainer.launch.server", str(folder)]
    server = subprocess.Popen(command, env={**os.environ, **told})
    try:
        yield folder
        assert server.wait(30) == 0, "it leaves with the last worker"
    finally:
        server.kill()
        server.wait()
        store.close()


def test_a_lost_workers_tickets_are_trained_before_the_meeting_ends(run_dir: Path) -> None:
    values = torch.zeros(10)
    links = [ServerLink(1, worker, 0, values, [(0, 10)], Ledger(worker, Placement(2, 2))) for worker in range(2)]
    links[0].start(values)
    links[0].begin(Stretch(1, 0, 0, 2, 0))
    links[1].begin(Stretch(1, 0, 0, 2, 0))
    assert links[1].ticket(None, 0) == 0
    assert [links[0].ticket(None, trained) for trained in range(4)] == [1, 2, 3, "epoch"]
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(links[0].meet()), daemon=True)
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive()
    del links[1]  # its connections close
    waiting.join(30)
    assert answers == [True]
    assert [links[0].ticket(None, 3), links[0].ticket(None, 4)] == [0, "epoch"]
    assert not links[0].meet()
    links[0].leave()


def test_nobody_passes_a_meeting_before_all_pushes_are_applied(run_dir: Path) -> None:
    """Forty megabytes take the server a while; the next worker fetches as soon as all have met."""
    values = torch.zeros(10_000_000)
    links = [ServerLink(1, worker, 0, values, [(0, len(values))], Ledger(worker, Placement(2, 2))) for worker in (0, 1)]
    links[0].start(values)
    barrier = threading.Barrier(2, timeout=60)
    push = lambda: links[0].push(torch.ones(len(values)), (0.1,))  # noqa: E731
    both = [LinkTurns(link, settle, lambda: bool(barrier.wait() < 0))
            for link, settle in zip(links, (push, lambda: None), strict=True)]  # fmt: skip
    waiting = threading.Thread(target=_to_the_end, args=(both[0],), daemon=True)
    waiting.start()
    _to_the_end(both[1])
    assert links[1].pull().unique().tolist() == [pytest.approx(-0.1)]
    waiting.join(30)
    for link in links:
        link.leave()


def _to_the_end(turns: LinkTurns) -> None:
    """Of an epoch without a round."""
    turns.begin(0, 0, 0, 0)
    assert list(turns.numbers()) == []
    assert turns.meet() == "epoch"
