"""Batches of CIFAR-10's crops and mirrors on the CPU, from images in memory.

    python benchmarks/crop_flip.py            # some seconds; --rounds 5

Crops of 32 pixels out of images padded by 4, half of them mirrored, in batches of 128, uint8, by one thread. Leyden's
whole batches against one sample at a time as in its versions before (bit-equal), and against torch's DataLoader with
transforms in Python, of tensors and of Pillow's images (what torchvision's transforms do to its CIFAR10, without their
own cost); contestants in a new random order in each round. Figures are CPU microseconds per image; the ratio is the
median of the rounds' to whole batches. The pixels are random bytes, on which the time does not depend. Writes
benchmarks/results/crop_flip.json.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from measurement import ROOT, write_subject
from PIL import Image, ImageOps
from rounds import in_turns
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import DataLoader

from leyden.datasets.augment import CropFlip
from leyden.datasets.cifar10 import CIFAR10
from leyden.trainer.base.process import keep_freed_memory
from leyden.trainer.base.rng import mix_each
from leyden.trainer.data.batch_reader import BatchSource, SampleBatches, WholeBatches
from leyden.trainer.data.collation import CollateSamples
from leyden.trainer.data.splits import ImageAugmentation, Reader, plain_sample

BATCH, IMAGES = 128, 10_000
RESULT = ROOT / "benchmarks" / "results" / "crop_flip.json"
TITLE = "Crops and mirrors of CIFAR-10"
TEXT = (
    "Crops of 32 pixels out of images padded by 4, half of them mirrored, in batches of 128, uint8, from images in "
    "memory, by one thread: CPU microseconds per image, and the median of the ratios of five rounds."
)
COLUMNS = {"us": ["CPU \u00b5s an image", ".1f"], "ratio": ["times whole batches", ".2f"]}


def data(folder: Path) -> CIFAR10:
    """Random bytes in the form of CIFAR-10."""
    generator = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        records = generator.integers(0, 256, (IMAGES // 5, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        (folder / name).write_bytes(records.tobytes())
    return CIFAR10("train", folder)


class Transforms:
    """What a user writes: each image padded, cropped and mirrored on its own."""

    def __init__(self, images: CIFAR10):
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = self.images[index]
        padded = pad(image, (4, 4, 4, 4))
        top, left = torch.randint(9, (2,)).tolist()
        image = padded[:, top : top + 32, left : left + 32]
        return image.flip(2) if torch.rand(()) < 0.5 else image, label


class PillowTransforms(Transforms):
    """The same by Pillow, to which each image is converted first."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = self.images[index]
        padded = ImageOps.expand(Image.fromarray(image.permute(1, 2, 0).numpy()), 4)
        top, left = torch.randint(9, (2,)).tolist()
        part = padded.crop((left, top, left + 32, top + 32))
        if torch.rand(()) < 0.5:
            part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(part)).permute(2, 0, 1), label


def by_source(source: BatchSource) -> Callable[[], Iterator[Tensor]]:
    def read() -> Iterator[Tensor]:
        order = torch.randperm(IMAGES)
        for batch in order.split(BATCH):
            indices = batch.tolist()
            yield source.read(list(zip(indices, mix_each((0, 0), indices), strict=True))).batch[0]

    return read


def measured(contestant: Callable[[], Iterator[Tensor]], number: int) -> float:
    """CPU microseconds an image."""
    began = process_time()
    assert sum(len(batch) for batch in contestant()) == IMAGES
    return 1e6 * (process_time() - began) / IMAGES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    keep_freed_memory()  # as in every run of Leyden's; it serves all contestants
    with tempfile.TemporaryDirectory() as folder:
        images: Any = data(Path(folder))
    augment = CropFlip()
    single = SampleBatches(Reader(images, plain_sample, True, ImageAugmentation(augment)), CollateSamples())
    loader = DataLoader(Transforms(images), BATCH, shuffle=True)  # pyright: ignore[reportArgumentType]
    pillow = DataLoader(PillowTransforms(images), BATCH, shuffle=True)  # pyright: ignore[reportArgumentType]
    contestants: dict[str, Callable[[], Iterator[Tensor]]] = {
        "**Leyden, whole batches**": by_source(WholeBatches(images, augment)),
        "Leyden, one sample at a time": by_source(single),
        "DataLoader, transforms of tensors": lambda: (batch for batch, _ in loader),
        "DataLoader, transforms of Pillow's images": lambda: (batch for batch, _ in pillow),
    }
    found = in_turns(contestants, rounds, measured)
    best = found["**Leyden, whole batches**"]
    rows: list[dict[str, str | float]] = []
    for name, times in found.items():
        ratio = statistics.median(one / other for one, other in zip(times, best, strict=True))
        rows.append({"what": name, "us": round(statistics.median(times), 1), "ratio": round(ratio, 2)})
        print("{what:44}{us:8.1f} us an image{ratio:8.2f}".format(**rows[-1]))
    write_subject(RESULT, TITLE, TEXT, COLUMNS, f"python benchmarks/crop_flip.py --rounds {rounds}", rows)


if __name__ == "__main__":
    main()
