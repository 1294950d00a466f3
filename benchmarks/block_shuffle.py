"""Accuracy with `dataset.shuffling=blocks` against a global shuffle, where the samples of a class lie together.

    python benchmarks/block_shuffle.py DATA --seeds 0 1      # about seven minutes on two cores

DATA holds cifar10.zip, whose 50,000 training images are written as shards, class after class. ResNet-20 on images
shrunk to 16 x 16 (a quarter of the computation), batch 128, two epochs of the recipe of
benchmarks/resnet20_cifar10.py. Results are kept in --keep, by seed and contestant; the same command goes on with what
is missing, and writes benchmarks/results/block_shuffle.json at the end.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from measurement import ROOT, write_subject
from resnet20_cifar10 import leyden

from leyden.datasets.cifar10 import CIFAR10
from leyden.datasets.shards.prepare import Preparation

RESULT = ROOT / "benchmarks" / "results" / "block_shuffle.json"
TITLE = "Shuffling by blocks"
TEXT = (
    "ResNet-20, two epochs on CIFAR-10 at 16 x 16, in shards in which the images of a class lie together, as class "
    "folders give them: the worst order there is for blocks. Test accuracy, the same seeds for all."
)
COLUMNS = {"accuracy": ["test accuracy, %", "s"], "difference": ["to the global shuffle, points", "s"]}
BLOCKS = "dataset.shuffling=blocks"
CONTESTANTS = {
    "`shuffling=global`": [],
    "`shuffling=blocks`, buffers of 128 blocks of 64 (the default)": [BLOCKS],
    "buffers of 32 blocks of 256": [BLOCKS, "dataset.shuffle_buffer=32", "dataset.shuffle_block=256"],
    "buffers of 4 blocks of 256": [BLOCKS, "dataset.shuffle_buffer=4", "dataset.shuffle_block=256"],
}
"""The last two with the first seed only."""
BY_ONE_SEED = 2


def accuracy(shards: Path, seed: int, words: list[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        metrics = leyden(
            Path(folder), "dataset=shards", f"dataset.root={shards}", "dataset.image_size=16",
            "trainer.limit_val_batches=1", "augment=crop_flip", "augment.padding=2", f"seed={seed}",
            "trainer.max_epochs=2", *words,
        )  # fmt: skip
    return 100 * metrics["test/acc"]


def write(found: dict[str, float], seeds: list[int]) -> None:
    rows: list[dict[str, Any]] = []
    usual = [found[f"{seed} {next(iter(CONTESTANTS))}"] for seed in seeds]
    for name in CONTESTANTS:
        values = [found[f"{seed} {name}"] for seed in seeds if f"{seed} {name}" in found]
        apart = [value - other for value, other in zip(values, usual, strict=False)]
        row = {"what": name, "accuracy": ", ".join(f"{value:.1f}" for value in values)}
        rows.append(row | {"difference": f"{statistics.mean(apart):+.1f}" if any(apart) else ""})
    command = f"python benchmarks/block_shuffle.py DATA --seeds {' '.join(map(str, seeds))}"
    write_subject(RESULT, TITLE, TEXT, COLUMNS, command, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "leyden-block-shuffle.json")
    parser.add_argument("--runs", type=int, default=1000, help="trainings of this call, at most")
    given = parser.parse_args()
    found: dict[str, float] = json.loads(given.keep.read_text()) if given.keep.exists() else {}
    wanted = {
        f"{seed} {name}": (seed, words)
        for n, seed in enumerate(given.seeds)
        for name, words in list(CONTESTANTS.items())[: BY_ONE_SEED if n else None]
    }
    missing = [key for key in wanted if key not in found]
    with tempfile.TemporaryDirectory() as folder:
        shards = Path(folder) / "shards"
        root = given.data.absolute() / "cifar10.zip"
        if missing:
            Preparation(shards, {split: CIFAR10(split, root) for split in ("train", "test")}).run(lambda *_: None)
        for key in missing[: given.runs]:
            found[key] = accuracy(shards, *wanted[key])
            given.keep.write_text(json.dumps(found))
            print(f"{key}: {found[key]:.2f} %", flush=True)
    if all(key in found for key in wanted):
        write(found, given.seeds)


if __name__ == "__main__":
    main()
