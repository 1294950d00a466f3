"""Peak memory of a training step: what the planner counts on fake tensors, beside what PyTorch's allocator measured.

    python benchmarks/planner/memory.py            # all cells; writes benchmarks/results/planner_memory.json
    python benchmarks/planner/memory.py lenet5     # one model, printed

A cell is a run of Leyden in a process of its own, on the CPU. torch.profiler records every allocation and release of
the CPU's allocator from before the network is built; the peak is the most that is held during the third optimizer
step, which knows nothing of the planner's storages.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

FOLDER = Path(__file__).parent
sys.path.append(str(FOLDER.parent))

from measurement import ROOT, write_subject  # noqa: E402

SMALL, LARGE = "[3,32,32]", "[3,224,224]"
CELLS: dict[str, tuple[str, int, tuple[int, int, int]]] = {
    "lenet5": ("[1,32,32]", 10, (64, 128, 256)),
    "resnet20": (SMALL, 10, (16, 32, 64)),
    "easgd_cifar7": ("[3,28,28]", 10, (32, 64, 128)),
    "vgg_small": (SMALL, 10, (16, 32, 64)),
    "alexnet": (LARGE, 1000, (2, 8, 16)),
    "zfnet": (LARGE, 1000, (1, 4, 8)),
    "resnet50": (LARGE, 1000, (1, 2, 4)),
    "vit_small": (LARGE, 1000, (1, 2, 4)),
}
"""By model: image shape, classes, batches."""
OPTIMIZERS = ("sgd", "adamw")
COLUMNS = {
    "measured": ("measured, MB", ".2f"), "planned": ("planned, MB", ".2f"), "error": ("error", "+.2%"),
    "parameters": ("parameters", ".2f"), "gradients": ("gradients", ".2f"), "optimizer": ("optimizer", ".2f"),
    "activations": ("activations", ".2f"), "temporary": ("temporary", ".2f"),
}  # fmt: skip
MEGA = 1e6


def overrides(model: str, batch: int, optimizer: str, folder: Path) -> list[str]:
    shape, classes, _ = CELLS[model]
    return [
        f"model={model}", "dataset=synthetic", "dataset._target_=zero_images.ZeroImages",
        f"dataset.image_shape={shape}", f"dataset.classes={classes}", f"dataset.samples={3 * batch}",
        f"batch_size={batch}", "dataset.threads=0",
        "augment=none", f"optimizer={optimizer}", "callbacks=none", "+callbacks.marks._target_=zero_images.Marks",
        "logger=none", "trainer.max_steps=3", "trainer.limit_val_batches=0", "trainer.limit_test_batches=0",
        "trainer.enable_progress_bar=false", "topology.device.kind=cpu", f"hydra.run.dir={folder}",
    ]  # fmt: skip


def measured(words: Sequence[str]) -> int:
    """Bytes of the CPU's allocator at their most during the third step of a run in this process."""
    from torch.profiler import ProfilerActivity, profile
    from zero_images import STEP_ENDS

    from leyden.trainer.api.training import train

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        train(*words)
    assert profiler.profiler is not None
    now, held, ends = 0, [], []
    events: list[Any] = profiler.profiler.kineto_results.events()  # pyright: ignore[reportOptionalMemberAccess]
    for event in sorted(events, key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()  # pyright: ignore[reportAttributeAccessIssue]
            held.append(now)
        elif event.name() == STEP_ENDS:
            ends.append(len(held))
    return max(held[ends[1] : ends[2]])


def planned(words: Sequence[str], batch: int) -> dict[str, float]:
    from leyden.trainer.compose.composer import Composer
    from leyden.trainer.planner.work import count

    config = Composer().run(list(words)).config
    return vars(count(config, batch)[1])


def rows_of(model: str) -> Iterator[dict[str, Any]]:
    """In this process: one row for each batch and optimizer."""
    for optimizer in OPTIMIZERS:
        for batch in CELLS[model][2]:
            with tempfile.TemporaryDirectory() as folder:
                words = overrides(model, batch, optimizer, Path(folder) / "run")
                kinds = planned(words, batch)
                real = measured(words)
            total = sum(kinds.values())
            row = {"what": f"{model}, {optimizer}, batch {batch}", "measured": real / MEGA, "planned": total / MEGA}
            yield {**row, "error": total / real - 1, **{kind: size / MEGA for kind, size in kinds.items()}}


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] == "--rows":
        print("ROWS", json.dumps(list(rows_of(sys.argv[2]))))
        return
    rows: list[dict[str, Any]] = []
    for model in sys.argv[1:] or CELLS:
        command = [sys.executable, __file__, "--rows", model]
        output = subprocess.run(command, capture_output=True, text=True, check=True, cwd=FOLDER).stdout
        rows += json.loads(next(line for line in output.splitlines() if line.startswith("ROWS")).removeprefix("ROWS"))
        for row in rows[-len(OPTIMIZERS) * 3 :]:
            print(f"{row['what']:36} {row['measured']:9.2f} {row['planned']:9.2f} {row['error']:+.2%}", flush=True)
    errors = sorted(abs(row["error"]) for row in rows)
    print(f"{len(errors)} cells: median {median(errors):.2%}, worst {errors[-1]:.2%}")
    if len(sys.argv) == 1:
        write(rows)


def write(rows: Sequence[dict[str, Any]]) -> None:
    errors = sorted(abs(row["error"]) for row in rows)
    text = (
        "Peak memory of a training step on the CPU: what `leyden plan` counts on fake tensors, without memory or data, "
        "beside the most that the CPU's allocator held during the third step of a run (torch.profiler). "
        f"{len(rows)} cells: error of the median {median(errors):.2%}, of the worst {errors[-1]:.2%}. The columns "
        "after the error are the plan's parts. Networks on images of 3 x 224 x 224, the first four on small ones."
    )
    file = ROOT / "benchmarks" / "results" / "planner_memory.json"
    title = "Memory that a plan counts"
    write_subject(file, title, text, COLUMNS, "python benchmarks/planner/memory.py", rows)


if __name__ == "__main__":
    main()
