"""Simultaneous contenders for leases, small processes that import no more than the lease: for tests/runs/test_lease.py.

`python lease_contenders.py FOLDER ROUNDS CONTENDERS` prints the leaders of each round, one line each:
the kind of start, how many processes led, and the files left.
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.runs.lease import hold_lease
from leyden.trainer.runs.lease_record import FILE, Lease, read_lease


def written(folder: Path, lease: Lease, age_s: float = 0.0) -> None:
    """Write the lease of another process, last renewed so long ago."""
    (folder / FILE).write_text(json.dumps(asdict(lease)))
    now = time.time()
    os.utime(folder / FILE, (now - age_s, now - age_s))


def _start(folder: Path) -> None:
    """Nothing has led the folder."""


def _resume(folder: Path) -> None:
    written(folder, replace(Lease.own(), started=1, nonce="dead"))


def _expired(folder: Path) -> None:
    written(folder, replace(Lease.own(), host="elsewhere", nonce="dead"), age_s=1000)


def _requeue(folder: Path) -> None:
    os.environ.update(SLURM_JOB_ID="7", SLURM_RESTART_COUNT="1")
    written(folder, replace(Lease.own(), host="lost", restart_count=0, nonce="dead"))


def _taker_died(folder: Path) -> None:
    """A process died while it took the lease of another dead one."""
    _resume(folder)
    found = read_lease(folder / FILE)
    assert found is not None
    marker = folder / f".{FILE}.{found.digest}"
    marker.write_text(json.dumps(asdict(replace(Lease.own(), started=1, nonce="taker"))))


KINDS = (_start, _resume, _expired, _requeue, _taker_died)


def _delayed(call: Callable[..., Any]) -> Callable[..., Any]:
    def later(*args: Any, **options: Any) -> Any:
        if random.random() < 0.3:
            time.sleep(random.random() * 0.004)
        return call(*args, **options)

    return later


def _with_delays() -> None:
    """Delay system calls at random, so that contenders meet in every interleaving; the calls themselves are real."""
    for name in ("link", "replace", "unlink", "open"):
        setattr(os, name, _delayed(getattr(os, name)))


def _contend(folder: Path, gate: int, results: int, end: int) -> None:
    """Contend when the gate is closed, report the result, and lead until all have reported theirs."""
    random.seed(os.getpid())
    _with_delays()
    os.read(gate, 1)
    try:
        with hold_lease(folder):
            os.write(results, b"L")
            os.read(end, 1)
    except ConfigError:
        os.write(results, b"-")


def leaders(folder: Path, kind: Callable[[Path], None], contenders: int) -> int:
    """Contend once. Returns how many processes led at the same time."""
    folder.mkdir()
    kind(folder)
    gate, opened = os.pipe()
    reading, results = os.pipe()
    end, ended = os.pipe()
    pids = []
    for _ in range(contenders):
        pid = os.fork()
        if pid == 0:
            for descriptor in (opened, reading, ended):
                os.close(descriptor)
            _contend(folder, gate, results, end)
            os._exit(0)
        pids.append(pid)
    for descriptor in (gate, results, end, opened):
        os.close(descriptor)
    reported = b""
    while len(reported) < contenders and (more := os.read(reading, 1)):
        reported += more
    os.close(ended)
    os.close(reading)
    for pid in pids:
        os.waitpid(pid, 0)
    assert len(reported) == contenders, "a contender has died"
    return reported.count(b"L")


if __name__ == "__main__":
    root, rounds, contenders = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for number in range(rounds):
        kind, folder = KINDS[number % len(KINDS)], root / str(number)
        led = leaders(folder, kind, contenders)
        print(kind.__name__.removeprefix("_"), led, *os.listdir(folder) if folder.exists() else "-", flush=True)
        for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT"):
            os.environ.pop(name, None)
