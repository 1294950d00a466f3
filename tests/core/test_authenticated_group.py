"""Gloo groups that are authenticated: gloo itself takes whoever connects first for a member."""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from runs import PATIENCE_S

from leyden.trainer.base.handshake import new_secret
from leyden.trainer.base.log import log
from leyden.trainer.core.communication import authenticated_group as module
from leyden.trainer.core.communication.authenticated_group import UNLIMITED, NotAuthenticated, connect_group

SECRET = new_secret()
Address = tuple[str, int]


@pytest.fixture(autouse=True)
def on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(log, "propagate", True)
    caplog.set_level(logging.WARNING)
    return caplog


def listening() -> set[Address]:
    found = psutil.Process().net_connections(kind="tcp")
    return {(str(one.laddr.ip), int(one.laddr.port)) for one in found if one.status == psutil.CONN_LISTEN}


class AttackedStore(dist.Store):
    """Store in whose first attempts a stranger reaches each port of gloo before its address is published.

    Args:
        attempts: with a stranger.
        greeting: what the stranger sends, for each number of a pair of gloo's.
    """

    def __init__(self, attempts: int, greeting: Callable[[int], bytes]):
        super().__init__()
        self._values = dist.HashStore()
        self._attempts, self._greeting = attempts, greeting
        self._known = listening()
        self._lock = threading.Lock()
        self.strangers: list[socket.socket] = []

    def set(self, key: str, value: Any) -> None:
        with self._lock:
            new = listening() - self._known
            self._known |= new
            if new and any(f"attempt {number}/" in key for number in range(self._attempts)):
                for address in sorted(new):
                    self._strike(address)
                time.sleep(0.2)  # gloo's thread has read them
        self._values.set(key, value)

    def _strike(self, address: Address) -> None:
        for pair in range(3):
            stranger = socket.create_connection(address)
            stranger.sendall(self._greeting(pair))
            self.strangers.append(stranger)

    def get(self, key: str) -> bytes:
        return self._values.get(key)

    def add(self, key: str, value: int) -> int:
        return self._values.add(key, value)

    def check(self, keys: list[str]) -> bool:
        return self._values.check(keys)

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=60)) -> None:
        self._values.wait(keys, timeout)

    def delete_key(self, key: str) -> bool:
        return self._values.delete_key(key)


NO_STRANGER = 0


def number_alone(pair: int) -> bytes:
    return pair.to_bytes(8, "little")


def then_zeros(pair: int) -> bytes:
    return number_alone(pair) + bytes(10_000)


@pytest.fixture
def attacked() -> Iterator[Callable[[int, Callable[[int], bytes]], AttackedStore]]:
    stores: list[AttackedStore] = []

    def make(attempts: int, greeting: Callable[[int], bytes]) -> AttackedStore:
        stores.append(AttackedStore(attempts, greeting))
        return stores[-1]

    yield make
    for stranger in [one for store in stores for one in store.strangers]:
        stranger.close()


def members(
    store: dist.Store, size: int, work: Callable[[Any, int], Any], secrets: dict[int, bytes] | None = None
) -> list[Any]:
    """Connect members in threads. Returns what each returned or raised."""
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            secret = (secrets or {}).get(rank, SECRET)
            results[rank] = work(connect_group(store, rank, size, secret, "tests"), rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    return results


def sum_of_all(group: Any, rank: int) -> int:
    """Sent pair by pair, as servers and hops do."""
    others = [other for other in range(group.size()) if other != rank]
    received = {other: torch.zeros(1) for other in others}
    works = [group.recv([buffer], other, 0) for other, buffer in received.items()]
    works += [group.send([torch.full((1,), float(rank))], other, 0) for other in others]
    for work in works:
        work.wait(UNLIMITED)
    return rank + sum(int(buffer) for buffer in received.values())


Attacked = Callable[[int, Callable[[int], bytes]], AttackedStore]


@pytest.mark.thinned(4, 1)
@pytest.mark.parametrize(
    ("greeting", "size"),
    [
        (number_alone, 2),
        (then_zeros, 3),
        pytest.param(number_alone, 3, marks=pytest.mark.campaign),
        pytest.param(then_zeros, 2, marks=pytest.mark.campaign),
    ],
)
def test_a_stranger_who_connects_before_the_members_costs_one_attempt(
    attacked: Attacked, monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture, size: int, greeting: Any
) -> None:
    monkeypatch.setattr(module, "_TIMEOUT", timedelta(seconds=2))
    store = attacked(1, greeting)
    assert members(store, size, sum_of_all) == [sum(range(size))] * size
    assert len(store.strangers) >= 3 * size
    assert {record.getMessage().partition(": a member was silent")[0] for record in warnings.records} == {
        "tests: attempt 1 of 3 to connect failed"
    }


@pytest.mark.slow
def test_a_stranger_at_every_attempt_ends_in_one_sentence_at_every_member(
    attacked: Attacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TIMEOUT", timedelta(seconds=1))
    for result in members(attacked(module.ATTEMPTS, number_alone), 2, sum_of_all):
        assert isinstance(result, NotAuthenticated)
        assert str(result).startswith("tests: a member was silent for 1 s, or its connection broke")
        assert "in 3 of 3 attempts to connect" in str(result)
        assert "\n" not in str(result)


@pytest.mark.parametrize("stranger", [0, 1])
def test_a_member_that_does_not_know_the_secret_is_in_no_group(attacked: Attacked, stranger: int) -> None:
    for result in members(attacked(NO_STRANGER, number_alone), 2, sum_of_all, {stranger: new_secret()}):
        assert isinstance(result, NotAuthenticated)
        assert "does not know the run's secret" in str(result)


def test_nothing_listens_while_a_member_is_missing(attacked: Attacked) -> None:
    store = attacked(NO_STRANGER, number_alone)
    first = threading.Thread(target=lambda: connect_group(store, 0, 2, SECRET, "tests"), daemon=True)
    before = listening()
    first.start()
    store.wait(["attempt 0/ready 0"])
    assert listening() == before
    connect_group(store, 1, 2, SECRET, "tests")
    first.join(PATIENCE_S)
    assert not first.is_alive()


def test_a_peer_may_be_silent_for_longer_than_connecting_may_take(
    attacked: Attacked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TIMEOUT", timedelta(seconds=1))

    def late(group: Any, rank: int) -> int:
        if rank == 0:
            time.sleep(1.5)
        return sum_of_all(group, rank)

    assert members(attacked(NO_STRANGER, number_alone), 2, late) == [1, 1]
