"""What writing shards costs, against decoding, shrinking and encoding alone on as many threads.

    python benchmarks/prepare.py DATA         # about half a minute; --rounds 5

DATA holds imagenet-sample.zip, of which 300 photographs are written as JPEG at 256 pixels, quality 90, and as raw
pixels, with a thread for each core. Contestants take turns in a new random order in each round. Writes
benchmarks/results/prepare.json.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter, process_time
from typing import Literal

import torch
from measurement import ROOT, write_subject
from rounds import in_turns

from leyden.datasets.image_folder import ImageFolder
from leyden.datasets.shards.encode import Encoded, Encoder
from leyden.datasets.shards.prepare import Preparation

RESULT = ROOT / "benchmarks" / "results" / "prepare.json"
TITLE = "Writing shards"
TEXT = (
    "`leyden prepare size=256` of 300 ImageNet photographs in shards of 100, flushed to the disk, with a thread for "
    "each core, and decoding, shrinking and encoding alone on as many threads. Speed: medians of the rounds' ratios, "
    "by time and by CPU time of the process."
)
COLUMNS = {
    "images_s": ["images/s", ",.0f"],
    "alone": ["alone", ",.0f"],
    "time": ["speed of alone", ".0%"],
    "cpu": ["by CPU time", ".0%"],
}
IMAGES, THREADS = 300, len(os.sched_getaffinity(0))
KINDS: tuple[Literal["jpeg", "raw"], ...] = ("jpeg", "raw")


class Some:
    """Every second photograph."""

    def __init__(self, whole: ImageFolder):
        self.whole = whole
        self.classes, self.limits = whole.classes, whole.limits

    def __len__(self) -> int:
        return min(IMAGES, len(self.whole) // 2)

    def original(self, index: int) -> tuple[bytes, int]:
        return self.whole.original(2 * index)

    def name(self, index: int) -> str:
        return self.whole.name(2 * index)


def prepare(source: Some, out: Path, kind: Literal["jpeg", "raw"]) -> None:
    Preparation(out, {"train": source}, format=kind, threads=THREADS, shard_size=100).run(lambda *_: None)


def encode_alone(source: Some, kind: Literal["jpeg", "raw"]) -> None:
    encode = Encoder(kind, 256, 90, source.classes)
    with ThreadPoolExecutor(THREADS, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        found = pool.map(lambda index: encode(source, index), range(len(source)))
        assert all(isinstance(sample, Encoded) for sample in found)


def measured(job: Callable[[Path], None], number: int) -> tuple[float, float]:
    """CPU and wall seconds."""
    with tempfile.TemporaryDirectory() as folder:
        cpu, began = process_time(), perf_counter()
        job(Path(folder))
        return process_time() - cpu, perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    source = Some(ImageFolder("train", given.data / "imagenet-sample.zip"))
    rows: list[dict[str, str | float]] = []
    for kind in KINDS:
        jobs: dict[str, Callable[[Path], None]] = {
            "prepare": lambda out, kind=kind: prepare(source, out, kind),
            "alone": lambda _, kind=kind: encode_alone(source, kind),
        }
        found = in_turns(jobs, given.rounds, measured)
        rounds = list(zip(found["alone"], found["prepare"], strict=True))
        cpu, time = (statistics.median(alone[n] / own[n] for alone, own in rounds) for n in (0, 1))
        rates = {name: IMAGES / statistics.median(wall for _, wall in found[name]) for name in jobs}
        row = {"what": f"`format={kind}`", "images_s": round(rates["prepare"]), "alone": round(rates["alone"])}
        rows.append(row | {"time": round(time, 3), "cpu": round(cpu, 3)})
        print("{what}: {images_s:.0f} images/s, alone {alone:.0f}; {time:.2f}, by CPU {cpu:.2f}".format(**rows[-1]))
    write_subject(RESULT, TITLE, TEXT, COLUMNS, f"python benchmarks/prepare.py DATA --rounds {given.rounds}", rows)


if __name__ == "__main__":
    main()
