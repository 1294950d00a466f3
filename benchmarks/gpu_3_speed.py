"""GPU battery, call 3: speed, against a hand-written loop on the same batch, interleaved in one process.

    python benchmarks/gpu_3_speed.py [--rehearse] [--only TEXT] [--again]

ResNet-50, bf16-mixed, channels_last, batch 256 of random images that stay on the device; ten rounds of twenty steps for
each contestant, in turn. The figure is the ratio of the medians of the rounds.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from gpu_battery import Checks, Outcome, Skipped, main
from torch import nn

from leyden.trainer.base.signals import StopRequest
from leyden.trainer.compose.composer import Composer
from leyden.trainer.config.schema import load
from leyden.trainer.config.targets import make_importable
from leyden.trainer.core.batch import Part
from leyden.trainer.core.state import RunState
from leyden.trainer.data.loading_bench import measure
from leyden.trainer.diagnostics.doctor.training.speed import PUBLISHED
from leyden.trainer.engine.build import assemble
from leyden.trainer.engine.training_step import TrainingStep
from leyden.trainer.runs.folder import freeze

SLOWEST = 1 / 0.99
"""Leyden's time of a step over the hand-written loop's."""
RESNET = ["model=resnet50", "dataset.classes=1000", "dataset.image_shape=[3,224,224]", "dataset.samples=512",
          "batch_size=256", "trainer.precision=bf16-mixed", "trainer.channels_last=true"]  # fmt: skip
SMALL = ["model=lenet5", "dataset.samples=64", "batch_size=16", "trainer.channels_last=true"]
COMMON = ["dataset=synthetic", "augment=none", "strategy=single", "optimizer=sgd", "schedule=constant",
          "callbacks.train_images=null"]  # fmt: skip
FLOP = 3 * 2 * 4.09e9
"""Of an image's forward and backward in ResNet-50: 4.09e9 multiply-adds forward."""
ROUNDS, STEPS, WARM_UP = 10, 20, 10

Steps = Callable[[int], None]


def checks(device: str, rehearse: bool) -> Checks:
    """The ratios first, then figures without a limit."""
    network = SMALL if rehearse else RESNET
    made: dict[str, Callable[[], Outcome]] = {}

    def compared(how: str, switch: str) -> None:
        options = (*network, f"trainer.compile={switch}")
        made[f"ResNet, {how}: Leyden's step / hand-written"] = partial(ratio, device, options, rehearse)

    compared("eager", "false")
    compared("compile", "true")
    tiny = ("model=mlp", "dataset.samples=64", "dataset.image_shape=[1,8,8]", "batch_size=32")
    made["the loop's overhead, microseconds a step at batch 32"] = partial(overhead, device, tiny, rehearse)
    made["photographs: images/s of the loader, crops of 224 pixels"] = photographs
    made["COTS HPC's autoencoder, 1.2 billion parameters: images/s"] = partial(autoencoder, device)
    compared("max-autotune", "{mode: max-autotune}")  # last: it compiles for minutes
    return made


class Contestants:
    """A run of Leyden's and a hand-written loop, on one network each and one batch."""

    def __init__(self, device: str, options: tuple[str, ...]):
        self.device = device
        self.state = assembled([*COMMON, *options, f"topology.device.kind={device}"])
        self._options = [option for option in options if not option.startswith("trainer.compile")]
        self._step = TrainingStep(self.state, asynchronous=False)
        part = next(iter(self.state.data.train_parts(0)))
        self._part = part._replace(batch=tuple(tensor.to(device) for tensor in part.batch))
        self.batch = part.samples
        self._compile = self.state.config.trainer.compile
        self._network = self._plain_network()
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    def leyden(self, steps: int) -> None:
        for _ in range(steps):
            self._step.run(iter([self._part]))

    def plain(self, steps: int) -> None:
        for _ in range(steps):
            images, labels = self.state.data.on_after_batch_transfer(self._part.batch, 0)
            self._optimizer.zero_grad(set_to_none=True)
            with self._precision():
                loss = F.cross_entropy(self._network(images), labels)
            loss.backward()
            self._optimizer.step()

    def _plain_network(self) -> nn.Module:
        """The network of a second, equal run, so that none shares weights or compiled code."""
        other = assembled([*COMMON, *self._options, f"topology.device.kind={self.device}"])
        network: nn.Module = other.task.model  # pyright: ignore[reportAssignmentType]
        mode = self._compile
        if mode is True:
            network.compile()
        elif mode:
            network.compile(mode=mode.mode)
        return network

    def _precision(self) -> AbstractContextManager[Any]:
        if self.state.config.trainer.precision == "bf16-mixed":
            return torch.autocast(self.device, torch.bfloat16)
        return nullcontext()


def assembled(overrides: list[str]) -> RunState:
    """A run's state in this process, before its first step."""
    folder = Path(tempfile.mkdtemp(prefix="leyden-gpu-"))
    composer = Composer()
    run = composer.run([*overrides, f"hydra.run.dir='{folder}'"])
    freeze(folder, composer.freeze_in(run, folder))
    config = load(folder)
    make_importable(config)
    return assemble(config, folder, StopRequest())


@cache
def measured(device: str, options: tuple[str, ...], rehearse: bool) -> Mapping[str, float]:
    """Median seconds of a step, by contestant."""
    contestants = Contestants(device, options)
    loops: dict[str, Steps] = {"Leyden": contestants.leyden, "hand-written": contestants.plain}
    rounds, steps, warm_up = (3, 2, 1) if rehearse else (ROUNDS, STEPS, WARM_UP)
    for loop in loops.values():
        loop(warm_up)
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(rounds):
        for name, loop in reversed(loops.items()) if number % 2 else loops.items():
            seconds[name].append(timed(device, loop, steps))
    return {**{name: statistics.median(values) for name, values in seconds.items()}, "batch": contestants.batch}


def timed(device: str, loop: Steps, steps: int) -> float:
    """Seconds of a step."""
    synchronize(device)
    begin = time.perf_counter()
    loop(steps)
    synchronize(device)
    return (time.perf_counter() - begin) / steps


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def ratio(device: str, options: tuple[str, ...], rehearse: bool) -> Outcome:
    """Leyden's time of a step over the hand-written loop's."""
    found = measured(device, options, rehearse)
    rates = {name: found["batch"] / found[name] for name in ("Leyden", "hand-written")}
    text = ", ".join(f"{name} {rate:,.1f} images/s" for name, rate in rates.items())
    if device == "cuda":
        reached = rates["Leyden"] * FLOP / 1e12
        text += f", {reached:,.0f} of {peak(device):,.0f} TFLOP/s that a product of matrices reaches; {PUBLISHED}"
    return Outcome(found["Leyden"] / found["hand-written"], None if rehearse else SLOWEST, text)


@cache
def peak(device: str) -> float:
    """TFLOP/s of a product of bfloat16 matrices."""
    side = 8192
    one, other = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))

    def products(steps: int) -> None:
        for _ in range(steps):
            torch.mm(one, other)

    products(5)
    return 2 * side**3 / min(timed(device, products, 20) for _ in range(5)) / 1e12


def overhead(device: str, options: tuple[str, ...], rehearse: bool) -> Outcome:
    """What the loop adds to a step of a tiny network."""
    found = measured(device, options, rehearse)
    text = f"hand-written {1e6 * found['hand-written']:.0f}"
    return Outcome(1e6 * (found["Leyden"] - found["hand-written"]), None, text)


def photographs() -> Outcome:
    """What the data pipeline gives on this machine: JPEG decoded, cropped and resized by threads."""
    path = Path(os.environ.get("LEYDEN_PHOTOGRAPHS", Path(__file__).parents[2] / "shared/data/imagenet-sample.zip"))
    if not path.exists():
        raise Skipped("LEYDEN_PHOTOGRAPHS=FILE: a folder or an archive of photographs, as dataset=image_folder takes")
    options = ["dataset=image_folder", f"dataset.root={path}", "augment=imagenet", "model=resnet50", "batch_size=64"]
    found = measure(Composer().run(options).config)
    speeds = ", ".join(f"{number} threads {speed:,.0f}" for number, speed in found.images_per_second.items())
    return Outcome(max(found.images_per_second.values()), None, f"{found.cores} cores: {speeds}")


def autoencoder(device: str) -> Outcome:
    """Images/s of the published network of 1.2 billion parameters, in float32."""
    if device == "cpu":
        raise Skipped("takes minutes a step on a CPU")
    options = ["model=cots_autoencoder", "task=reconstruction", "dataset.image_shape=[3,200,200]", "batch_size=32"]
    train, samples = on_one_batch(device, [*options, "dataset.samples=64"])
    train(2)
    return Outcome(samples / timed(device, train, 5), None, f"{torch.cuda.max_memory_allocated() / 1e9:.0f} GB")


def on_one_batch(device: str, options: Sequence[str]) -> tuple[Steps, int]:
    """Leyden's steps on one batch that stays on the device, and its samples."""
    state = assembled([*COMMON, *options, f"topology.device.kind={device}"])
    step = TrainingStep(state, asynchronous=False)
    part = next(iter(state.data.train_parts(0)))
    part = part._replace(batch=tuple(tensor.to(device) for tensor in part.batch))

    def train(steps: int) -> None:
        for _ in range(steps):
            step.run(endless(part))

    return train, part.samples


def endless(part: Part) -> Iterator[Part]:
    while True:
        yield part


if __name__ == "__main__":
    sys.exit(main(3, checks, __doc__))
