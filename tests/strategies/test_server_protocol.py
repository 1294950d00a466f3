"""Messages between workers and parameter servers: round trips, and malformed ones against a live server."""

import json
import subprocess
from typing import get_args

import pytest
import torch
from runs import PATIENCE_S, TINY, Freeze
from server_process import server_process

from leyden.trainer.base.handshake import SECRET, AuthenticationError, new_secret
from leyden.trainer.core.ticket_source import WorkRange
from leyden.trainer.core.traffic import Ledger
from leyden.trainer.core.transfers import Placement
from leyden.trainer.strategies.param_server import protocol
from leyden.trainer.strategies.param_server.client import ParamServerClient
from leyden.trainer.strategies.param_server.protocol import HEADER_LENGTH, MAX_GROUPS, ProtocolError, decode, encode

KINDS: tuple[type[protocol.Message], ...] = (*get_args(protocol.Request), *get_args(protocol.Reply))
WORK = WorkRange(3, 1, 40, 2**53, 1000)
MESSAGES: list[protocol.Message] = [
    *(protocol.Start(2**40, dtype, 7) for dtype in protocol.DTYPES),
    protocol.Restore(10, torch.float64, 2, 400, 3),
    protocol.PullRequest(),
    protocol.Read(),
    protocol.PushRequest(()),
    protocol.PushRequest((0.1, 1e-300, 0.0)),
    protocol.PushRequest(tuple(0.1 * n for n in range(MAX_GROUPS))),
    protocol.Begin(WORK),
    protocol.Draw(None, 5),
    *(protocol.Draw(reason, 0) for reason in ("epoch", "save", "stop", "warm")),
    protocol.Barrier(),
    protocol.Join(),
    protocol.Save(12),
    protocol.Measure(),
    protocol.Leave(),
    protocol.Done(),
    protocol.Values(8),
    protocol.Applied(3),
    protocol.Ticket(0, 0),
    *(protocol.Synchronize(reason, 9) for reason in ("epoch", "save", "stop", "warm")),
    protocol.Released(False),
    protocol.Released(True),
    protocol.CurrentWork(WORK),
    protocol.Finished(),
    protocol.Counters(1, 2, 0.125, 3, 4),
]


def header(*numbers: float) -> torch.Tensor:
    return torch.tensor([*numbers, *[0.0] * (HEADER_LENGTH - len(numbers))], dtype=torch.float64)


def kind(message: protocol.Message) -> float:
    return float(encode(message)[0])


@pytest.mark.parametrize("message", MESSAGES, ids=str)
def test_round_trip(message: protocol.Message) -> None:
    encoded = encode(message)
    assert (encoded.dtype, encoded.shape) == (torch.float64, (HEADER_LENGTH,))
    assert decode(encoded, KINDS) == message


def test_every_kind_is_among_them() -> None:
    assert {type(message) for message in MESSAGES} == set(KINDS)


START, PUSH, DRAW = (
    kind(m) for m in (protocol.Start(1, torch.float32, 1), protocol.PushRequest(()), protocol.Draw(None, 0))
)
NAN = float("nan")


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([0], "an unknown message (kind 0)"),
        ([99], "an unknown message (kind 99)"),
        ([-1], "an unknown message (kind -1)"),
        ([NAN], "an unknown message (kind nan)"),
        ([START, 10.5, 0, 1], "a malformed Start: its elements is 10.5, not a whole number"),
        ([START, -10, 0, 1], "its elements is -10, not a whole number"),
        ([START, NAN, 0, 1], "its elements is nan, not a whole number"),
        ([START, float("inf"), 0, 1], "its elements is inf, not a whole number"),
        ([START, 10, len(protocol.DTYPES), 1], "its dtype is choice 4 of 4"),
        ([START, 10, 0, 1, 1], "a malformed Start: numbers after its last field"),
        ([PUSH, MAX_GROUPS + 1], "its learning_rates is 15 numbers, of at most 14"),
        ([DRAW, 5, 0], "a malformed Draw: its requested is choice 5 of 5"),
        ([kind(protocol.PullRequest()), 0, NAN], "a malformed PullRequest: numbers after its last field"),
        ([kind(protocol.Done())], "an unexpected message (Done instead of Start or "),
    ],
)
def test_malformed_headers(numbers: list[float], words: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        decode(header(*numbers), get_args(protocol.Request))
    assert words in str(raised.value)


def test_more_parameter_groups_than_fit() -> None:
    with pytest.raises(ValueError, match="at most 14 parameter groups"):
        encode(protocol.PushRequest((0.1,) * (MAX_GROUPS + 1)))


TWO_WORKERS = [*TINY, "strategy=asgd", "topology.devices_per_node=2"]
ELASTIC = [*TWO_WORKERS, "strategy.execution.elastic=true"]


def connected() -> list[ParamServerClient]:
    """Two workers that draw tickets of two rounds; worker 1 has ticket 0."""
    values = torch.zeros(10)
    ledgers = [Ledger(worker, Placement(2, 2)) for worker in range(2)]
    clients = [ParamServerClient(1, worker, 0, values, [(0, 10)], ledgers[worker]) for worker in range(2)]
    clients[0].start(values)
    for client in clients:
        client.begin(WorkRange(1, 0, 0, 2, 0))
    assert clients[1].draw(None, 0) == 0
    return clients


MALFORMED = {
    "unknown": (header(99), "server 0: worker 1 sent an unknown message (kind 99)"),
    "malformed": (header(DRAW, 0, 0.5), "server 0: worker 1 sent a malformed Draw: its trained is 0.5"),
    "reply": (header(kind(protocol.Done())), "server 0: worker 1 sent an unexpected message (Done instead of"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=pytest.mark.slow) for name in ("malformed", "unknown", "reply")]
)
def test_an_elastic_run_goes_on_without_the_connection(freeze: Freeze, case: str) -> None:
    """The server names worker and request; that worker's connection raises; its ticket is handed out again."""
    malformed, words = MALFORMED[case]
    with server_process(freeze("run", *ELASTIC)) as server:
        clients = connected()
        connection = clients[1].connections[0]
        connection.start_send(malformed).wait()
        with pytest.raises(RuntimeError):
            connection.receive(protocol.Ticket)
        assert [clients[0].draw(None, trained) for trained in range(5)] == [0, 1, 2, 3, "epoch"]
        assert not clients[0].barrier()
        clients[0].leave()
        assert server.wait(PATIENCE_S) == 0
        assert words in printed(server)


@pytest.mark.slow
def test_other_runs_end_with_the_request(freeze: Freeze) -> None:
    malformed, words = MALFORMED["malformed"]
    run_dir = freeze("run", *TWO_WORKERS)
    with server_process(run_dir) as server:
        clients = connected()
        clients[1].connections[0].start_send(malformed).wait()
        with pytest.raises(RuntimeError):
            clients[0].barrier()
        assert server.wait(PATIENCE_S) == 1
    assert words in json.loads((run_dir / "server-0.json").read_text())["message"]


@pytest.mark.slow
def test_requests_out_of_order(freeze: Freeze) -> None:
    """Well-formed, and still an error of one connection: a ticket of no work range, segments of another vector."""
    values, ledger = torch.zeros(10), Ledger(0, Placement(2, 2))
    with server_process(freeze("run", *ELASTIC)) as server:
        clients = [ParamServerClient(1, worker, 0, values, [(0, 9)], ledger) for worker in range(2)]
        with pytest.raises(RuntimeError):
            clients[1].draw(None, 0)
        with pytest.raises(RuntimeError):
            clients[0].start(values)
        server.wait(PATIENCE_S)
        text = printed(server)
    assert "worker 1 sent a Draw before the first Begin" in text
    assert "worker 0 sent a malformed Start: segments that are not those of its elements" in text


@pytest.mark.slow
def test_who_does_not_know_the_secret_is_no_worker(freeze: Freeze, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is the server one to him: both ends refuse, and the other worker goes on."""
    values, ledger = torch.zeros(10), Ledger(0, Placement(2, 2))
    with server_process(freeze("run", *ELASTIC)) as server:
        worker = ParamServerClient(1, 0, 0, values, [(0, 10)], ledger)
        with monkeypatch.context() as patch:
            patch.setenv(SECRET, new_secret().hex())
            with pytest.raises(AuthenticationError):
                ParamServerClient(1, 1, 0, values, [(0, 10)], ledger)
        worker.start(values)
        worker.begin(WorkRange(1, 0, 0, 2, 0))
        assert [worker.draw(None, trained) for trained in range(5)] == [0, 1, 2, 3, "epoch"]
        worker.leave()
        assert server.wait(PATIENCE_S) == 0
        text = printed(server)
    assert "server 0, worker 1, 0: member 1 does not know the run's secret, in 3 of 3 attempts to connect" in text
    assert "Between processes); its connection is closed" in text


def printed(server: subprocess.Popen[str]) -> str:
    assert server.stderr is not None
    return server.stderr.read()
