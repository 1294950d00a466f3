"""Datasets and callbacks for the tests of model hopping."""

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.utils import get_original_cwd, to_absolute_path
from omegaconf import OmegaConf
from torch import Tensor

from leyden.datasets.digits import Digits
from leyden.datasets.shards.dataset import Shards
from leyden.trainer.base.handshake import inherited_secret
from leyden.trainer.hopping.rendezvous import PROTOCOL, coordinator_address
from leyden.trainer.launch.authentication import authenticate

FOREIGN = (
    b"GET / HTTP/1.1",
    b"\x80\x00\xff",
    b"[1]",
    b'{"type": "WorkerReady", "sent_at": 0}',
    b'{"type": "WorkerReady", "sent_at": 0, "rank": "x"}',
    b'{"type": "WorkerReady", "sent_at": 0, "rank": 7}',
    b'{"type": "WorkerReady", "sent_at": 0, "rank": -1}',
    b'{"type": "WorkerLeaving", "sent_at": 0}',
    b'{"type": "Nonsense", "sent_at": 0}',
)
"""Lines that are no first message of a worker."""


class Watched(Digits):
    """Logs which samples of the training set are read, and by which worker."""

    def __init__(self, log: str, split: str, image_size: int):
        super().__init__(split=split, image_size=image_size)
        self._log = Path(log) if split == "train" else None

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self._log is not None:
            with open(self._log, "a") as file:
                file.write(f"{os.environ['RANK']} {index}\n")
        return super().__getitem__(index)


class OpensLogged(Shards):
    """Logs which shards are opened, and by which worker, however they are opened."""

    def __init__(self, log: str, split: str, root: str, image_size: int):
        super().__init__(split, root, image_size)
        descriptor, root = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), str(self.root)

        def opened(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "open" and str(arguments[0]).startswith(root) and str(arguments[0]).endswith(".raw"):
                os.write(descriptor, f"{os.environ.get('RANK', 'none')} {Path(arguments[0]).name}\n".encode())

        sys.addaudithook(opened)


class ForeignClient(Digits):
    """Dataset that first connects to the coordinator as another program would; each connection must be closed."""

    def __init__(self, split: str, image_size: int):
        super().__init__(split=split, image_size=image_size)
        if split == "train" and "TORCHELASTIC_RUN_ID" in os.environ:
            for line in FOREIGN:
                assert self._answer(line, knows_secret=False) == b"", line
                assert self._answer(line, knows_secret=True) == b"", line

    @staticmethod
    def _answer(line: bytes, knows_secret: bool) -> bytes:
        host, _, port = coordinator_address().rpartition(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            if knows_secret:
                authenticate(connection, inherited_secret(), PROTOCOL, 20)
            connection.sendall(line + b"\n")
            with suppress(ConnectionResetError):
                return connection.recv(1)
            return b""


class Fails:
    """Raises in one trial."""

    def on_step_end(self, state: Any) -> None:
        if state.config.seed == 2 and state.step == 15:
            raise RuntimeError("on purpose")


class RecordsPrecision:
    """Appends in which precision torch multiplies float32 matrices to a file of the run's folder."""

    def on_epoch_end(self, state: Any) -> None:
        with open(state.run_dir / "precision", "a") as file:
            file.write(torch.get_float32_matmul_precision() + "\n")


class RecordsCalls(Callback):
    """Callback of Hydra: records its calls, and checks Hydra's helper functions meanwhile."""

    def __init__(self, file: str):
        self._file = Path(file)
        self._number = -1
        OmegaConf.register_new_resolver("shout", lambda word: f"{word}!", replace=True)

    def on_multirun_start(self, config: Any, **kwargs: Any) -> None:
        self._record("multirun starts")

    def on_job_start(self, config: Any, **kwargs: Any) -> None:
        self._number = config.hydra.job.num
        assert HydraConfig.get().job.num == self._number
        assert get_original_cwd() == os.getcwd()
        assert to_absolute_path("foo/bar") == f"{os.getcwd()}/foo/bar"
        assert Path(HydraConfig.get().runtime.output_dir).is_dir()
        self._record(f"{self._number} starts, {os.environ['LAB_WORD']}, done: {self._is_done(config)}")

    def on_job_end(self, config: Any, job_return: Any, **kwargs: Any) -> None:
        assert HydraConfig.get().job.num == config.hydra.job.num
        assert self._number == config.hydra.job.num, "each job has a callback of its own"
        self._record(f"{self._number} ends, {os.environ['LAB_WORD']}, done: {self._is_done(config)}")

    def on_multirun_end(self, config: Any, **kwargs: Any) -> None:
        self._record("multirun ends")

    def _is_done(self, config: Any) -> bool:
        return Path(config.hydra.runtime.output_dir, "summary.json").exists()

    def _record(self, line: str) -> None:
        with open(self._file, "a") as file:
            file.write(line + "\n")


class RecordsEnvironment:
    """Writes an environment variable to the run's folder."""

    def __init__(self, name: str):
        self._name = name

    def on_fit_end(self, state: Any) -> None:
        (state.run_dir / "environment").write_text(os.environ[self._name])


class Prints:
    """Prints at the end of each epoch, with control characters."""

    def on_epoch_end(self, state: Any) -> None:
        # in one piece: where Python's output is not buffered, print would write the end of the line by itself
        sys.stdout.write(f"half done\rword {state.config.seed} {state.epoch} [red]\x1b[2J\n")
        sys.stdout.flush()
