"""Process groups of strategies: connected before the first step on GPUs, all with the strategy's own timeout."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from leyden.trainer.core.traffic import Ledger
from leyden.trainer.core.transfers import Placement
from leyden.trainer.strategies.butterfly.halving_doubling import ButterflyAllReduce, ButterflySchedule
from leyden.trainer.strategies.connect import connect, set_timeout
from leyden.trainer.strategies.hybrid.p2p import P2PChannel
from leyden.trainer.strategies.spatial.halo_exchange import HaloChannel


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """What is called of torch.distributed, on tensors that stay in host memory."""
    made: list[tuple[str, Any]] = []

    def batched(messages: list[Any]) -> list[Any]:
        made.extend(messages)
        return []

    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *size, device=None: zeros(*size))
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group=None: made.append(("all_reduce", group)))
    monkeypatch.setattr(dist, "P2POp", lambda op, tensor, group, group_peer: (op.__name__, group_peer))
    monkeypatch.setattr(dist, "batch_isend_irecv", batched)
    return made


def test_all_workers_then_each_pair(calls: list[tuple[str, Any]]) -> None:
    connect(torch.device("cuda", 0), "group", [3, 1, 3])
    assert calls == [("all_reduce", "group"), ("irecv", 1), ("isend", 1), ("irecv", 3), ("isend", 3)]


def test_gloo_connects_when_a_group_is_made(calls: list[tuple[str, Any]]) -> None:
    connect(torch.device("cpu"), "group", [1])
    assert calls == []


def test_hybrids_channel_connects_to_every_worker(calls: list[tuple[str, Any]]) -> None:
    P2PChannel(Ledger(1, Placement(3, 3)), "ahead", torch.device("cuda", 0))
    assert calls == [("all_reduce", "ahead"), ("irecv", 0), ("isend", 0), ("irecv", 2), ("isend", 2)]


@pytest.mark.parametrize("workers", [2, 3, 6, 8])
def test_butterflys_pairs_agree(workers: int) -> None:
    butterfly = ButterflySchedule(Placement(workers, workers), "near_first")
    peers = [ButterflyAllReduce(rank, butterfly, None).peers for rank in range(workers)]
    assert all(peers)
    assert all(rank in peers[peer] for rank in range(workers) for peer in peers[rank])
    for rank in range(workers):
        schedule = butterfly.of_worker(rank, 1000)
        assert {exchange.peer for exchange in (*schedule.reduce_scatter, *schedule.all_gather)} == peers[rank]


@pytest.fixture
def gloo(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def timeout_of(group: Any) -> timedelta:
    return group._get_backend(torch.device("cpu")).options._timeout


def test_a_group_of_torchs_gets_the_strategys_timeout(gloo: None) -> None:
    group = dist.new_group()
    set_timeout(group, None)
    assert timeout_of(group) != timedelta(seconds=7)
    set_timeout(group, timedelta(seconds=7))
    assert timeout_of(group) == timedelta(seconds=7)


def test_spatials_group_has_the_strategys_timeout(gloo: None) -> None:
    channel = HaloChannel(Ledger(0, Placement(1, 1)), timedelta(seconds=9))
    assert timeout_of(channel._group) == timedelta(seconds=9)
