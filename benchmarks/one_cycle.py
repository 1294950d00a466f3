"""`experiment=resnet20_cifar10_short` in 10 epochs and a hand-written loop with the same recipe: accuracy and curves.

    python benchmarks/one_cycle.py --root PATH        # an hour of two slow cores

Both run at once, a thread each: two threads train a network of this size hardly faster than one. PATH is what
`dataset.root` takes. Started again after an interruption it goes on where it was. Both logs stay in outputs/one_cycle:
Leyden's run folder `leyden`, and `plain.csv` with a line an epoch. Writes benchmarks/results/one_cycle.json and
docs/images/one_cycle.svg; `python benchmarks/figures.py` then writes the page. The hand-written loop draws its own
order and its own crops. Time is compared by `resnet20_cifar10.py speed`, interleaved: what else the machine does in an
hour decides these minutes.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from measurement import ROOT, write_subject
from resnet20_cifar10 import BATCH, plain_epoch, plain_test

from leyden.datasets.cifar10 import CIFAR10
from leyden.models.resnet_cifar import ResNetCIFAR

EPOCHS = 10
RESULT = ROOT / "benchmarks" / "results" / "one_cycle.json"
PICTURE = ROOT / "docs" / "images" / "one_cycle.svg"
TITLE = "ResNet-20 on CIFAR-10 in one cycle"
TEXT = (
    "`experiment=resnet20_cifar10_short`, {epochs} epochs of the whole training set, and a hand-written loop with the "
    "same recipe, one run each.\n\n![Training accuracy by epoch](images/one_cycle.svg)"
)
COLUMNS = {"test": ["test accuracy", ".2%"], "train": ["training accuracy, last epoch", ".2%"]}
COLOURS = {"Leyden": "#285abe", "hand-written loop": "#c83c28"}
Measured = tuple[dict[str, object], list[float]]
"""A row of the table, and the training accuracy of each epoch."""


def by_leyden(root: str, epochs: int, out: Path) -> Measured:
    folder = out / "leyden"
    words = ["experiment=resnet20_cifar10_short", f"dataset.root={root}", f"trainer.max_epochs={epochs}",
             f"hydra.run.dir={folder}", "topology.on_existing=resume"]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    code = subprocess.run([sys.executable, "-m", "leyden", *words], env=environment, check=False).returncode
    if code:
        sys.exit(f"the run ended with exit code {code}; the same command goes on with it")
    summary = json.loads((folder / "summary.json").read_text())
    with open(folder / "metrics.csv", newline="") as file:
        curve = [float(row["train/acc"]) for row in csv.DictReader(file) if row["train/acc"]]
    return {"what": "Leyden", "test": summary["metrics"]["test/acc"], "train": curve[-1]}, curve


def by_hand(root: str, epochs: int, out: Path) -> Measured:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data, kept_state, log = CIFAR10("train", root), out / "plain.pt", out / "plain.csv"
    net = ResNetCIFAR(10, (3, 32, 32))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.4, momentum=0.9, weight_decay=1e-4)
    steps = epochs * -(-len(data) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.4, steps, cycle_momentum=False)
    curve: list[float] = []
    if kept_state.exists():
        kept = torch.load(kept_state, weights_only=True)
        for part, state in zip((net, optimizer, schedule), kept["parts"], strict=True):
            part.load_state_dict(state)
        torch.set_rng_state(kept["rng"])
        curve = kept["curve"]
    while len(curve) < epochs:
        curve.append(plain_epoch(net, optimizer, schedule, data, torch.arange(len(data))))
        parts = [part.state_dict() for part in (net, optimizer, schedule)]
        torch.save({"parts": parts, "rng": torch.get_rng_state(), "curve": curve}, kept_state)
        log.write_text("epoch,train/acc\n" + "".join(f"{n},{value}\n" for n, value in enumerate(curve)))
        print(f"hand-written loop, epoch {len(curve)} of {epochs}: training accuracy {curve[-1]:.4f}", flush=True)
    test = plain_test(net, CIFAR10("test", root))
    return {"what": "hand-written loop", "test": test, "train": curve[-1]}, curve


def svg(curves: Mapping[str, Sequence[float]]) -> str:
    """Curves by epoch, from 0 to 1."""
    width, height, left, bottom, top = 640, 360, 50, 40, 16
    across = (width - left - 16) / max(1, max(map(len, curves.values())) - 1)
    down = height - bottom - top
    text = '<text x="{:.0f}" y="{:.0f}" font-family="sans-serif" font-size="12" fill="{}">{}</text>'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
             f'<rect width="{width}" height="{height}" fill="white"/>']  # fmt: skip
    for part in range(6):
        y = top + down * (1 - part / 5)
        lines.append(f'<path d="M{left} {y:.1f}H{width - 16}" stroke="#ddd"/>')
        lines.append(text.format(10, y + 4, "black", f"{20 * part} %"))
    for number, (name, values) in enumerate(curves.items()):
        points = " ".join(f"{left + n * across:.1f},{top + down * (1 - value):.1f}" for n, value in enumerate(values))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>')
        lines.append(text.format(width - 160, height - bottom - 40 + 18 * number, COLOURS[name], name))
    lines.append(text.format(width / 2 - 90, height - 12, "black", "epoch; training accuracy"))
    return "\n".join([*lines, "</svg>\n"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True)
    parser.add_argument(
        "--epochs", type=int, default=EPOCHS, help=f"other than {EPOCHS}: a trial, which writes no figure"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "one_cycle")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    arguments = os.path.abspath(options.root), options.epochs, options.out
    with ThreadPoolExecutor() as threads:
        running = [threads.submit(way, *arguments) for way in (by_leyden, by_hand)]
        measured = [future.result() for future in running]
    curves = {str(row["what"]): curve for row, curve in measured}
    for row, _ in measured:
        print("{what:20} test {test:.4f}  training {train:.4f}".format(**row))
    picture = PICTURE if options.epochs == EPOCHS else options.out / PICTURE.name
    picture.write_text(svg(curves))
    if options.epochs == EPOCHS:
        rows = [row for row, _ in measured]
        command = "python benchmarks/one_cycle.py --root PATH"
        write_subject(RESULT, TITLE, TEXT.format(epochs=EPOCHS), COLUMNS, command, rows)


if __name__ == "__main__":
    main()
