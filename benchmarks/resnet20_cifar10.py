"""ResNet-20 on CIFAR-10: Leyden against a hand-written PyTorch loop, time and accuracy.

    python benchmarks/resnet20_cifar10.py speed --root PATH       # time of a step, same tensors, same threads
    python benchmarks/resnet20_cifar10.py accuracy --root PATH --epochs 2 --seeds 0 1 2

PATH is what `dataset.root` takes: the official binary files, or class folders in a directory or .zip.
Recipe of both: SGD 0.1, momentum 0.9, weight decay 5e-4, batch 128, cosine to 0 by steps, crop of 4 and mirror, the
fixed 45,000 / 5,000 split of `dataset=cifar10`. The hand-written loop draws its own order and its own crops.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import torch
import torch.nn.functional as F
import yaml
from lightning.pytorch import LightningDataModule
from torch import Tensor, nn

from leyden.datasets.cifar10 import CIFAR10
from leyden.models.resnet_cifar import ResNetCIFAR

BATCH = 128
STEPS = 30
Batch = tuple[Tensor, Tensor]


class Prepared:
    """Normalized batches, made once; keeps the time from the first asked for to the last."""

    batches: list[Batch]
    seconds = 0.0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        began = perf_counter()
        yield from self.batches[:-1]
        Prepared.seconds = perf_counter() - began
        yield self.batches[-1]


PREPARED = Prepared()


class PreparedData(LightningDataModule):
    classes = 10
    image_shape = (3, 32, 32)

    def train_dataloader(self) -> Prepared:
        return PREPARED


def normalized(images: Tensor) -> Tensor:
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (CIFAR10.mean, CIFAR10.std))
    return images.float().div(255).sub(mean).div(std)


def optimizer_of(net: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)


def plain_steps() -> float:
    torch.manual_seed(0)
    net = ResNetCIFAR(10, (3, 32, 32))
    optimizer = optimizer_of(net)
    for images, labels in PREPARED:
        optimizer.zero_grad()
        F.cross_entropy(net(images), labels).backward()
        optimizer.step()
    return Prepared.seconds


def leyden(folder: Path, *overrides: str, dataset: str | None = None) -> dict[str, float]:
    """A run with the recipe; its final metrics."""
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    from leyden.trainer.entrypoints.start import start

    recipe = ["dataset=cifar10", "model=resnet20", "optimizer.lr=0.1", f"batch_size={BATCH}", *overrides]
    with initialize_config_module("leyden.conf", version_base=None):
        config = OmegaConf.to_container(compose("train", overrides=recipe), resolve=True)
    assert isinstance(config, dict)
    config.pop("hydra", None)
    if dataset is not None:
        config["dataset"].pop("root")
        config["dataset"]["_target_"] = dataset
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert start(folder) == 0
    return json.loads((folder / "summary.json").read_text())["metrics"]


def leyden_steps() -> float:
    with tempfile.TemporaryDirectory() as folder:
        leyden(Path(folder), "trainer.max_epochs=1", "dataset.root=none", dataset="resnet20_cifar10.PreparedData")
    return Prepared.seconds


def speed(root: str, rounds: int) -> None:
    data = CIFAR10("train", root)
    images, labels = normalized(data.images[: BATCH * (STEPS + 1)]), torch.tensor(data.labels[: BATCH * (STEPS + 1)])
    PREPARED.batches = list(zip(images.split(BATCH), labels.split(BATCH), strict=True))
    plain_steps()
    pairs = [(plain_steps(), leyden_steps()) for _ in range(rounds)]
    for theirs, ours in pairs:
        milliseconds = [1e3 * seconds / STEPS for seconds in (theirs, ours)]
        print("ms a step: plain {:7.1f}   Leyden {:7.1f}   ratio {:.3f}".format(*milliseconds, ours / theirs))
    print(f"median ratio {statistics.median(ours / theirs for theirs, ours in pairs):.3f}")


def cropped_and_mirrored(images: Tensor) -> Tensor:
    padded = F.pad(images, (4, 4, 4, 4))
    rows, columns = torch.randint(9, (2, len(images)))
    mirrored = torch.rand(len(images)) < 0.5
    result = torch.empty_like(images)
    for number, (row, column) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
        crop = padded[number, :, row : row + 32, column : column + 32]
        result[number] = crop.flip(2) if mirrored[number] else crop
    return result


def plain_epoch(
    net: nn.Module, optimizer: torch.optim.Optimizer, schedule: torch.optim.lr_scheduler.LRScheduler, data: CIFAR10,
    kept: Tensor,
) -> float:  # fmt: skip
    """Train on the samples with these indices once, in a random order. Returns the training accuracy."""
    labels, right = torch.tensor(data.labels), 0.0
    net.train()
    for batch in kept[torch.randperm(len(kept))].split(BATCH):
        optimizer.zero_grad()
        scores = net(normalized(cropped_and_mirrored(data.images[batch])))
        F.cross_entropy(scores, labels[batch]).backward()
        optimizer.step()
        schedule.step()
        right += float((scores.argmax(1) == labels[batch]).sum())
    return right / len(kept)


def plain_test(net: nn.Module, test: CIFAR10) -> float:
    net.eval()
    with torch.no_grad():
        predicted = torch.cat([net(normalized(images)).argmax(1) for images in test.images.split(500)])
    return float((predicted == torch.tensor(test.labels)).double().mean())


def plain_accuracy(root: str, epochs: int, seed: int) -> float:
    torch.manual_seed(seed)
    data = CIFAR10("train", root)
    kept = torch.randperm(len(data), generator=torch.Generator().manual_seed(12345))[: round(0.9 * len(data))]
    net = ResNetCIFAR(10, (3, 32, 32))
    optimizer = optimizer_of(net)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * -(-len(kept) // BATCH))
    for _ in range(epochs):
        plain_epoch(net, optimizer, schedule, data, kept)
    return plain_test(net, CIFAR10("test", root))


def accuracy(root: str, epochs: int, seeds: list[int]) -> None:
    plain, ours = [], []
    for seed in seeds:
        plain.append(plain_accuracy(root, epochs, seed))
        with tempfile.TemporaryDirectory() as folder:
            recipe = [f"seed={seed}", f"trainer.max_epochs={epochs}", f"dataset.root={root}", "augment=crop_flip"]
            metrics = leyden(Path(folder), *recipe)
        ours.append(metrics["test/acc"])
        print(f"seed {seed}: test accuracy plain {plain[-1]:.4f}  Leyden {ours[-1]:.4f}", flush=True)
    print(f"mean: plain {statistics.mean(plain):.4f}  Leyden {statistics.mean(ours):.4f}")
    if len(seeds) > 1:
        print(f"standard deviation: plain {statistics.stdev(plain):.4f}  Leyden {statistics.stdev(ours):.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "accuracy"])
    parser.add_argument("--root", required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    root = os.path.abspath(options.root)
    if options.what == "speed":
        speed(root, options.rounds)
    else:
        accuracy(root, options.epochs, options.seeds)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.modules["resnet20_cifar10"] = sys.modules["__main__"]
    main()
