"""What tests of real runs share: tiny configs, processes, waiting."""

import csv
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from folders import MODULES

from leyden.trainer.cli.main import main
from leyden.trainer.core.checkpoints import checkpoint_io
from leyden.trainer.launch import fork_server
from leyden.trainer.runs import checkpoints

TINY = ["model=mlp", "model.hidden=[16]", "dataset.image_size=8", "trainer.max_epochs=2"]
"""A training of well under a second."""
FEW = ["trainer.limit_val_batches=1", "trainer.limit_test_batches=1"]
"""Of batches that are evaluated, where the training is what is tested."""
NETS = {
    "mlp": ["model=mlp", "model.hidden=[30,22]", "dataset.image_size=8"],
    "vgg": ["model=vgg_small", "model.stages=[[4],[6]]", "model.hidden=[19,13]", "dataset.image_size=8"],
    "local_net": ["dataset.image_size=16", "augment=none", "model=local_net", "model.maps=[4,3]", "model.rf=4",
                  "model.lcn=3"],
}  # fmt: skip
"""A fully connected network, one with convolutions before its head, one of untied filters."""
VIT = [
    "model=vit_small", "model.patch=4", "model.width=16", "model.depth=2", "model.heads=2", "model.dropout=0.1",
    "dataset.image_size=8", "trainer.max_epochs=2", "trainer.limit_train_batches=4", "optimizer.lr=0.1",
]  # fmt: skip
"""A ViT of which each epoch ends with a batch that is not smaller."""
HERE = f"python_path=[{MODULES}]"
"""The tests' own classes as `_target_`."""

PATIENCE_S = 120.0
"""Of every "has happened by now": a wait that ends early costs nothing, and no verdict depends on speed."""

Freeze = Callable[..., Path]


class Processes:
    """Starts runs as processes of their own, and leaves none behind."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[str]] = []

    def start(
        self,
        run_dir: Path,
        verb: str = "train",
        prefix: Sequence[str] = (),
        checkpoint: Path | str = "",
        **environment: str,
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "leyden.trainer.entrypoints.start", str(run_dir), verb, str(checkpoint)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment},
        )
        self.started.append(process)
        return process

    def run(self, run_dir: Path, verb: str = "train") -> tuple[int, str]:
        process = self.start(run_dir, verb)
        output, _ = process.communicate(timeout=240)
        return process.returncode, output


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    """Raises AssertionError when the condition has not come true in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.05)


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed a connection; what it has sent before is read."""
    connection.setblocking(False)
    try:
        return connection.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def children(pid: int) -> list[int]:
    """Processes that a process has started and that still run, its fork server aside."""
    with suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(pid).children() if child.name() != fork_server.NAME]
    return []


def by_rank(pid: int) -> dict[int, int]:
    """Process ids of the workers of an agent that have begun, by rank."""
    names = {child: psutil.Process(child).name() for child in children(pid)}
    return {int(name[7:]): child for child, name in names.items() if name[7:].isdigit()}


def alive(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


# Hydra deletes no key whose value is null
OWN_TASK = [
    "~task.loss", "~task.label_smoothing", "task.class_weights=1", "~task.class_weights", "~task.focal_gamma",
    "task.target_threshold=0", "~task.target_threshold", "~task.metrics",
]  # fmt: skip
"""What a frozen config of a task that takes no such arguments is without."""
POINTS = [
    "dataset=synthetic", "~dataset.samples", "~dataset.classes", "~dataset.image_shape", "~model",
    "dataset._target_=lightning_examples.Points", "batch_size=8", *OWN_TASK, "trainer.max_epochs=2",
    "trainer.enable_progress_bar=false", "trainer.log_every_n_steps=1", HERE,
]  # fmt: skip
"""lightning_examples.py's own data and tasks; to be completed by task()."""


def task(name: str) -> str:
    return f"task._target_=lightning_examples.{name}"


def summary(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "summary.json").read_text())


def metrics(run_dir: Path) -> dict[str, float]:
    return summary(run_dir)["metrics"]


def rows(run_dir: Path) -> list[dict[str, str]]:
    with open(run_dir / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    """Of last.ckpt, in the layout of one device."""
    path = run_dir / "checkpoints" / "last.ckpt"
    content = checkpoint_io.read(path)
    divided = checkpoint_io.shards_of(path, content)
    return (content if divided is None else divided.put_together(content))["model"]


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Largest relative distance of two sets of tensors."""
    assert one.keys() == other.keys()
    return max(float((one[n].double() - other[n]).norm() / max(1e-30, other[n].double().norm())) for n in one)


def apart(one: Path, other: Path) -> float:
    """Largest relative distance of two runs' tensors."""
    return distance(weights(one), weights(other))


def states(capsys: pytest.CaptureFixture[str], *folders: Path) -> dict[str, dict[str, Any]]:
    """What `leyden status --json` says, by the run folder's name."""
    capsys.readouterr()
    assert main(["status", "--json", *map(str, folders)]) == 0
    return {Path(run["run"]).name: run for run in json.loads(capsys.readouterr().out)}


def cut_back(whole: Path, to: Path, step: int) -> Path:
    """A copy of a run as it was right after the checkpoint of a step, with whatever it had logged beyond."""
    shutil.copytree(whole, to)
    (to / "checkpoints" / "last.ckpt").unlink()
    for path in checkpoints.saved_checkpoints(to):
        if checkpoints.step_of(path) > step:
            path.unlink()
    return to
