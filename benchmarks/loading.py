"""What loading costs a training: waits, the chosen number of threads, the start of a large set, memory over epochs.

    python benchmarks/loading.py DATA                 # about four minutes; five rounds where contestants take turns
    python benchmarks/loading.py DATA waits memory    # some of it: waits, threads, start, memory

DATA holds cifar10.zip and imagenet-sample.zip. The figures are written to benchmarks/results/loading.json.

waits: share of a step of ResNet-20 on CIFAR-10, batch 128, in which the loop waits for data, over the steps of a run.
threads: photographs to random resized crops of 224 pixels, by each number of threads and by the chosen one.
start: a set of 1,281,167 samples whose rows name one small image, batch 256: opening, and the batches of two epochs.
memory: the same over 20 epochs of 100,000 samples, from the end of the first on.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from measurement import ROOT, write_subject
from resnet20_cifar10 import leyden
from rounds import in_turns

from leyden.datasets.shards.index import SplitIndex, read_index, write_index, write_rows
from leyden.datasets.shards.prepare import Preparation
from leyden.trainer.base.process import keep_freed_memory
from leyden.trainer.compose.composer import Composer
from leyden.trainer.compose.validation import validate_values
from leyden.trainer.data.datamodule import ImageData

RESULT = ROOT / "benchmarks" / "results" / "loading.json"
TITLE = "Loading"
TEXT = "What loading costs a training on two cores; benchmarks/loading.py says how each is measured."
COLUMNS = {"figure": ["figure", "s"]}
ROUNDS, STEPS = 5, 30
MILLION, EPOCH, EPOCHS = 1_281_167, 100_000, 20
Row = tuple[str, str]


def data_of(*words: str) -> ImageData:
    composer = Composer()
    return ImageData(
        validate_values(composer.freeze_values(composer.compose_with_hydra(["dataset.val_fraction=0", *words]))), (0, 1)
    )


def photographs(path: Path, threads: int | str) -> ImageData:
    return data_of(
        "dataset=image_folder", f"dataset.root={path / 'imagenet-sample.zip'}", "augment=imagenet",
        "augment.batch=null", "model=resnet50", "batch_size=64", f"dataset.threads={threads}",
    )  # fmt: skip


# --- waits


def waits(path: Path) -> list[Row]:
    root, rows = f"dataset.root={path / 'cifar10.zip'}", list[Row]()
    for name, words in {
        "`augment=crop_flip`, in memory": ["augment=crop_flip"],
        "`augment=airbench`, in memory": ["augment=airbench"],
        "`dataset=image_folder`, decoded in every epoch": [
            "dataset=image_folder",
            "augment=none",
            "dataset.image_size=32",
        ],
    }.items():
        with tempfile.TemporaryDirectory() as folder:
            limits = [f"trainer.max_steps={STEPS}", "trainer.limit_val_batches=1", "trainer.limit_test_batches=1"]
            leyden(Path(folder), *limits, *words, root)
            time = json.loads((Path(folder) / "summary.json").read_text())["step_time"]
        share, step = time["data"] / time["total"], 1e3 * time["total"] / STEPS
        rows.append((f"the loop waits for data, {name}", f"{share:.2%} of a step of {step:.0f} ms"))
    return rows


# --- threads


def images_per_second(data: ImageData, epoch: int) -> float:
    began = perf_counter()
    return sum(part.samples for part in data.train_parts(epoch)) / (perf_counter() - began)


def chosen_threads(path: Path) -> list[Row]:
    torch.set_num_threads(1)
    most = len(os.sched_getaffinity(0))
    automatic = photographs(path, "auto")
    for epoch in range(4):  # it has chosen by then
        images_per_second(automatic, epoch)
    batches = automatic._loading._threads
    assert batches is not None
    chosen = batches._threads.limit
    contestants = {str(number): photographs(path, number) for number in range(1, most + 1)}
    found = in_turns({**contestants, "auto": automatic}, ROUNDS, images_per_second)
    best = [max(found[name][n] for name in contestants) for n in range(ROUNDS)]
    ratio = statistics.median(one / other for one, other in zip(found["auto"], best, strict=True))
    for data in (*contestants.values(), automatic):
        data.close()
    return [("speed of `dataset.threads=auto` relative to the best number", f"{ratio:.2f} ({chosen} of 1 to {most})")]


# --- one image under many names


def repeated(folder: Path, samples: int) -> Path:
    """A set of so many samples that are one image of 8 x 8 pixels."""

    class One:
        classes = 1

        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return torch.arange(192, dtype=torch.uint8).view(3, 8, 8), 0

    Preparation(folder, {"train": One()}).run(lambda *_: None)
    found = read_index(folder)
    assert found is not None
    split = found.splits["train"]
    row = np.load(folder / split.file)
    crc = write_rows(folder / split.file, [np.repeat(row, samples)])
    shard = split.shards[0].model_copy(update={"samples": samples})
    many = SplitIndex(file=split.file, crc32=crc, samples=samples, shards=[shard])
    write_index(folder, found.model_copy(update={"splits": {"train": many}}))
    return folder


def small(root: Path, *words: str) -> ImageData:
    shards = ["dataset=shards", "augment=none", f"dataset.root={root}"]
    return data_of(*shards, "dataset.image_size=8", "model=mlp", *words)


def start(path: Path) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        root = repeated(Path(folder) / "set", MILLION)
        seconds, memory = opened(root)
        data = small(root, "batch_size=256")
        firsts, others = list[float](), list[float]()
        for epoch in range(3):
            parts, took = data.train_parts(epoch, 0, 200), list[float]()
            while True:
                began = perf_counter()
                if next(parts, None) is None:
                    break
                took.append(1e3 * (perf_counter() - began))
            firsts, others = [*firsts, took[0]], [*others, *took[1:]]
        data.close()
    later = f"{firsts[1]:.0f} ms; the other batches {statistics.median(others):.0f}, at most {max(others):.0f} ms"
    return [
        (f"a set of {MILLION:,} samples is opened", f"{seconds:.2f} s, {memory:.0f} MB"),
        ("its first batch of 256 in the second epoch comes after", later),
    ]


OPENED = """
import sys, time
from leyden.datasets.shards.dataset import Shards
import torch
def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")) / 1024
little = Shards("train", sys.argv[2])
memory, began = resident(), time.perf_counter()
data = Shards("train", sys.argv[1])
print(time.perf_counter() - began, resident() - memory)
"""


def opened(root: Path) -> tuple[float, float]:
    """Seconds, and megabytes of resident memory, in a process that has opened a small set."""
    with tempfile.TemporaryDirectory() as folder:
        little = repeated(Path(folder) / "set", 4)
        found = [
            list(map(float, subprocess.check_output([sys.executable, "-c", OPENED, root, little]).split()))
            for _ in range(ROUNDS)
        ]
    return statistics.median(each[0] for each in found), statistics.median(each[1] for each in found)


# --- memory


def resident() -> float:
    """Megabytes of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def memory(path: Path) -> list[Row]:
    torch.set_num_threads(1)
    keep_freed_memory()  # as every run
    with tempfile.TemporaryDirectory() as folder:
        data = small(repeated(Path(folder) / "set", EPOCH), "batch_size=256", "dataset.threads=2")
        held = list[float]()
        for epoch in range(EPOCHS):
            assert sum(part.samples for part in data.train_parts(epoch)) == EPOCH
            held.append(resident())
        data.close()
    grown = f"{held[-1] - held[0]:+.1f} MB (at most {max(held) - held[0]:+.1f})"
    return [(f"resident memory over {EPOCHS} epochs of {EPOCH:,} samples, from the end of the first on", grown)]


PARTS: dict[str, Callable[[Path], list[Row]]] = {
    "waits": waits, "threads": chosen_threads, "start": start, "memory": memory
}  # fmt: skip


def write(found: Sequence[Row], command: str) -> None:
    """Write the figures down, in place of earlier ones of the same kind."""
    before: list[dict[str, Any]] = []
    if RESULT.exists():
        (earlier,) = json.loads(RESULT.read_text())["measurements"]
        origin = {name: earlier[name] for name in ("date", "commit")}
        before = [origin | row for row in earlier["rows"] if row["what"] not in dict(found)]
    new = [{"what": what, "figure": figure} for what, figure in found]
    write_subject(RESULT, TITLE, TEXT, COLUMNS, command, [*before, *new])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    given = parser.parse_args()
    found = list[Row]()
    for name in given.parts or PARTS:
        for row in PARTS[name](given.data.absolute()):
            print(f"{row[0]}: {row[1]}", flush=True)
            found.append(row)
    write(found, "python benchmarks/loading.py DATA")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
