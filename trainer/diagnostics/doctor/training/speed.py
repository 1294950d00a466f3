"""Images per second: on one device, on all, and in a hand-written loop."""

import time
from collections.abc import Iterator, Sequence

from .checks import Check
from .child_runs import ChildRuns, NotTrained, samples_per_second
from .equality import Outcomes
from .plan import Plan

_ONE, _ALL = "speed-one", "speed-all"
_COMMON = (
    "dataset=synthetic", "augment=none", "task=classification", "optimizer=sgd", "schedule=constant",
    "trainer.max_epochs=1", "trainer.limit_val_batches=0", "trainer.limit_test_batches=0",
    "trainer.enable_progress_bar=false", "trainer.log_every_n_steps=10", "callbacks.checkpoint.monitor=null",
    "callbacks.train_images=null",
)  # fmt: skip
_SMALL = ("model=lenet5", "dataset.samples=38400", "dataset.image_shape=[3,16,16]")
_RESNET = (
    "model=resnet50", "dataset.samples=65536", "dataset.classes=1000", "dataset.image_shape=[3,224,224]",
    "dataset.num_workers=4", "trainer.precision=bf16-mixed", "trainer.channels_last=true",
)  # fmt: skip
_STEPS = {"cpu": 300, "cuda": 80}
_BATCH = {"cpu": 64, "cuda": 256}
"""Samples of a device."""

PUBLISHED = (
    "published, ResNet-50: one V100, PyTorch, float32, batch 128: 354 images/s (Oneflow-Inc/DLPerf, report v1); one "
    "K80, TensorFlow: 52.4 (TensorFlow's benchmarks of 2017)"
)


def plan_speeds(plan: Plan, kind: str, workers: int) -> None:
    """Add a training of one device, and of all."""
    plan.on_one(_ONE, [*_options(kind, 1), "strategy=single"])
    if workers > 1:
        plan.on_all(_ALL, [*_options(kind, workers), "strategy=ddp"])


def speed_checks(runs: ChildRuns, outcomes: Outcomes, kind: str, workers: int) -> Iterator[Check]:
    """Images/s of one device, of a hand-written loop on it, and of all devices."""
    network = "ResNet-50, bf16-mixed" if kind == "cuda" else "LeNet-5, float32"
    try:
        one = outcomes[_ONE]
        alone = samples_per_second(one.check())
        yield _figure(f"images/s, one device ({network})", alone, one.seconds, PUBLISHED if kind == "cuda" else "")
        begin = time.monotonic()
        plain = runs.plain_loop(one)
        seconds = time.monotonic() - begin
        yield _figure("images/s, hand-written loop", plain, seconds, f"Leyden makes {alone / plain:.2f} of it")
        if workers > 1:
            all_devices = outcomes[_ALL]
            together = samples_per_second(all_devices.check())
            text = f"{together / alone / workers:.0%} of {workers} times one device"
            yield _figure(f"images/s, all {workers} devices", together, all_devices.seconds, text)
    except NotTrained as error:
        yield Check("images/s", None, None, False, 0.0, str(error))


def _options(kind: str, workers: int) -> Sequence[str]:
    network = _RESNET if kind == "cuda" else _SMALL
    return [*_COMMON, *network, f"batch_size={_BATCH[kind] * workers}", f"trainer.max_steps={_STEPS[kind]}"]


def _figure(name: str, value: float, seconds: float, text: str) -> Check:
    return Check(name, value, None, None, seconds, text)
