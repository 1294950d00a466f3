"""One process leads a run: simultaneous starts, expiry, takeovers, forged files, `leyden stop`."""

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from folders import SUPPORT
from lease_contenders import KINDS, written
from runs import PATIENCE_S, TINY, summary, wait_until

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.cli.main import main
from leyden.trainer.runs import lease as leading
from leyden.trainer.runs import lease_file
from leyden.trainer.runs.lease import hold_lease
from leyden.trainer.runs.lease_file import Contender
from leyden.trainer.runs.lease_record import EXPIRY_S, FILE, Lease, lease_of, read_lease

ELSEWHERE = replace(Lease.own(), host="elsewhere", pid=77, nonce="other")
LONG = [*TINY, "trainer.max_epochs=5000", "trainer.enable_progress_bar=false"]


@pytest.fixture(autouse=True)
def _no_process_is_known_to_be_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "_dead", set())


class SleepingClock:
    """Monotonic clock of the lease, which a sleep moves on at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.slept = 0.0
        monkeypatch.setattr(leading, "time", self)
        monkeypatch.setattr(lease_file, "time", self)

    def sleep(self, seconds: float) -> None:
        self.slept += seconds

    def monotonic(self) -> float:
        return time.monotonic() + self.slept


@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=pytest.mark.campaign)])
def test_one_of_twelve_simultaneous_contenders_leads(rounds: int, tmp_path: Path) -> None:
    script = SUPPORT / "lease_contenders.py"
    command = [sys.executable, str(script), str(tmp_path), str(rounds), "12"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = {f"{kind.__name__.removeprefix('_')} 1": rounds // len(KINDS) for kind in KINDS}
    assert Counter(done.stdout.splitlines()) == expected
    assert not done.stderr


def test_a_lease_is_held_once_and_removed_by_its_owner(tmp_path: Path) -> None:
    with hold_lease(tmp_path), hold_lease(tmp_path):
        assert lease_of(tmp_path) == Lease.own()
        assert os.listdir(tmp_path) == [FILE]
    assert not os.listdir(tmp_path)
    with hold_lease(tmp_path):
        written(tmp_path, ELSEWHERE)
    assert lease_of(tmp_path) == ELSEWHERE


def test_on_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    written(tmp_path, replace(Lease.own(), started=1))
    with hold_lease(tmp_path):
        assert not Contender(tmp_path / FILE, Lease.own()).take_free()
        assert os.listdir(tmp_path) == [FILE]
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("skew_s", [0, 3600, -3600])
def test_a_lease_of_another_host_is_waited_for_by_the_file_servers_clock(
    skew_s: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, ELSEWHERE, age_s=EXPIRY_S - 30)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + skew_s)
    clock = SleepingClock(monkeypatch)
    with hold_lease(tmp_path):
        assert 1 < clock.slept <= 31
    said = re.search(r"process 77 on elsewhere led it; taken over in (\d+) s unless", capsys.readouterr().err)
    assert said is not None
    assert 1 < int(said[1]) <= 30


def test_a_renewal_time_in_the_future_does_not_keep_a_lease_for_ever(tmp_path: Path) -> None:
    """As after a step of the file server's clock."""
    written(tmp_path, ELSEWHERE, age_s=-(10.0**6))
    contender, found = Contender(tmp_path / FILE, Lease.own()), read_lease(tmp_path / FILE)
    assert found is not None
    assert EXPIRY_S - 60 < contender.remaining_s(tmp_path / FILE, found) <= EXPIRY_S


def test_a_lease_that_is_renewed_is_not_taken_over(tmp_path: Path) -> None:
    written(tmp_path, ELSEWHERE, age_s=EXPIRY_S - 60)
    contender, found = Contender(tmp_path / FILE, Lease.own()), read_lease(tmp_path / FILE)
    assert found is not None
    os.utime(tmp_path / FILE)
    assert not contender.take_over(found)
    assert lease_of(tmp_path) == ELSEWHERE


def test_a_start_is_refused_once_the_other_host_renews_its_lease(tmp_path: Path) -> None:
    written(tmp_path, ELSEWHERE)
    renewal = subprocess.Popen(
        [sys.executable, "-c", f"import os, time; time.sleep(1); os.utime({str(tmp_path / FILE)!r})"]
    )
    with pytest.raises(ConfigError, match="process 77 on elsewhere leads it"), hold_lease(tmp_path):
        pass
    assert renewal.wait() == 0
    assert lease_of(tmp_path) == ELSEWHERE


@pytest.mark.parametrize(
    ("other", "taken"),
    [
        (replace(Lease.own(), started=1), True),  # the pid was reused
        (replace(Lease.own(), boot="before"), True),
        (replace(Lease.own(), pid=2**22 + 1), True),
        (replace(Lease.own(), pid=1), True),
        (replace(ELSEWHERE, job="7", restart_count=1), True),
        (replace(Lease.own(), pid=1, job="7", restart_count=1), True),
        (replace(ELSEWHERE, job="7", restart_count=2), False),
        (replace(ELSEWHERE, job="8", restart_count=1), False),
        (replace(Lease.own(), namespace=1), False),  # its pid says nothing here
    ],
)
def test_whose_lease_is_taken_at_once(
    other: Lease, taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    written(tmp_path, replace(other, nonce="other"))
    found, contender = read_lease(tmp_path / FILE), Contender(tmp_path / FILE, Lease.own())
    assert found is not None
    assert contender.is_abandoned(tmp_path / FILE, found) == taken
    if taken:
        assert contender.take_over(found)
        assert lease_of(tmp_path) == contender.lease


def test_a_lease_without_what_is_not_known_is_read(tmp_path: Path) -> None:
    """No pid namespace, no job; and its process does not hold it open."""
    own = Lease.own()
    old = {"host": own.host, "boot": own.boot, "pid": os.getppid(), "started": 1, "namespace": 0}
    (tmp_path / FILE).write_text(json.dumps(old) + "\n")
    assert lease_of(tmp_path) == Lease(own.host, own.boot, os.getppid(), 1, 0)
    with hold_lease(tmp_path):
        pass
    started = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19])
    (tmp_path / FILE).write_text(json.dumps({**old, "started": started}) + "\n")
    with pytest.raises(ConfigError, match=f"process {os.getppid()} on this host leads it"), hold_lease(tmp_path):
        pass


FORGED = [
    "", "{", "[" * 3000, "null", "7", '{"pid": 1}', f'"{"x" * 10**6}"',
    *(
        f'{{"host": {host}, "boot": "", "pid": {pid}, "started": {started}, "namespace": 0}}'
        for host, pid, started in [
            ('"h"', "-1", "-1"), ('"h"', "0", "1"), ('"h"', "true", "1"), ('"h\\u001b[2J"', "1", "1"),
            ('["h"]', "1", "1"), ('"h"', "1e3", "1"), ('"h"', "9" * 3900, "1"),
        ]
    ),
]  # fmt: skip


@pytest.mark.parametrize("text", FORGED, ids=range(len(FORGED)))
def test_what_is_no_lease(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    (tmp_path / FILE).write_text(text)
    os.utime(tmp_path / FILE, (1, 1))
    lease = lease_of(tmp_path)
    assert lease is None or len(str(lease.pid)) == 3900
    assert main(["stop", str(tmp_path)]) == 2
    assert main(["status", str(tmp_path)]) == 0
    assert "\x1b" not in "".join(capsys.readouterr())
    with hold_lease(tmp_path):
        assert lease_of(tmp_path) == Lease.own()


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE)
    assert lease_of(tmp_path) is None
    with pytest.raises(ConfigError, match=r"cannot be taken: agent\.json is no regular file"), hold_lease(tmp_path):
        pass
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(ConfigError, match="cannot be taken"), hold_lease(tmp_path):
        pass
    assert os.listdir(tmp_path) == [FILE]
    with pytest.raises(ConfigError, match="cannot be taken: No such file"), hold_lease(tmp_path / "nowhere"):
        pass


def test_stop_signals_only_a_process_that_holds_the_lease_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not one that a forged file names, nor one that has the file open to read it."""
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    (tmp_path / FILE).touch()
    code = "import sys, time; file = open(sys.argv[1], sys.argv[2]); print(flush=True); time.sleep(60)"
    for mode, stopped in (("r", False), ("r+", True)):
        command = [sys.executable, "-c", code, str(tmp_path / FILE), mode]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            started = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
            written(tmp_path, replace(Lease.own(), pid=process.pid, started=started))
            code_of_stop = main(["stop", str(tmp_path)]) if not stopped else _stopped(tmp_path, process)
            error = capsys.readouterr().err
            if stopped:
                assert process.wait(PATIENCE_S) == -15
            else:
                assert code_of_stop == 2
                assert f"process {process.pid} does not lead it, whatever agent.json says" in error
                assert process.poll() is None
                process.kill()


def _stopped(folder: Path, process: "subprocess.Popen[bytes]") -> int:
    """The code of `leyden stop` in a process of its own: this one has to reap what it ends."""
    stop = subprocess.Popen([sys.executable, "-m", "leyden", "stop", str(folder)], stdout=subprocess.DEVNULL)
    process.wait(PATIENCE_S)
    return stop.wait(PATIENCE_S)


def test_a_former_leader_ends_at_once(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from leyden.trainer.runs import lease; lease._RENEWAL_S = 0.1\n"
        "with lease.hold_lease(Path(sys.argv[1])): print(flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        before = read_lease(tmp_path / FILE)
        wait_until(lambda: read_lease(tmp_path / FILE) != before)
        (tmp_path / "new").write_text(json.dumps(asdict(ELSEWHERE)))
        (tmp_path / "new").replace(tmp_path / FILE)
        assert "process 77 on elsewhere has taken over the run" in process.communicate(timeout=PATIENCE_S)[1]
        assert process.returncode == 1
    assert lease_of(tmp_path) == ELSEWHERE


@pytest.mark.machine
@pytest.mark.slow
def test_simultaneous_starts_in_one_folder(tmp_path: Path) -> None:
    """One trains; the others are refused, and remove nothing of it."""
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "leyden", *LONG, f"hydra.run.dir={run_dir}"]
    starts = [subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) for _ in range(4)]
    try:
        wait_until(lambda: sum(start.poll() is not None for start in starts) == 3)
        (leader,) = [start for start in starts if start.poll() is None]
        others = [start for start in starts if start is not leader]
        assert [start.returncode for start in others] == [2, 2, 2]
        errors = [start.communicate()[1] for start in others]
        assert all("leyden: nothing was started, there is a mistake" in error for error in errors)
        wait_until(lambda: (run_dir / "summary.json").exists())
        assert main(["stop", str(run_dir)]) == 0
        assert leader.wait(PATIENCE_S) == 75
    finally:
        for start in starts:
            start.kill()
            start.wait()
            assert start.stderr is not None
            start.stderr.close()
    assert summary(run_dir)["status"] == "preempted"
    assert not (run_dir / FILE).exists()
