"""In which dtype a model really computes, for each strategy and precision; clipping, compiling, memory layout."""

import json
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pool import Pool
from runs import FEW, HERE, TINY, Freeze, Processes, distance, metrics, summary, weights
from tables import thinned

import leyden
from leyden.trainer.base.signals import StopRequest
from leyden.trainer.cli.main import main
from leyden.trainer.config.schema import load
from leyden.trainer.core.checkpoints import checkpoint_io
from leyden.trainer.engine.build import assemble
from leyden.trainer.engine.checkpoints.checkpoint import restore
from leyden.trainer.entrypoints.start import start

COMPUTES_IN = {
    "32-true": {"images": "float32", "weights": "float32", "hidden": "float32"},
    "64-true": {"images": "float64", "weights": "float64", "hidden": "float64"},
    "bf16-mixed": {"images": "float32", "weights": "float32", "hidden": "bfloat16"},
    "bf16-true": {"images": "bfloat16", "weights": "bfloat16", "hidden": "bfloat16"},
}


STRATEGIES = {
    "ddp": ["strategy=ddp"],
    "powersgd": ["strategy=ddp", "strategy.compression=powersgd"],
    "butterfly": ["strategy=butterfly"],
    "hybrid": ["strategy=hybrid", "+model.parallel.sharded=[last]"],
    "fsdp": ["strategy=fsdp", "strategy.min_parameters=1"],
    "hsdp": ["strategy=hsdp", "strategy.min_parameters=1", "topology.nodes=2"],
}
IN_CI = [*product(["ddp"], COMPUTES_IN), ("butterfly", "bf16-mixed"), ("hybrid", "bf16-true")]


def noting(tmp_path: Path, *more: str) -> list[str]:
    return ["model=mlp", "~model.hidden", "~model.dropout", "model._target_=precision_examples.Notes",
            f"+model.file={tmp_path / 'notes'}", "dataset.image_size=8", "trainer.max_steps=3", "trainer.max_epochs=1",
            "trainer.limit_val_batches=2", "trainer.limit_test_batches=2", "trainer.enable_progress_bar=false",
            HERE, *more]  # fmt: skip


def notes(tmp_path: Path, rank: int = 0) -> list[dict[str, Any]]:
    path = tmp_path / f"notes.{rank}"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.unlink()
    return lines


def check(lines: list[dict[str, Any]], precision: str) -> None:
    assert {line["training"] for line in lines} == {True, False}, "training and evaluation"
    for line in lines:
        for what, dtype in COMPUTES_IN[precision].items():
            assert line[what] == f"torch.{dtype}", (precision, what, line)


@pytest.mark.parametrize("precision", COMPUTES_IN)
def test_one_worker_computes_in_the_precision_it_is_told(freeze: Freeze, tmp_path: Path, precision: str) -> None:
    run_dir = freeze("run", *noting(tmp_path, f"trainer.precision={precision}"))
    assert start(run_dir) == 0
    check(notes(tmp_path), precision)
    stored = {value.dtype for value in weights(run_dir).values()}
    assert stored == {getattr(torch, COMPUTES_IN[precision]["weights"])}
    assert start(run_dir, "eval") == 0
    lines = notes(tmp_path)
    assert {line["hidden"] for line in lines} == {f"torch.{COMPUTES_IN[precision]['hidden']}"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "precision"),
    # powersgd is refused with bf16-true
    thinned((case for case in product(STRATEGIES, COMPUTES_IN) if case != ("powersgd", "bf16-true")), in_ci=IN_CI),
)
def test_workers_compute_in_the_precision_they_are_told(
    freeze: Freeze, pools: Callable[[int], Pool], tmp_path: Path, strategy: str, precision: str
) -> None:
    options = ["topology.devices_per_node=2", *STRATEGIES[strategy]]
    run_dir = freeze("run", *noting(tmp_path, f"trainer.precision={precision}", *options))
    workers = load(run_dir).topology.workers
    pools(workers).run(run_dir)
    for rank in range(workers):
        check(notes(tmp_path, rank), precision)


def test_reduced_precision_still_learns_and_its_metrics_are_exact(freeze: Freeze) -> None:
    options = ["augment=none", "optimizer.lr=0.1", "trainer.max_epochs=3"]
    for precision in ("32-true", "bf16-mixed", "bf16-true"):
        run_dir = freeze(precision, *TINY, f"trainer.precision={precision}", *options)
        assert start(run_dir) == 0
        accuracy = metrics(run_dir)["val/acc"]
        assert accuracy > 0.5, precision
        assert accuracy * 287 == pytest.approx(round(accuracy * 287), abs=1e-6), "a count of 287 samples"


@pytest.mark.parametrize(("algorithm", "value"), [("norm", 0.3), ("value", 0.01)])
def test_clipping_equals_torchs_own_in_a_hand_written_loop(freeze: Freeze, algorithm: str, value: float) -> None:
    options = [*TINY, "augment=none", "optimizer.lr=0.1", "optimizer.momentum=0.0", "optimizer.weight_decay=0.0",
               "schedule=constant", "trainer.max_steps=5"]  # fmt: skip
    clipping = [f"trainer.gradient_clip_val={value}", f"trainer.gradient_clip_algorithm={algorithm}"]
    run_dir = freeze("run", *options, *clipping)
    state = assemble(load(run_dir), run_dir, StopRequest())
    model = state.task.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    clipped = 0
    for part, _ in zip(state.data.train_parts(0), range(5), strict=False):
        images, labels = state.data.on_after_batch_transfer(part.batch, 0)
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        if algorithm == "norm":
            torch.nn.utils.clip_grad_norm_(model.parameters(), value)
        else:
            torch.nn.utils.clip_grad_value_(model.parameters(), value)
        after = [p.grad for p in model.parameters() if p.grad is not None]
        clipped += not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        optimizer.step()
    assert clipped == 5
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert start(run_dir) == 0
    assert distance(weights(run_dir), expected) < 1e-6
    free = freeze("free", *options)
    start(free)
    assert distance(weights(free), expected) > 1e-3


def test_channels_last_reaches_weights_and_images(freeze: Freeze, tmp_path: Path) -> None:
    colours = [option for option in noting(tmp_path) if "image_size" not in option]
    run_dir = freeze("run", "dataset=synthetic", *colours, "trainer.channels_last=true")
    assert start(run_dir) == 0
    assert {tuple(line["strides"]) for line in notes(tmp_path)} == {(3 * 32 * 32, 1, 3 * 32, 3)}
    plain, last = (
        freeze(name, "model=lenet5", "trainer.max_steps=3", f"trainer.channels_last={name == 'last'}", *FEW)
        for name in ("plain", "last")
    )  # fmt: skip
    start(plain)
    start(last)
    assert distance(weights(last), weights(plain)) < 1e-4
    state = assemble(load(last), last, StopRequest())
    assert any(p.is_contiguous(memory_format=torch.channels_last) for p in state.task.parameters() if p.ndim == 4)
    newest = last / "checkpoints" / "last.ckpt"
    restore(state, newest, checkpoint_io.read(newest))
    # CUDA's fused kernels refuse a parameter whose momentum is laid out in another way
    strides = [(p.stride(), kept["momentum_buffer"].stride()) for p, kept in state.raw_optimizer.state.items()]
    assert strides
    assert all(parameter == momentum for parameter, momentum in strides)


def test_kernels_are_chosen_as_asked_and_then_as_before(
    freeze: Freeze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    before = kernels_of(torch.get_float32_matmul_precision())
    table = {
        ("trainer.benchmark=true", "trainer.matmul_precision=medium"): kernels_of("medium", benchmark=True),
        ("trainer.benchmark=true", "trainer.deterministic=true"): {**before, "deterministic": True},
        (): before,
    }
    for number, (options, expected) in enumerate(table.items()):
        assert start(freeze(str(number), *noting(tmp_path, *options))) == 0
        assert all(expected.items() <= line.items() for line in notes(tmp_path))


VERBS: dict[str, Callable[[leyden.Run, Path], object]] = {
    "predict": lambda run, folder: run.predict(torch.zeros(1, 1, 8, 8, dtype=torch.uint8)),
    "inspect": lambda run, folder: main(["inspect", str(run.folder), "--out", str(folder / "report")]),
    "export": lambda run, folder: run.export("safetensors", folder / "network.safetensors"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_run_s_network_is_computed_by_its_kernels(verb: str, freeze: Freeze, tmp_path: Path) -> None:
    before = torch.get_float32_matmul_precision()
    chosen = ["trainer.deterministic=true", "trainer.matmul_precision=medium"]
    run_dir = freeze("run", *noting(tmp_path, *chosen))
    assert start(run_dir) == 0
    notes(tmp_path)
    VERBS[verb](leyden.load(run_dir), tmp_path)
    assert {(line["deterministic"], line["matmul_precision"]) for line in notes(tmp_path)} == {(True, "medium")}
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.get_float32_matmul_precision() == before


def kernels_of(precision: str, benchmark: bool = False) -> dict[str, Any]:
    return {"deterministic": False, "benchmark": benchmark, "matmul_precision": precision}


@pytest.mark.campaign
@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler")
def test_a_compiled_model_trains_the_same_weights_under_the_same_names(freeze: Freeze, processes: Processes) -> None:
    options = [*TINY, "trainer.max_steps=3", "trainer.max_epochs=1", "trainer.limit_val_batches=1",
               "trainer.limit_test_batches=0"]  # fmt: skip
    plain, compiled = freeze("plain", *options), freeze("compiled", *options, "trainer.compile=true")
    start(plain)
    code, output = processes.run(compiled)
    assert code == 0, output
    assert summary(compiled)["steps"] == 3
    assert distance(weights(compiled), weights(plain)) < 1e-4
    assert checkpoint_io.read(compiled / "checkpoints" / "last.ckpt")["model"].keys() == weights(plain).keys()
