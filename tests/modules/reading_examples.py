"""Datasets and callbacks for tests of how batches are read."""

import hashlib
import random
import threading
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leyden.datasets.image_folder import ImageFolder
from leyden.trainer.core.state import RunState


class UnsafeFolder(ImageFolder):
    """Images that one thread at a time may read."""

    thread_safe = False


class Waits:
    """Float images that take a while.

    Args:
        seconds: for each image.
        fails: index of a sample that raises an error that is none of a bad sample.
    """

    classes = 4
    image_shape = (2, 3, 3)
    splits = ("train", "val")
    thread_safe = True

    def __init__(self, split: str, samples: int = 40, seconds: float = 0.0, fails: int = -1) -> None:
        self.samples = samples
        self.seconds = seconds
        self.fails = fails
        self.lock = threading.Lock()
        self.reading = self.most = 0
        self.read: list[int] = []
        self.threads: set[str] = set()

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with self.lock:
            self.reading += 1
            self.most = max(self.most, self.reading)
            self.read.append(index)
            self.threads.add(threading.current_thread().name)
        if self.seconds:
            time.sleep(self.seconds)
        with self.lock:
            self.reading -= 1
        if index == self.fails:
            raise RuntimeError(f"sample {index} is beyond repair")
        return torch.full(self.image_shape, float(index)), index % self.classes


class Draws:
    """Images of a value from each of the process's generators, as a user's transforms draw."""

    classes = 4
    image_shape = (1, 1, 4)
    splits = ("train", "val")

    def __init__(self, split: str, samples: int = 24) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        drawn = [random.randrange(256), int(np.random.randint(256)), int(torch.randint(256, ()))]
        return torch.tensor([index, *drawn], dtype=torch.uint8).view(1, 1, 4), index % self.classes


class Still(Draws):
    """Images that draw nothing."""

    thread_safe = True

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full(self.image_shape, index, dtype=torch.uint8), index % self.classes


class DrawsInstead:
    """An augmentation that draws from the process's generators in place of its key."""

    def __call__(self, image: Tensor, key: int) -> Tensor:
        return torch.cat([image[..., :1], Draws("train")[0][0][..., 1:]], dim=-1)


class RecordBatches:
    """Appends a line for each batch of the training: the step, and a digest of the pixels and label of each sample.

    Args:
        file: name of the files; each worker's ends in its rank.
        pause_s: seconds to wait after each batch.
    """

    def __init__(self, file: str, pause_s: float = 0.0) -> None:
        self.file = file
        self.pause_s = pause_s

    def on_train_batch(self, state: RunState, batch: Any) -> None:
        samples = zip(*batch[:2], strict=True)
        rows = [hashlib.sha256(image.numpy().tobytes() + label.numpy().tobytes()) for image, label in samples]
        with open(f"{self.file}.{state.fabric.global_rank}", "a") as file:
            # what a kill has cut off ends with the next line's beginning
            file.write(" ".join(["\n", str(state.step), *(row.hexdigest()[:16] for row in rows), "end"]))
        time.sleep(self.pause_s)
