"""What a trainer adds to one training step.

    python benchmarks/step_overhead.py            # about four minutes; needs pip install -e '.[bench]'

Linear(192, 10), batch 32, SGD, one core, 1,000 steps. All contestants train on the same batches in one process, in a
new random order in each round; the figure of a contestant is the smallest of its rounds. The plain loop runs twice: the
difference is the noise of the machine. Times are microseconds a step; only differences within one table mean anything.
Two read images of `dataset=synthetic`, 8 x 8 pixels, which the others find in memory: Leyden, and a DataLoader.
"""

import argparse
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningDataModule, LightningModule
from torch import Tensor, nn

STEPS, BATCH, INPUTS, CLASSES = 1000, 32, 192, 10
Batch = tuple[Tensor, Tensor]


def batches() -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(BATCH, INPUTS, generator=generator), torch.randint(CLASSES, (BATCH,), generator=generator))
        for _ in range(STEPS + 1)
    ]


BATCHES = batches()


class Net(LightningModule):
    """The bare task: no logging."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(INPUTS, CLASSES)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class LoggingNet(Net):
    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("train/loss", loss, prog_bar=True)
        return loss


class SyntheticNet(LoggingNet):
    """The task on images (batch, 3, 8, 8): it times itself, from the first step to the last."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        TIMER.note(batch_idx)
        return super().training_step((batch[0].flatten(1), batch[1]), batch_idx)


class Timer:
    """Time from the first batch asked for to the last: 1,000 steps, without a trainer's start and end."""

    def __init__(self) -> None:
        self.began = self.ended = 0.0

    def batches(self) -> Iterator[Batch]:
        self.began = perf_counter()
        yield from BATCHES[:-1]
        self.ended = perf_counter()
        yield BATCHES[-1]

    def note(self, step: int) -> None:
        """Note that a step begins; of `STEPS` + 1."""
        if step in (0, STEPS):
            self.began, self.ended = (self.began if step else perf_counter()), perf_counter()

    @property
    def microseconds(self) -> float:
        return 1e6 * (self.ended - self.began) / STEPS


class TimedData(LightningDataModule):
    def __init__(self, timer: Timer):
        super().__init__()
        self.timer = timer

    def train_dataloader(self) -> "TimedLoader":
        return TimedLoader(self.timer)


class TimedLoader:
    def __init__(self, timer: Timer):
        self.timer = timer

    def __len__(self) -> int:
        return STEPS + 1

    def __iter__(self) -> Iterator[Batch]:
        return self.timer.batches()


TIMER = Timer()


class LeydenData(TimedData):
    def __init__(self) -> None:
        super().__init__(TIMER)


def plain(timer: Timer, folder: Path) -> None:
    net = nn.Linear(INPUTS, CLASSES)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for images, labels in timer.batches():
        optimizer.zero_grad()
        F.cross_entropy(net(images), labels).backward()
        optimizer.step()


def plain_synthetic(timer: Timer, folder: Path) -> None:
    from torch.utils.data import DataLoader

    from leyden.datasets.synthetic import Synthetic

    net = nn.Linear(INPUTS, CLASSES)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    data: Any = Synthetic("train", (STEPS + 1) * BATCH, CLASSES, (3, 8, 8))
    mean, std = torch.tensor(data.mean).view(3, 1, 1), torch.tensor(data.std).view(3, 1, 1)
    for step, (images, labels) in enumerate(DataLoader(data, BATCH, shuffle=True)):
        timer.note(step)
        optimizer.zero_grad()
        F.cross_entropy(net(((images / 255 - mean) / std).flatten(1)), labels).backward()
        optimizer.step()


def bare_fabric(timer: Timer, folder: Path) -> None:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    net = fabric.setup_module(nn.Linear(INPUTS, CLASSES))
    optimizer: Any = fabric.setup_optimizers(torch.optim.SGD(net.parameters(), lr=0.01))
    for images, labels in timer.batches():
        optimizer.zero_grad()
        fabric.backward(F.cross_entropy(net(images), labels))
        optimizer.step()


def accelerate(timer: Timer, folder: Path) -> None:
    from accelerate import Accelerator  # pyright: ignore[reportMissingImports]  # an extra

    accelerator = Accelerator(cpu=True)
    net = nn.Linear(INPUTS, CLASSES)
    net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    for images, labels in timer.batches():
        optimizer.zero_grad()
        accelerator.backward(F.cross_entropy(net(images), labels))
        optimizer.step()


def lightning_bare(timer: Timer, folder: Path) -> None:
    from lightning.pytorch import Trainer

    trainer = Trainer(
        accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(Net(), datamodule=TimedData(timer))


def lightning_default(timer: Timer, folder: Path) -> None:
    from lightning.pytorch import Trainer

    trainer = Trainer(accelerator="cpu", devices=1, max_epochs=1, default_root_dir=folder, enable_model_summary=False)
    trainer.fit(LoggingNet(), datamodule=TimedData(timer))


def leyden_bare(timer: Timer, folder: Path) -> None:
    _leyden(folder, "step_overhead.Net", "callbacks=none", "logger=none")


def leyden_default(timer: Timer, folder: Path) -> None:
    _leyden(folder, "step_overhead.LoggingNet")


def _leyden(folder: Path, task: str, *more: str) -> None:
    _run(task, folder, *_DATA, *more)


def _run(task: str, folder: Path, *more: str) -> None:
    """A run by the command."""
    from leyden.trainer.cli.main import main

    assert main([*_overrides(folder, task), *more]) == 0


def leyden_synthetic(timer: Timer, folder: Path) -> None:
    size = [f"dataset.samples={(STEPS + 1) * BATCH}", "dataset.image_shape=[3,8,8]", f"batch_size={BATCH}"]
    _run("step_overhead.SyntheticNet", folder, "dataset=synthetic", "dataset.val_fraction=0", *size)


def leyden_from_python(timer: Timer, folder: Path) -> None:
    import leyden

    leyden.train(*_overrides(folder, "step_overhead.LoggingNet"), *_DATA)


_DATA = ("dataset=synthetic", "dataset._target_=step_overhead.LeydenData")


def _overrides(folder: Path, task: str) -> list[str]:
    return [f"task._target_={task}", "model=null", "schedule=constant", "trainer.max_epochs=1",
            f"hydra.run.dir={folder / 'run'}"]  # fmt: skip


CONTESTANTS: dict[str, Callable[[Timer, Path], None]] = {
    "plain loop": plain,
    "plain loop, again": plain,
    "bare Fabric": bare_fabric,
    "Leyden, bare": leyden_bare,
    "Leyden, every default": leyden_default,
    "Leyden, leyden.train": leyden_from_python,
    "accelerate": accelerate,
    "Lightning Trainer, bare": lightning_bare,
    "Lightning Trainer, defaults": lightning_default,
    "plain loop, DataLoader of dataset=synthetic": plain_synthetic,
    "Leyden, dataset=synthetic": leyden_synthetic,
}


def measure(contestant: Callable[[Timer, Path], None]) -> float:
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        kept = os.dup(1), os.dup(2)
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        try:
            torch.manual_seed(0)
            contestant(TIMER, Path(folder))
        finally:
            for number, original in zip((1, 2), kept, strict=True):
                os.dup2(original, number)
                os.close(original)
    return TIMER.microseconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="*", help="names of contestants")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    names = [n for n in CONTESTANTS if not options.only or n in options.only or n == "plain loop"]
    best = dict.fromkeys(names, float("inf"))
    for _ in range(options.rounds):
        for name in random.sample(names, len(names)):
            best[name] = min(best[name], measure(CONTESTANTS[name]))
    base = best["plain loop"]
    print(f"{'':44}{'us a step':>10}{'added':>8}{'ratio':>8}")
    for name in names:
        print(f"{name:44}{best[name]:10.0f}{best[name] - base:8.0f}{best[name] / base:8.2f}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.modules["step_overhead"] = sys.modules["__main__"]
    main()
