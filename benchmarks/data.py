"""Batches of photographs for a usual training: random resized crops of 224 pixels, half of them mirrored.

    python benchmarks/data.py DATA            # about two minutes; --rounds 5

DATA holds imagenet-sample.zip, which is also prepared as shards of 256 pixels. Leyden's loader against torch's
DataLoader with Pillow, or with simplejpeg and OpenCV (of the extra `bench`), in this process, with threads and with
processes that stay alive, in a new random order in each round: crops of the same distribution of the same 600 images,
in batches of 64, uint8, mirrored. "alone": the same images decoded, cropped and resized in a loop, without a loader.
Figures are CPU milliseconds per image of the whole process tree, and images per second; a ratio is the median of the
rounds' ratios to the contestant of the same round with the fewest CPU milliseconds, or the most images per second.
torch and OpenCV compute with one thread, as a second one would count while it waits in a loop for work. Threads and
processes are started and warm before the first round. Writes benchmarks/results/data.json.
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import cv2  # pyright: ignore[reportMissingImports]  # an extra
import psutil
import torch
from foreign_loaders import BATCH, SIDE, Epoch, Originals, by_opencv, by_pillow, loader
from measurement import ROOT, write_subject
from rounds import in_turns

from leyden.datasets.augmentation.crops import RandomResizedCrop
from leyden.datasets.image_folder import ImageFolder
from leyden.datasets.shards.dataset import Shards
from leyden.datasets.shards.prepare import Preparation
from leyden.trainer.base.process import keep_freed_memory
from leyden.trainer.base.rng import mix
from leyden.trainer.compose.composer import Composer
from leyden.trainer.compose.validation import validate_values
from leyden.trainer.core.protocols import CroppingDataset
from leyden.trainer.data.batch_augmentation import mirror_images
from leyden.trainer.data.datamodule import ImageData

RESULT = ROOT / "benchmarks" / "results" / "data.json"
TITLE = "Photographs to batches"
TEXT = (
    "600 ImageNet photographs to batches of 64 random resized crops of 224 pixels, half of them mirrored, uint8: "
    "CPU milliseconds per image of the whole process tree, and images per second of two cores, from the originals "
    "(usually 500 x 375 pixels) and from what `leyden prepare` makes of them (shorter side 256, quality 90). The "
    "ratios are medians of the rounds', to the DataLoader with Pillow on the originals, and to the one with "
    "simplejpeg and OpenCV (INTER_AREA) on the same images, that was best in that round. OpenCV's pixels differ "
    "from Pillow's by up to 49 grey levels, Leyden's by 2 at most. Overhead: of Leyden's loader, to decoding and "
    "resizing alone in a loop, by CPU time. Its aim, at most 15 %, is missed for raw shards, where hardly anything is "
    "left to do: half of the crops are mirrored, which the loop leaves out, and all go into batches larger than a "
    "core's cache. Torch computes with one thread; processes and threads stay for all rounds."
)
COLUMNS = {
    "cpu_ms": ["CPU ms an image", ".2f"],
    "less_cpu": ["times less CPU than Pillow", ".2f"],
    "images_s": ["images/s", ",.0f"],
    "faster": ["times faster than Pillow", ".2f"],
    "opencv_cpu": ["times less CPU than OpenCV", ".2f"],
    "opencv_faster": ["times faster than OpenCV", ".2f"],
    "overhead": ["overhead", ".0%"],
}
PROCESSES = {0: "in the process itself", 1: "1 process", 2: "2 processes"}
LOADING = {
    "in the process itself": ["dataset.threads=0"],
    "1 thread": ["dataset.threads=1"],
    "2 threads": ["dataset.threads=2"],
    "2 processes": ["dataset.threads=0", "dataset.num_workers=2"],
}
ORIGINALS, JPEG, RAW = "originals", "JPEG shards", "raw shards"
KINDS: dict[str, Literal["jpeg", "raw"]] = {JPEG: "jpeg", RAW: "raw"}
Figures = Mapping[str, Sequence[tuple[float, float]]]
"""Of each contestant, in each round: CPU milliseconds per image, and images per second."""


def data_of(path: Path, *loading: str) -> ImageData:
    overrides = [
        f"dataset={'shards' if path.is_dir() else 'image_folder'}", f"dataset.root={path}", "dataset.val_fraction=0",
        "augment=imagenet", "augment.batch=null", "model=resnet50", f"batch_size={BATCH}", *loading,
    ]  # fmt: skip
    composer = Composer()
    return ImageData(validate_values(composer.freeze_values(composer.compose_with_hydra(overrides))), (0, 1))


def alone(path: Path) -> Epoch:
    """Every image decoded, cropped and resized, and nothing else: no order, no batch."""
    data = data_of(path, "dataset.threads=0")
    augment, dataset = RandomResizedCrop(), data.train_set
    assert isinstance(dataset, CroppingDataset)

    def read(epoch: int) -> int:
        for index in range(len(data.train_set)):
            key = mix(epoch, index)
            dataset.crops(index, lambda *size: [box for box, _ in augment.views(size, key)], (SIDE, SIDE))  # noqa: B023
        return len(data.train_set)

    return read


def by_leyden(path: Path, *loading: str) -> Epoch:
    data = data_of(path, *loading)

    def read(epoch: int) -> int:
        count = 0
        for part in data.train_parts(epoch):
            images, _, keys = part.batch
            count += len(mirror_images(images, keys.flips))
        return count

    return read


def cpu_seconds() -> float:
    """Of this process and those that it has started, living and ended."""
    own = psutil.Process()
    times = [own.cpu_times(), *(child.cpu_times() for child in own.children(recursive=True))]
    return sum(each.user + each.system for each in times) + times[0].children_user + times[0].children_system


def measured(read: Epoch, epoch: int) -> tuple[float, float]:
    """CPU milliseconds per image, and images per second."""
    cpu, began = cpu_seconds(), perf_counter()
    count = read(epoch)
    return 1000 * (cpu_seconds() - cpu) / count, count / (perf_counter() - began)


def against(figures: Figures, name: str, others: Sequence[str]) -> tuple[float, float]:
    """Medians over the rounds: CPU time of the cheapest of the others by its own, its speed by that of the fastest."""
    rounds = list(enumerate(figures[name]))
    cheaper = (min(figures[other][n][0] for other in others) / cpu for n, (cpu, _) in rounds)
    faster = (rate / max(figures[other][n][1] for other in others) for n, (_, rate) in rounds)
    return statistics.median(cheaper), statistics.median(faster)


def rows(figures: Figures) -> list[dict[str, Any]]:
    """A row for each contestant, as docs/figures.md has them."""
    pillow = [name for name in figures if "Pillow" in name]
    found: list[dict[str, Any]] = []
    for name, measured_rounds in figures.items():
        images = name.partition(":")[0]
        row: dict[str, Any] = {"what": name, "cpu_ms": statistics.median(cpu for cpu, _ in measured_rounds)}
        row["images_s"] = statistics.median(rate for _, rate in measured_rounds)
        row["less_cpu"], row["faster"] = against(figures, name, pillow)
        opencv = [other for other in figures if other.startswith(images) and "OpenCV" in other]
        if "Leyden" in name and opencv:
            row["opencv_cpu"], row["opencv_faster"] = against(figures, name, opencv)
        if "Leyden" in name and PROCESSES[0] in name:
            row["overhead"] = 1 / against(figures, name, [f"{images}: {ALONE}"])[0] - 1
        found.append(row | {key: round(row[key], 3) for key in COLUMNS if key in row})
    return found


def contestants_of(images: str, path: Path) -> dict[str, Epoch]:
    """By name: what reads the originals or shards at this path."""
    found: dict[str, Epoch] = {}
    if images == ORIGINALS:
        source: Any = Originals(path)
        found |= {f"DataLoader, Pillow, {name}": loader(source, by_pillow, n) for n, name in PROCESSES.items()}
    else:
        source = Shards("train", path)
    if images != RAW:
        found |= {f"DataLoader, OpenCV, {PROCESSES[n]}": loader(source, by_opencv, n) for n in (0, 2)}
    found[ALONE] = alone(path)
    found |= {f"**Leyden, {name}**": by_leyden(path, *words) for name, words in LOADING.items()}
    return {f"{images}: {name}": read for name, read in found.items()}


ALONE = "decoding and resizing alone"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    keep_freed_memory()  # as every run of Leyden's
    path = given.data / "imagenet-sample.zip"
    with tempfile.TemporaryDirectory() as folder:
        paths = {ORIGINALS: path}
        for images, kind in KINDS.items():
            paths[images] = Path(folder) / kind
            Preparation(paths[images], {"train": ImageFolder("train", path)}, format=kind).run(lambda *_: None)
        contestants = dict(chain.from_iterable(contestants_of(name, paths[name]).items() for name in paths))
        found = in_turns(contestants, given.rounds, measured)
    table = rows(found)
    for row in table:
        print(f"{row['what']:52}", *(f"{key} {row[key]:7.2f}" for key in COLUMNS if key in row))
    write_subject(RESULT, TITLE, TEXT, COLUMNS, f"python benchmarks/data.py DATA --rounds {given.rounds}", table)


if __name__ == "__main__":
    main()
