"""Leyden's own steps on a CUDA device that is not there: what is on the wrong device, and where the host would wait.

On torch's CPU build; tests/pretend_cuda has the device. Wrong numbers, races of streams and faults of kernels stay
unseen.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent / "pretend_cuda"
pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="the device's guard is C++: needs g++"),
    pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has devices of its own"),
]
SMALL = "dataset.image_shape=[3,32,32]"
Steps = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Steps:
    """steps(workers, *cases) -> what each case, overrides in one text, did on the device."""
    home = Path(torch.__file__).parent
    library = tmp_path_factory.mktemp("pretend_cuda") / "libguard.so"
    includes = [f"-I{home / 'include'}", f"-I{home / 'include/torch/csrc/api/include'}"]
    build = ["g++", "-std=c++20", "-shared", "-fPIC", *includes, str(HERE / "guard.cpp"), "-o", str(library)]
    subprocess.run([*build, f"-L{home / 'lib'}", "-lc10", "-ltorch_cpu"], check=True)

    def made(workers: int, *cases: str) -> list[dict[str, Any]]:
        environment = {**os.environ, "PRETEND_CUDA_LIBRARY": str(library), "LD_LIBRARY_PATH": str(home / "lib")}
        command = [sys.executable, str(HERE / "run_cases.py"), str(workers), *cases]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stdout + done.stderr
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    return made


def assert_nothing_waits(results: list[dict[str, Any]], cases: list[str]) -> None:
    """Everything is on the device, and between two log steps the host waits for nothing."""
    assert len(results) == len(cases)
    for result, case in zip(results, cases, strict=True):
        made, log = result["steps"], result["log"]
        print(f"{made['operations'] // 2} operations a step: {case}")
        assert set().union(*map(set, result["devices"].values())) == {"cuda"}, case
        assert made["operations"] > 20, case
        scaled = "precision=16-" in case
        waits = {line: count for line, count in made["waits"].items() if not (scaled and "optimizer.step()" in line)}
        assert (waits, made["blocking_copies"]) == ({}, {}), case
        # losses, metrics, and of several workers bytes, times and distances: not one metric after the other
        assert len(log["waits"]) <= 6, (case, log["waits"])
        assert log["blocking_copies"] == {}, case
        assert result["values"]["memory/allocated_gb"] == 3.0
        assert result["values"]["memory/reserved_gb"] == 4.0


ONE = [
    f"model=vit_small model.dropout=0.1 {SMALL}",
    f"model=resnet18 {SMALL} trainer.precision=bf16-mixed trainer.channels_last=true augment=none",
    "model=lenet5 trainer.precision=16-mixed optimizer=adamw trainer.gradient_clip_val=1.0",
    "model=mlp model.dropout=0.5 trainer.accumulate_grad_batches=2 trainer.exact_dropout=false",
]
FOUR = [
    f"strategy=ddp model=resnet18 {SMALL} trainer.sync_batchnorm=true",
    "strategy=hybrid model=alexnet_owt dataset.image_shape=[3,64,64]",
    "strategy=easgd strategy.tau=1 model=lenet5",
    "strategy=local_sgd strategy.h=1 model=lenet5",
]


def test_one_worker_never_waits_between_two_logs(steps: Steps) -> None:
    assert_nothing_waits(steps(1, *ONE), ONE)


def test_four_workers_never_wait_between_two_logs(steps: Steps) -> None:
    assert_nothing_waits(steps(4, *FOUR), FOUR)


MODELS = [
    "model=alexnet dataset.image_shape=[3,64,64]", "model=zfnet dataset.image_shape=[3,64,64]",
    "model=vgg16 dataset.image_shape=[3,32,32]", "model=vgg_small dataset.image_shape=[3,32,32]",
    "model=resnet20 dataset.image_shape=[3,32,32]", "model=resnet50 dataset.image_shape=[3,64,64]",
    "model=deep_image dataset.image_shape=[3,64,64]", "model=local_net dataset.image_shape=[3,32,32]",
    "model=easgd_cifar7 dataset.image_shape=[3,28,28]",
]  # fmt: skip
PRECISIONS = ["32-true", "bf16-mixed", "bf16-true", "16-mixed", "64-true"]


@pytest.mark.slow
def test_no_model_waits_in_any_precision(steps: Steps) -> None:
    cases = [f"{model} trainer.precision={PRECISIONS[i % len(PRECISIONS)]}" for i, model in enumerate(MODELS)]
    cases += [f"{MODELS[4]} trainer.precision={precision}" for precision in PRECISIONS]
    assert_nothing_waits(steps(1, *cases), cases)


@pytest.mark.slow
def test_no_strategy_waits(steps: Steps) -> None:
    hybrid = "strategy=hybrid model=alexnet_owt dataset.image_shape=[3,64,64]"
    cases = [
        "strategy=ddp strategy.compression=bf16 model=lenet5",
        f"{hybrid} strategy.scheme=b",
        f"{hybrid} strategy.scheme=c trainer.precision=bf16-mixed",
        "strategy=local_sgd strategy.h=1 strategy.outer_momentum=0.9 strategy.outer_lr=0.7 model=lenet5",
        "strategy=local_sgd strategy.h=1 strategy.h_rule=adacomm model=lenet5",
    ]
    assert_nothing_waits(steps(4, *cases), cases)


def test_what_waits_is_found(steps: Steps) -> None:
    """A network that reads a value of the device, copies to it and back."""
    (result,) = steps(1, "model=mlp ~model.hidden ~model.dropout model._target_=waiting_examples.Waits")
    assert sorted(line.split("  ")[0] for line in result["steps"]["waits"]) == [
        "aten._local_scalar_dense.default", "aten._to_copy.default",
    ]  # fmt: skip
    assert sum(result["steps"]["blocking_copies"].values()) == 2, "one a step"
