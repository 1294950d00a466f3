"""Protocol of model hopping: every message survives the wire, and a foreign connection ends nothing but itself."""

import json
import math
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from folders import MODULES
from hopping_examples import FOREIGN
from runs import TINY, summary

from leyden.trainer.cli.main import main
from leyden.trainer.hopping.messages import (
    FROM_COORDINATOR,
    FROM_WORKER,
    CopySnapshot,
    DropSnapshot,
    EndWorkers,
    LoggedHistogram,
    LoggedImage,
    LoggedMetrics,
    LoggedResult,
    SendSnapshot,
    SnapshotCopied,
    SnapshotLost,
    StartSubEpoch,
    SubEpochCompleted,
    SubEpochFailed,
    SubEpochStarted,
    WorkerLeaving,
    WorkerReady,
    WorkerStopping,
)
from leyden.trainer.hopping.snapshot import SnapshotMetadata
from leyden.trainer.launch.channel import MessageChannel
from leyden.trainer.launch.codec import MessageCodec, MessageError, encode

SNAPSHOT = SnapshotMetadata(
    number=3, trial=1, step=20, size=900, parameters=100, optimizer=200, digest="ab", file="/a/b"
)
LOG = [
    LoggedMetrics({"train/loss": 0.5, "val/loss": math.inf}, 20),
    LoggedMetrics({}, None),
    LoggedHistogram("staleness", {0: 4, 1: 5}, 20),
    LoggedImage("filters", "aGVsbG8=", 20),
    LoggedResult("run", {"optimizer.lr": 0.1, "model": "mlp", "none": None}, ["optimizer.lr"], ["val/acc"]),
]
COMPLETED = SubEpochCompleted(
    number=3, status="left", epoch=1, step=20, began=1.5e9, seconds=2.0, training=1.5, metrics={"val/acc": 0.5},
    snapshot=SNAPSHOT, log=LOG,
)  # fmt: skip
WORKERS = [
    WorkerReady(1),
    SubEpochStarted(3, 0.25),
    COMPLETED,
    replace(COMPLETED, status="done", snapshot=None, log=[]),
    SubEpochFailed(3, LOG),
    SnapshotCopied(1, 3),
    SnapshotLost(),
    WorkerStopping("preempted"),
    WorkerLeaving(),
]
COORDINATORS = [
    StartSubEpoch(4, 1, 0, [2, 0], None, SNAPSHOT, 1, None),
    StartSubEpoch(4, 1, 0, [], "halving", None, None, Path("/runs/0/checkpoints/last.ckpt")),
    SendSnapshot(3, 0, 4),
    CopySnapshot(replace(SNAPSHOT, file=None), 0, 4),
    DropSnapshot(3),
    EndWorkers("stopped", [3]),
    EndWorkers("lost", None),
]


@pytest.mark.parametrize(
    ("codec", "message"),
    [(FROM_WORKER, message) for message in WORKERS] + [(FROM_COORDINATOR, message) for message in COORDINATORS],
    ids=lambda value: type(value).__name__,
)
def test_every_message_survives_the_wire(codec: MessageCodec[Any], message: object) -> None:
    assert codec.decode(json.loads(json.dumps(encode(message)))) == message


def test_a_metric_that_is_nan_survives_the_wire() -> None:
    decoded = FROM_WORKER.decode(json.loads(json.dumps(encode(replace(COMPLETED, metrics={"val/loss": math.nan})))))
    assert isinstance(decoded, SubEpochCompleted)
    assert math.isnan(decoded.metrics["val/loss"])


def test_a_message_of_the_other_direction_is_unknown() -> None:
    with pytest.raises(MessageError, match="SendSnapshot"):
        FROM_WORKER.decode(encode(SendSnapshot(3, 0, 4)))
    with pytest.raises(MessageError, match="WorkerReady"):
        FROM_COORDINATOR.decode(encode(WorkerReady(0)))


def test_what_is_no_message_closes_the_channel() -> None:
    for line in (*FOREIGN[:5], FOREIGN[-1]):
        ours, theirs = _pair()
        with theirs:
            channel = MessageChannel(ours, FROM_WORKER)
            theirs.sendall(line + b"\n")
            assert channel.receive() == []
            assert channel.closed
            assert channel.error


def _pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        return server.accept()[0], theirs


def test_an_agent_imports_no_torch_before_it_starts_workers() -> None:
    """Its seconds would be added to those of the workers."""
    code = "import leyden.trainer.entrypoints.start, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.machine
@pytest.mark.slow
def test_a_foreign_client_does_not_end_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(MODULES))
    foreign = "dataset._target_=hopping_examples.ForeignClient"
    pipeline = ["hydra/launcher=pipeline", "topology=cpu", "topology.devices_per_node=2", "hydra.sweep.dir=mine"]
    words = [*TINY, "trainer.max_epochs=1", "trainer.enable_progress_bar=false", foreign, "seed=1,2"]
    assert main(["-m", *pipeline, *words]) == 0
    assert [summary(tmp_path / "mine" / name)["status"] for name in ("0", "1", "pipeline")] == ["done"] * 3
    errors = capfd.readouterr().err
    assert errors.count("a connection to the coordinator was closed: ") == 2 * len(FOREIGN)
    assert "unknown message type 'Nonsense'" in errors
    assert errors.count("pipeline: a connection from 127.0.0.1 was closed: another protocol") == 1, "one address"
    assert f"pipeline: {2 * len(FOREIGN)} connections were refused" in errors
