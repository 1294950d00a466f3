"""Leyden's own steps on a CUDA device that is not there: what is on the wrong device, and where the host would wait.

On torch's CPU build; support/pretend_cuda has the device. Wrong numbers, races of streams and faults of kernels stay
unseen.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from folders import CONF, SUPPORT

from leyden.trainer.cli.main import main

DEVICE = SUPPORT / "pretend_cuda"
pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="the device's guard is C++: needs g++"),
    pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has devices of its own"),
]
NORM = "trainer.log_grad_norm=true trainer.log_every_n_steps=1"
SMALL = "dataset.image_shape=[3,32,32]"
NOT_FUSED = ("adagrad", "rmsprop", "lamb", "lars", "lion", "muon")
"""Optimizers of which torch has no fused version for CUDA."""
Steps = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Steps:
    """steps(workers, *cases) -> what each case, overrides in one text, did on the device."""
    home = Path(torch.__file__).parent
    library = tmp_path_factory.mktemp("pretend_cuda") / "libguard.so"
    includes = [f"-I{home / 'include'}", f"-I{home / 'include/torch/csrc/api/include'}"]
    build = ["g++", "-std=c++20", "-shared", "-fPIC", *includes, str(DEVICE / "guard.cpp"), "-o", str(library)]
    subprocess.run([*build, f"-L{home / 'lib'}", "-lc10", "-ltorch_cpu"], check=True)

    def made(workers: int, *cases: str) -> list[dict[str, Any]]:
        environment = {**os.environ, "PRETEND_CUDA_LIBRARY": str(library), "LD_LIBRARY_PATH": str(home / "lib")}
        small = [case if "batch_size=" in case else f"{case} batch_size=8" for case in cases]
        command = [sys.executable, str(DEVICE / "run_cases.py"), str(workers), *small]
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
        unscales_clipped = "precision=16-mixed" in case and "gradient_clip_val" in case
        sharded_sgd = "strategy=fsdp" in case and "optimizer=adamw" not in case
        chosen = "optimizer.foreach" in case or any(f"optimizer={name}" in case for name in NOT_FUSED)
        assert result["fused"] is (None if unscales_clipped or sharded_sgd or chosen else True), case
        scaled = "precision=16-" in case
        waits = {line: count for line, count in made["waits"].items() if not (scaled and "optimizer.step()" in line)}
        assert (waits, made["blocking_copies"]) == ({}, {}), case
        # losses, metrics, and of several workers bytes, times and distances: not one metric after the other
        assert len(log["waits"]) <= 6, (case, log["waits"])
        assert log["blocking_copies"] == {}, case
        values = result["values"]
        assert ("train/grad_norm" in values) >= (NORM in case), case
        assert (values["memory/allocated_gb"], values["memory/reserved_gb"]) == (3.0, 4.0)
        phases = [values[f"time/{phase}_ms"] for phase in ("data", "forward", "backward", "update", "communication")]
        assert min(phases[:4]) > 0, "events between the phases"
        assert sum(phases) == pytest.approx(values["time/total_ms"] - values["time/other_ms"])


QUICK = {
    1: [
        "model=lenet5 trainer.precision=16-mixed optimizer=adamw trainer.gradient_clip_val=1.0 callbacks=ema",
        f"model=resnet20 {SMALL} augment=[imagenet,rand_augment,random_erasing,mixup] augment.crop.views=2 "
        "augment.batch.mix.cutmix=1.0 augment.batch.random_erasing.fill=noise augment.batch.color_jitter.hue=0.1",
    ],
    4: [
        f"strategy=ddp model=resnet20 {SMALL} trainer.sync_batchnorm=true",
        f"strategy=hybrid model=alexnet_owt dataset.image_shape=[3,64,64] {NORM}",
        f"strategy=butterfly model=resnet20 {SMALL} trainer.sync_batchnorm=true",
        f"strategy=fsdp strategy.min_parameters=1 model=lenet5 optimizer=adamw {NORM}",
    ],
}
"""A covering set, by number of workers."""


@pytest.fixture(scope="module")
def alone(steps: Steps) -> list[dict[str, Any]]:
    return steps(1, *QUICK[1], "model=mlp ~model.hidden ~model.dropout model._target_=waiting_examples.Waits")


@pytest.mark.campaign
def test_one_worker_never_waits_between_two_logs(alone: list[dict[str, Any]]) -> None:
    assert_nothing_waits(alone[:-1], QUICK[1])
    assert {name for result in alone for name, devices in result["devices"].items() if devices} == {
        "parameters", "buffers", "optimizer", "metrics", "averages",
    }  # fmt: skip


@pytest.mark.slow
def test_four_workers_never_wait_between_two_logs(steps: Steps) -> None:
    assert_nothing_waits(steps(4, *QUICK[4]), QUICK[4])


MODELS = [
    "model=alexnet dataset.image_shape=[3,64,64]", "model=zfnet dataset.image_shape=[3,64,64]",
    f"model=vgg16 {SMALL}", f"model=vgg_small {SMALL}", f"model=resnet20 {SMALL}",
    "model=resnet50 dataset.image_shape=[3,64,64]", "model=deep_image dataset.image_shape=[3,64,64]",
    f"model=local_net {SMALL}", "model=easgd_cifar7 dataset.image_shape=[3,28,28]",
    "model=easgd_imagenet11 dataset.image_shape=[3,221,221] batch_size=4", f"model=airbench {SMALL} augment=airbench",
    f"model=resnet34 {SMALL} augment=photos", f"model=efficientnet_lite0 {SMALL}",
    f"model=resnet101 {SMALL} trainer.activation_checkpointing=true",
    f"model=vit_base {SMALL} trainer.activation_checkpointing=true", f"model=conv_local {SMALL}",
]  # fmt: skip
PRECISIONS = ["32-true", "bf16-mixed", "bf16-true", "16-mixed", "64-true"]
FULL = {
    1: [
        f"model=vit_small model.dropout=0.1 {SMALL} {NORM}",
        f"model=resnet18 {SMALL} trainer.precision=bf16-mixed trainer.channels_last=true augment=none",
        *(f"{model} trainer.precision={PRECISIONS[i % len(PRECISIONS)]}" for i, model in enumerate(MODELS)),
        *(f"model=resnet20 {SMALL} trainer.precision={precision}" for precision in PRECISIONS),
        *(f"model=lenet5 optimizer={name}" for name in (*NOT_FUSED, "adam", "sgd")),
        f"model=lenet5 {SMALL} augment=deep_image trainer.precision=bf16-mixed",
        f"model=lenet5 {SMALL} augment=crop_flip dataset.threads=2 dataset.prefetch=1",
        f"model=lenet5 {SMALL} augment=crop_flip dataset.cache=device",
        "model=lenet5 trainer.gradient_clip_val=0.01 trainer.gradient_clip_algorithm=adaptive augment=crop",
        "model=mlp model.dropout=0.5 trainer.accumulate_grad_batches=2 trainer.exact_dropout=false "
        "optimizer.foreach=true augment=none",
        f"task=simclr augment=simclr model=resnet20 {SMALL} optimizer=lars",
        "task=multi_label dataset._target_=waiting_examples.Vectors model=lenet5",
        "model=reconstruction_ica task=reconstruction dataset.image_shape=[1,12,12] augment=none "
        "trainer.precision=bf16-mixed",
        f"model=lenet5 {SMALL} augment=cutmix schedule=plateau",
    ],
    4: [
        f"strategy=easgd strategy.tau=1 model=lenet5 {NORM}",
        f"strategy=spatial model=local_net {SMALL} {NORM}",
        "strategy=ddp strategy.compression=bf16 model=lenet5 callbacks=ema",
        "strategy=ddp strategy.compression=powersgd model=lenet5",
        "strategy=hybrid strategy.scheme=b model=alexnet_owt dataset.image_shape=[3,64,64]",
        "strategy=hybrid strategy.scheme=c model=alexnet_owt dataset.image_shape=[3,64,64] "
        "trainer.precision=bf16-mixed",
        "strategy=local_sgd strategy.h=1 strategy.outer_momentum=0.9 strategy.outer_lr=0.7 model=lenet5",
        "strategy=local_sgd strategy.h=1 model=lenet5",
        "strategy=local_sgd strategy.h=1 strategy.h_rule=adacomm model=lenet5",
        f"strategy=butterfly strategy.lazy=false model=resnet18 {SMALL} trainer.accumulate_grad_batches=2 "
        "batch_size=16",
        "strategy=butterfly model=lenet5 trainer.gradient_clip_val=1.0 callbacks=ema",
        f"strategy=butterfly model=lenet5 {NORM}",
        f"strategy=fsdp model=vit_small {SMALL} trainer.precision=bf16-mixed trainer.gradient_clip_val=1.0",
        f"strategy=spatial model=local_net {SMALL} trainer.gradient_clip_val=1.0",
        f"strategy=spatial model=cots_autoencoder model.stages=2 model.rf=5 model.pool=3 model.lcn=3 {SMALL} "
        "task=reconstruction augment=none",
        "strategy=hsdp topology.nodes=2 topology.launcher=node topology.devices_per_node=2 model=lenet5 "
        f"optimizer=adamw {NORM}",
    ],
}
"""The rest of the matrix: every model, task, optimizer and strategy, each precision and way to read."""


@pytest.mark.campaign
def test_no_model_task_or_optimizer_waits(steps: Steps, tmp_path: Path) -> None:
    words = ["dataset=synthetic", "model=mlp", "trainer.max_steps=1", "trainer.limit_val_batches=0"]
    assert main([*words, "trainer.limit_test_batches=0", f"hydra.run.dir='{tmp_path / 'teacher'}'"]) == 0
    cases = [*FULL[1], f"task=distillation task.teacher={tmp_path / 'teacher'} model=lenet5"]
    assert_nothing_waits(steps(1, *cases), cases)


@pytest.mark.campaign
def test_no_strategy_waits(steps: Steps) -> None:
    assert_nothing_waits(steps(4, *FULL[4]), FULL[4])


WITHOUT_A_CASE = {
    "model=timm": "needs torchvision",
    "task=classification": "the default",
    "task=distillation": "its case is made in the test",
    "strategy=single": "the default",
    "strategy=asgd": "the host waits by design: its servers hold their parameters in host memory",
}


@pytest.mark.parametrize("group", ["model", "task", "strategy", "optimizer", "augment"])
def test_whatever_ships_has_a_case(group: str) -> None:
    cases = " ".join(case for lane in (QUICK, FULL) for cases in lane.values() for case in cases)
    found = re.findall(rf"\b{group}=(\S+)", cases)
    covered = {name for value in found for name in value.strip("[]").split(",")}
    missing = {file.stem for file in (CONF / group).glob("*.yaml")} - covered
    assert {f"{group}={name}" for name in missing} == {each for each in WITHOUT_A_CASE if each.startswith(f"{group}=")}


@pytest.mark.slow
def test_what_waits_is_found(alone: list[dict[str, Any]]) -> None:
    """A network that reads a value of the device, copies to it and back."""
    result = alone[-1]
    assert sorted(line.split("  ")[0] for line in result["steps"]["waits"]) == [
        "aten._local_scalar_dense.default", "aten._to_copy.default",
    ]  # fmt: skip
    assert sum(result["steps"]["blocking_copies"].values()) == 2, "one a step"
