"""GPU battery, call 4: what recipes and plans promise. Accuracies to the end of training; time and memory of a step.

    python benchmarks/gpu_4_promises.py [--rehearse] [--only TEXT] [--again]

LEYDEN_CIFAR10=PATH is what `dataset.root` takes. A plan is of topology=dgx_h100 with one device, whose figures are the
data sheet's: nothing is measured before it is made.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import torch
from gpu_3_speed import COMMON, on_one_batch, timed
from gpu_battery import Checks, Outcome, Skipped, main

from leyden.trainer.compose.composer import Composer
from leyden.trainer.planner.plan import plan
from leyden.trainer.planner.plans import TrainingPlan

FAST = ["trainer.precision=bf16-mixed", "trainer.compile=true"]
RECIPES = {
    "airbench": (FAST, 0.065),
    "resnet20_cifar10_short": ([], 0.10),
}
"""Options on a GPU, and the part of the test images that may be wrong."""
IMAGENET = ["dataset.image_shape=[3,224,224]", "dataset.classes=1000"]
CIFAR = ["dataset.image_shape=[3,32,32]", "dataset.classes=10"]
BF16, LAST = "trainer.precision=bf16-mixed", "trainer.channels_last=true"
PLANNED = {
    "ResNet-50, bf16, batch 256": ["model=resnet50", *IMAGENET, "batch_size=256", BF16, LAST],
    "ResNet-50, float32, batch 64": ["model=resnet50", *IMAGENET, "batch_size=64"],
    "ResNet-18, bf16, batch 256": ["model=resnet18", *IMAGENET, "batch_size=256", BF16, LAST],
    "VGG-16, bf16, batch 64": ["model=vgg16", *IMAGENET, "batch_size=64", BF16, LAST],
    "AlexNet, float32, batch 256": ["model=alexnet", *IMAGENET, "batch_size=256"],
    "ViT-S/16, bf16, batch 256": ["model=vit_small", *IMAGENET, "batch_size=256", BF16],
    "ViT-B/16, bf16, batch 128": ["model=vit_base", *IMAGENET, "batch_size=128", BF16],
    "ResNet-20, float32, batch 128": ["model=resnet20", *CIFAR, "batch_size=128"],
}
REHEARSED = {"LeNet-5, float32, batch 64": ["model=lenet5", *CIFAR, "batch_size=64"]}
WARM_UP, STEPS = 5, 20
H200_GB_S = 4800
"""Of the data sheet; its processor is the H100's."""


def checks(device: str, rehearse: bool) -> Checks:
    """Recipes first."""
    made: dict[str, Callable[[], Outcome]] = {}
    for name, (options, limit) in RECIPES.items():
        most = 1.0 if rehearse else limit
        made[f"experiment={name}: part of the test images that is wrong"] = partial(
            recipe, device, name, options, most, rehearse
        )
    for name, options in (REHEARSED if rehearse else PLANNED).items():
        made[f"a plan, {name}: step measured / planned"] = partial(step_against_plan, device, tuple(options))
        made[f"a plan, {name}: allocated / counted"] = partial(memory_against_plan, device, tuple(options))
    return made


def recipe(device: str, name: str, options: Sequence[str], limit: float, rehearse: bool) -> Outcome:
    """The test error after a whole training by the command."""
    root = os.environ.get("LEYDEN_CIFAR10")
    if root is None:
        raise Skipped("LEYDEN_CIFAR10=PATH: CIFAR-10, as dataset.root takes it")
    short = ["trainer.max_steps=3", "trainer.limit_test_batches=2", "trainer.limit_train_batches=3"]
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        words = [
            f"experiment={name}",
            f"dataset.root={root}",
            *([] if rehearse else options),
            *(short if rehearse else ()),
        ]
        words += [f"topology.device.kind={device}", f"hydra.run.dir='{folder}'", "trainer.enable_progress_bar=false"]
        done = subprocess.run(
            [sys.executable, "-P", "-m", "leyden", *words], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode}: {done.stdout[-300:]}{done.stderr[-600:]}")
        summary = json.loads((folder / "summary.json").read_text())
    accuracy, seconds = summary["metrics"]["test/acc"], summary["totals"]["train_seconds"]
    return Outcome(
        1 - accuracy, limit, f"{accuracy:.2%} after {seconds:.0f} s of training, one run; {' '.join(options)}"
    )


@cache
def measured(device: str, options: tuple[str, ...]) -> tuple[float, int]:
    """Seconds of a step, and the bytes that tensors held at its peak."""
    train, _ = on_one_batch(device, ["dataset.samples=512", *options])
    train(WARM_UP)
    if device == "cuda":
        gc.collect()  # networks of earlier checks, which hold themselves
        torch.cuda.reset_peak_memory_stats()
    seconds = min(timed(device, train, STEPS) for _ in range(3))
    return seconds, torch.cuda.max_memory_allocated() if device == "cuda" else 0


@cache
def planned(device: str, options: tuple[str, ...]) -> TrainingPlan:
    topology = ["topology=dgx_h100", "topology.devices_per_node=1", "topology.device.sockets=null"]
    if device == "cuda" and "H200" in torch.cuda.get_device_name():
        topology.append(f"topology.device.memory_gb_s={H200_GB_S}")
    composer = Composer(plans=True)
    return plan(composer.run([*COMMON, "dataset.samples=512", *options, *topology]).config)


def step_against_plan(device: str, options: tuple[str, ...]) -> Outcome:
    """A step's measured time over the planned; the text says whether the plan's interval of 80 % holds it."""
    torch.cuda.empty_cache()
    seconds, found = measured(device, options)[0], planned(device, options).step
    inside = "in" if found.low <= seconds <= found.high else "outside of"
    mean, low, high = (1e3 * value for value in (found.mean, found.low, found.high))
    text = f"{1e3 * seconds:.1f} ms measured, {mean:.1f} planned; {inside} {low:.1f} to {high:.1f}"
    return Outcome(seconds / found.mean, None, text)


def memory_against_plan(device: str, options: tuple[str, ...]) -> Outcome:
    """Bytes of tensors at the peak over those that the plan counts, without its reserve."""
    if device == "cpu":
        raise Skipped("the allocator of the host counts nothing")
    allocated, parts = measured(device, options)[1], planned(device, options).memory.parts
    counted = sum(count for part, count in parts.items() if part != "reserve")
    return Outcome(allocated / counted, None, f"{allocated / 2**30:.2f} GiB allocated, {counted / 2**30:.2f} counted")


if __name__ == "__main__":
    sys.exit(main(4, checks, __doc__))
