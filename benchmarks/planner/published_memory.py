"""Published peaks of GPUs' memory beside the planner's, for the rows whose network Leyden has.

    python benchmarks/planner/published_memory.py   # writes benchmarks/results/planner_gpu_memory.json

Rows of device memory in use are compared with the counted tensors and the stated reserve (context, pool), rows of the
allocator's peak with the counted tensors alone. Rows with DistributedDataParallel hold its buckets in addition.
"""

import csv
import sys
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

FOLDER = Path(__file__).parent
sys.path.append(str(FOLDER.parent))

from hydra import compose, initialize_config_module  # noqa: E402
from measurement import ROOT, write_subject  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402

from leyden.trainer.compose.validation import validate_values  # noqa: E402
from leyden.trainer.planner.memory_reserve import reserve  # noqa: E402
from leyden.trainer.planner.work import StepCounter  # noqa: E402

GIB = 2**30
COLUMNS = {
    "measured": ("published, GiB", ".2f"), "planned": ("planned, GiB", ".2f"), "error": ("error", "+.1%"),
    "counted": ("tensors, GiB", ".2f"), "reserve": ("reserve, GiB", ".2f"),
}  # fmt: skip


def main() -> None:
    with open(FOLDER / "published" / "memory.csv", newline="") as file:
        all_rows = [row for row in csv.DictReader(file) if not row["note"].startswith("EXCLUDE")]
    rows = [compared(row) for row in all_rows if row["model"].split()[0] in ("resnet50", "resnet101")]
    errors = [row["error"] for row in rows]
    low = sum(error < -0.05 for error in errors)
    text = (
        f"Of the {len(all_rows)} published rows that are not excluded, the {len(rows)} whose network Leyden has. "
        "Memory in use: counted tensors and the reserve of a CUDA device (1.6 GiB, and a fifth of the tensors), two "
        "constants that were read off the A100's rows; the H100's were not used. Allocator peaks: counted tensors "
        f"alone, without the buckets of DDP. Error of the median {median(errors):+.1%}; {low} rows are more than "
        f"5 % too low, the worst are {min(errors):+.1%} and {max(errors):+.1%}."
    )
    file = ROOT / "benchmarks" / "results" / "planner_gpu_memory.json"
    command = "python benchmarks/planner/published_memory.py"
    write_subject(file, "Memory that a plan counts, and published GPUs", text, COLUMNS, command, rows)
    print(text)


def compared(row: dict[str, str]) -> dict[str, Any]:
    plain = "TSN" in row["model"]
    counter = counter_of(row["model"].split()[0], 400 if plain else 1000, "amp" in row["precision"], row["optimizer"])
    counted = counter.count(int(row["batch"]))[1].total
    added = reserve(counter.config, counted) if "context included" in row["counted"] else 0.0
    measured = float(row["peak_GB"])
    planned = (counted + added) / GIB
    return {
        "what": row["id"], "measured": measured, "planned": planned, "error": planned / measured - 1,
        "counted": counted / GIB, "reserve": added / GIB,
    }  # fmt: skip


@cache
def counter_of(model: str, classes: int, mixed: bool, optimizer: str) -> StepCounter:
    momentum = [] if "momentum (" in optimizer or optimizer == "SGD momentum" else ["optimizer.momentum=0"]
    words = [
        f"model={model}", "dataset=synthetic", "dataset.image_shape=[3,224,224]", f"dataset.classes={classes}",
        "topology.device.kind=cuda", f"trainer.precision={'16-mixed' if mixed else '32-true'}",
    ]  # fmt: skip
    with initialize_config_module("leyden.conf", version_base=None):
        composed = compose("train", overrides=[*words, *momentum])
    values = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(values, dict)
    return StepCounter(validate_values({str(key): value for key, value in values.items()}))


if __name__ == "__main__":
    main()
