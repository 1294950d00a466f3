"""Ranks that do not see the run folder of rank 0: what they believe, by which secret, and what they write."""

import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runs import TINY, Freeze

from leyden.trainer.base.errors import CannotStart, ConfigError, refuse
from leyden.trainer.base.handshake import SECRET
from leyden.trainer.base.signals import StopRequest
from leyden.trainer.config.job import JobSpec
from leyden.trainer.engine.train import prepare
from leyden.trainer.entrypoints import external
from leyden.trainer.launch.external.announcement import Announcement
from leyden.trainer.launch.external.received_run import ReceivedRun, receive_run
from leyden.trainer.launch.external.rendezvous import ExternalRendezvous
from leyden.trainer.launch.external.starters import World
from leyden.trainer.runs.folder import FROZEN
from leyden.trainer.runs.secret import folder_mark

GIVEN = bytes(range(32))
FORGED = "model:\n  _target_: posix.system\n"


def announced(folder: Path, **changed: Any) -> Announcement:
    run = Announcement(str(folder), "train", "", "127.0.0.1", 1234, mark="of rank 0's", config="seed: 1\n")
    return replace(run, **changed).sign(GIVEN)


@pytest.fixture(autouse=True)
def given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, GIVEN.hex())


def test_the_config_that_the_secret_signs_is_written_for_this_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "outputs" / "run"
    own = receive_run(announced(folder))
    assert (own.secret, own.sees_folder) == (GIVEN, False)
    assert (folder / FROZEN).read_text() == "seed: 1\n"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert receive_run(announced(folder)).claim is None, "made by another rank of this host"
    assert own.claim is not None
    own.claim.release()
    assert not list(tmp_path.iterdir())


def test_the_folder_of_rank_0_is_known_by_its_mark(tmp_path: Path) -> None:
    run = announced(tmp_path, mark=folder_mark(tmp_path), config="")
    with pytest.raises(ConfigError, match="does not know this secret"):
        receive_run(run)
    assert receive_run(announced(tmp_path, mark=run.mark)).sees_folder
    assert not (tmp_path / FROZEN).exists()


@pytest.mark.parametrize(
    ("case", "key", "said"),
    [
        ("unseen", "hydra.run.dir", "does not see it"),
        ("another folder", "hydra.run.dir", "does not see it"),
        ("altered", SECRET, "does not know this secret"),
        ("moved", SECRET, "does not know this secret"),
        ("no secret", SECRET, "is set for rank 0, and not for this one"),
        ("no digits", SECRET, "must be 64 hexadecimal digits"),
        ("resumed", "hydra.run.dir", "every rank reads the checkpoint"),
        ("other run", "hydra.run.dir", "holds another run on this host"),
        ("no folder", "hydra.run.dir", "cannot make one there"),
    ],
)
def test_what_a_rank_does_not_believe_or_cannot_keep_is_refused_and_writes_nothing(
    case: str, key: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the rank itself, which says so to rank 0 and ends with 2."""
    folder = tmp_path / "run"
    run = announced(folder)
    match case:
        case "unseen":
            run = announced(folder, config="")
        case "another folder":
            folder.mkdir()
            folder_mark(folder)
            run = announced(folder, config="")
        case "altered":
            run = replace(run, config=FORGED)
        case "moved":
            run = replace(run, folder=str(tmp_path / "other"))
        case "no secret":
            monkeypatch.delenv(SECRET)
        case "no digits":
            monkeypatch.setenv(SECRET, "secret")
        case "resumed":
            run = announced(folder, verb="resume")
        case "other run":
            folder.mkdir()
            (folder / FROZEN).write_text("seed: 2\n")
        case _:
            folder.touch()
    before = sorted(tmp_path.rglob("*"))
    rendezvous: Any = _Rendezvous(run)
    assert external.follow(rendezvous) == 2
    (problem,) = rendezvous.refused.problems
    assert (problem.key, said in problem.text) == (key, True)
    assert problem.remedy
    assert GIVEN.hex() not in str(rendezvous.refused)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_mistake_that_another_rank_finds_first_is_a_message(freeze: Freeze, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a traceback."""

    def work(*_: object) -> int:
        raise CannotStart("there are no such images")

    monkeypatch.setattr(external, "_work", work)
    rendezvous: Any = _Rendezvous(announced(freeze("run", *TINY, "dataset=digits"), mark="", config=""))
    monkeypatch.setattr(external, "receive_run", lambda run: ReceivedRun(GIVEN, True))
    rendezvous.await_begin = lambda sees_folder: True
    with pytest.raises(ConfigError, match="there are no such images"):
        external.follow(rendezvous)


class _Rendezvous:
    """One that announces this run, and takes the refusal."""

    def __init__(self, run: Announcement):
        self._run = run

    def announcement(self) -> Announcement:
        return self._run

    def await_begin(self, sees_folder: bool, refusal: ConfigError) -> None:
        self.refused = refusal


@pytest.mark.parametrize(
    ("sees", "refusal", "servers", "expected"),
    [
        (True, None, True, True),
        (False, None, False, False),
        (False, None, True, None),
        (True, refuse(SECRET, "is not set", remedy="set it"), False, None),
    ],
)
def test_all_ranks_begin_or_none(
    sees: bool, refusal: ConfigError | None, servers: bool, expected: bool | None, tmp_path: Path
) -> None:
    began = list[bool | None]()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])

    def follow(rank: int, *answer: Any) -> None:
        with ExternalRendezvous(World("torchrun", rank, 3, None, "127.0.0.1", port)) as rendezvous:
            rendezvous.announcement()
            began.append(rendezvous.await_begin(*answer))

    others = [threading.Thread(target=follow, args=answer) for answer in ((1, True), (2, sees, refusal))]
    with ExternalRendezvous(World("torchrun", 0, 3, None, "127.0.0.1", port)) as rendezvous:
        for other in others:
            other.start()
        rendezvous.announce(announced(tmp_path))
        if expected is not None:
            assert rendezvous.begin(tmp_path, servers) is expected
        else:
            said = "rank 2: is not set" if refusal else "each parameter server saves a file"
            with pytest.raises(ConfigError, match=said):
                rendezvous.begin(tmp_path, servers)
        assert rendezvous.in_run == (expected is not None)
        for other in others:
            other.join()
    assert began == [expected, expected]


def test_workers_that_save_files_of_their_own_need_one_folder(freeze: Freeze) -> None:
    job = JobSpec.load(freeze("run", *TINY, "dataset=digits", "strategy=local_sgd", "topology=cpu"))
    with pytest.raises(CannotStart, match="its workers save files of their own"):
        prepare(replace(job, shares_folder=False), StopRequest())
