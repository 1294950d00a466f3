"""Tasks, data and callbacks of the GPU battery's runs, named in their configs by import path."""

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from leyden.trainer.strategies.butterfly.halving_doubling import ButterflyAllReduce


class Drawing(LightningModule):
    """Adds noise drawn on the device, and drops units with torch's own dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        noisy = images + 0.1 * torch.randn_like(images)
        return F.cross_entropy(F.dropout(self.net(noisy), 0.1), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class Points(LightningDataModule):
    """Random images, fixed for all runs."""

    def train_dataloader(self) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(256, 1, 8, 8, generator=generator)
        return DataLoader(
            TensorDataset(images, torch.randint(10, (256,), generator=generator)), batch_size=32, shuffle=True
        )


class MemoryAt:
    """Writes the bytes that tensors hold on the device after given steps.

    Args:
        file: JSON, by step.
        steps: optimizer steps.
    """

    def __init__(self, file: str, steps: list[int]):
        self.file = Path(file)
        self.steps = steps
        self._bytes: dict[int, int] = {}

    def on_step_end(self, state: Any) -> None:
        if state.step in self.steps:
            on_gpu = torch.cuda.is_available() and state.fabric.device.type == "cuda"
            self._bytes[state.step] = torch.cuda.memory_allocated() if on_gpu else 0
            self.file.write_text(json.dumps(self._bytes))


class HangsAt:
    """Lets the last worker wait without end after a step: the others wait for it in their next collective.

    Args:
        step: optimizer step.
    """

    def __init__(self, step: int = 3):
        self.step = step

    def on_step_end(self, state: Any) -> None:
        if state.step == self.step and state.fabric.global_rank == state.fabric.world_size - 1:
            time.sleep(3600)


class RandomSleeps:
    """Waits of random length in backward, before exchanges of a butterfly and between steps: of the stream on a GPU, of
    the thread on a CPU. What is computed does not depend on them, unless a stream does not wait for another's event.

    Args:
        part: of the places, chosen at random, at which is waited.
    """

    def __init__(self, part: float = 0.3):
        self._part = part
        self._random = random.Random(int(os.environ.get("RANK", "0")))
        self._hooked = False
        wait, exchange = self._wait, ButterflyAllReduce.average

        def average(self: ButterflyAllReduce, vector: torch.Tensor) -> None:
            wait()
            exchange(self, vector)

        ButterflyAllReduce.average = average

    def on_step_end(self, state: Any) -> None:
        if not self._hooked:
            for parameter in state.task.parameters():
                parameter.register_post_accumulate_grad_hook(lambda _: self._wait())
            self._hooked = True
        self._wait()

    def _wait(self) -> None:
        if self._random.random() > self._part:
            return
        if torch.cuda.is_available():
            torch.cuda._sleep(self._random.randrange(2_000_000))  # clock cycles, about a millisecond
        else:
            time.sleep(self._random.random() * 5e-4)
