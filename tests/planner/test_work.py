"""Work and memory of a training step, counted on fake tensors: against torch's counter, by hand, and a real run."""

import itertools
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from folders import ROOT
from runs import Freeze
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from leyden.trainer.base.errors import CannotStart
from leyden.trainer.config.schema import Config, load
from leyden.trainer.config.targets import build
from leyden.trainer.planner import work_cache
from leyden.trainer.planner.counted_batches import CountedBatches
from leyden.trainer.planner.memory_reserve import reserve
from leyden.trainer.planner.quantities import LayerWork, StepWork
from leyden.trainer.planner.torch_compat import FakeTensorMode
from leyden.trainer.planner.work import StepCounter, count
from leyden.trainer.planner.work_cache import load_count

BATCH = 4
SYNTHETIC = ["dataset=synthetic", "dataset.threads=0", "augment=none"]
MODELS = {
    "lenet5": ["dataset.image_shape=[1,32,32]"],
    "resnet20": [],
    "alexnet": ["dataset.image_shape=[3,224,224]"],
    "local_net": [],
    "vit_small": ["model.patch=8", "model.width=32", "model.heads=2", "model.depth=2"],
}
VIT = ["model=vit_small", *MODELS["vit_small"]]


@pytest.fixture
def configured(freeze: Freeze) -> Any:
    numbers = itertools.count()

    def config(*options: str) -> Config:
        return load(freeze(f"run{next(numbers)}", *SYNTHETIC, *options))

    return config


def forward_flop(work: StepWork) -> float:
    return sum(layer.forward.flop for layer in work.layers)


def backward_flop(work: StepWork) -> float:
    return sum(layer.backward.flop for layer in work.layers)


def torch_count(config: Config, batch: int) -> tuple[int, int]:
    """FLOP of forward and backward by torch's FlopCounterMode, with attention computed by matrix products."""
    assert config.model is not None
    shape = config.dataset.arguments["image_shape"]
    with FakeTensorMode(allow_non_fake_inputs=True), sdpa_kernel(SDPBackend.MATH):
        network = build(config.model, classes=10, image_shape=shape, seed=0)
        with FlopCounterMode(display=False) as forward:
            output = network(torch.empty(batch, *shape))
        with FlopCounterMode(display=False) as backward:
            output.sum().backward()
    return forward.get_total_flops(), backward.get_total_flops()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("model", MODELS)
def test_flop_are_those_of_torchs_counter(configured: Any, model: str) -> None:
    config = configured(f"model={model}", *MODELS[model])
    work, _ = count(config, BATCH)
    forward, backward = torch_count(config, BATCH)
    if model == "vit_small":
        # attention's own kernel computes the scores again in its backward: one more product for each block and head
        tokens, blocks, heads, width = 17, 2, 2, 16
        backward += 2 * BATCH * blocks * heads * tokens * tokens * width
    assert (forward_flop(work), backward_flop(work)) == (forward, backward)
    assert forward > 0


def test_lenet5_by_hand(configured: Any) -> None:
    work, memory = count(configured("model=lenet5", *MODELS["lenet5"]), BATCH)
    layers = {layer.name: layer for layer in work.layers}
    first, second, last = layers["features.0"], layers["features.3"], layers["classifier.5"]
    assert first.forward.flop == first.backward.flop == 2 * BATCH * 6 * 28 * 28 * 25, "no gradient of the images"
    assert second.backward.flop == 2 * second.forward.flop == 2 * 2 * BATCH * 16 * 10 * 10 * 6 * 25
    assert last.forward.flop == 2 * BATCH * 84 * 10
    maps = BATCH * 6 * 28 * 28 * 4
    assert first.forward.bytes == BATCH * 32 * 32 * 4 + maps + (6 * 25 + 6) * 4
    assert layers["features.1"].forward.bytes == 2 * maps, "reads and writes the maps"
    assert layers["features.1"].backward.bytes == 3 * maps, "reads gradient and output, writes a gradient"
    assert [layer.forward.kernels for layer in (first, second, layers["features.1"])] == [1, 1, 1]
    ready = [(layer.name, layer.gradient_elements) for layer in reversed(work.layers) if layer.gradient_elements]
    assert ready == [
        ("classifier.5", 850), ("classifier.3", 10164), ("classifier.1", 48120), ("features.3", 2416),
        ("features.0", 156),
    ]  # fmt: skip
    assert work.parameters == 61706
    assert memory.parameters == memory.optimizer + 12 or memory.parameters >= 61706 * 4


def test_untied_local_filters_by_hand(configured: Any) -> None:
    config = configured("model=local_net", "model.maps=[4]", "model.rf=5", "dataset.image_shape=[3,12,12]")
    work, _ = count(config, BATCH)
    local = [layer for layer in work.layers if layer.gradient_elements == 8 * 8 * 4 * 75]
    assert len(local) == 1
    assert local[0].forward.flop == 2 * BATCH * 8 * 8 * 4 * 75
    assert local[0].backward.flop == local[0].forward.flop, "no gradient of the images"


def test_residual_additions_belong_to_the_block(configured: Any) -> None:
    work, _ = count(configured("model=resnet20"), BATCH)
    names = [layer.name for layer in work.layers]
    assert names[0] == "batch"
    assert names[-1] == "task"
    assert len(names) > len(set(names)), "a block computes between its layers"
    assert work.parameters == sum(layer.gradient_elements for layer in work.layers) == 269722


@pytest.mark.thinned(3)
@pytest.mark.parametrize("model", ["lenet5", pytest.param("resnet20", marks=pytest.mark.campaign), "vit_small"])
def test_two_batches_give_every_batch(configured: Any, model: str) -> None:
    counter = StepCounter(configured(f"model={model}", *MODELS[model]))
    line = CountedBatches({batch: counter.count(batch) for batch in (64, 128)})
    for batch in (96, 1000):
        work, memory = counter.count(batch)
        assert line.memory(batch).total == pytest.approx(memory.total, rel=1e-6)
        found = line.work(batch)
        assert forward_flop(found) == pytest.approx(forward_flop(work))
        assert sum(layer.backward.bytes for layer in found.layers) == pytest.approx(
            sum(layer.backward.bytes for layer in work.layers)
        )
        assert [(a.name, a.forward.kernels) for a in found.layers] == [(b.name, b.forward.kernels) for b in work.layers]
    largest = line.largest_batch(1e9)
    assert counter.count(largest)[1].total <= 1e9 < counter.count(largest + 1)[1].total
    assert line.largest_batch(1000.0) == 0


@pytest.mark.slow
def test_precision_and_optimizer_state(configured: Any) -> None:
    plain, half, double, adamw, ema = (
        count(configured(*VIT, *options), BATCH)[1]
        for options in ([], ["trainer.precision=bf16-true"], ["trainer.precision=64-true"], ["optimizer=adamw"],
                        ["callbacks=ema"])
    )  # fmt: skip
    assert 2 * half.parameters == plain.parameters == double.parameters / 2
    assert 0.4 < half.activations / plain.activations < 0.7
    assert plain.optimizer == plain.parameters, "momentum"
    assert adamw.optimizer - 2 * plain.parameters < 1000, "two moments, and the number of the step"
    assert ema.optimizer == 2 * plain.parameters
    mixed = count(configured(*VIT, "trainer.precision=bf16-mixed"), BATCH)[1]
    assert mixed.parameters == plain.parameters
    assert mixed.activations < plain.activations


def test_parts_and_checkpointing(configured: Any) -> None:
    work, plain = count(configured(*VIT), 8)
    parts_work, parts = count(configured(*VIT, "trainer.accumulate_grad_batches=2", "batch_size=8"), 8)
    assert forward_flop(parts_work) == forward_flop(work)
    assert parts_work.parameters == work.parameters
    assert parts.activations < 0.6 * plain.activations
    again_work, again = count(configured(*VIT, "trainer.activation_checkpointing=true"), 8)
    assert again.total < plain.total
    assert forward_flop(again_work) == forward_flop(work)
    blocks = sum(layer.forward.flop for layer in work.layers if layer.name.startswith("blocks"))
    recomputed = backward_flop(again_work) - backward_flop(work)
    assert 0.5 * blocks < recomputed <= blocks, "the last product of a block is not needed again"


@pytest.mark.thinned(2)
@pytest.mark.parametrize("optimizer", ["adagrad", "adam", "lamb", "lars", "lion", "muon", "rmsprop"])
def test_every_optimizer(configured: Any, optimizer: str) -> None:
    work, memory = count(configured(*VIT, f"optimizer={optimizer}"), BATCH)
    assert work.update.kernels > 10
    assert memory.optimizer >= 0.9 * memory.parameters


def test_a_cuda_device_gets_fused_steps_and_a_reserve(configured: Any) -> None:
    config = configured(*VIT, "optimizer=adamw")
    device = config.topology.device.model_copy(update={"kind": "cuda"})
    topology = config.topology.model_copy(update={"device": device})
    on_cuda = config.model_copy(update={"topology": topology})
    work, _ = count(on_cuda, BATCH)
    assert work.update.kernels == 2, "one counts the steps, one makes them, for all parameters"
    assert reserve(on_cuda, 1e9) > reserve(on_cuda, 0.0) > 1e9
    assert reserve(config, 1e9) == 0.0


def test_dropout_of_samples_is_counted(configured: Any) -> None:
    keyed, own = (
        count(configured(*VIT, "model.dropout=0.1", f"trainer.exact_dropout={exact}"), BATCH)
        for exact in ("true", "false")
    )
    assert sum(layer.forward.kernels for layer in keyed[0].layers) > sum(
        layer.forward.kernels for layer in own[0].layers
    )


UNPLANNED = """
from torch import nn

class Branching(nn.Module):
    def __init__(self, classes, image_shape):
        super().__init__()
        self.classifier = nn.Linear(image_shape[0], classes)

    def forward(self, images):
        features = images.mean((2, 3))
        return self.classifier(features if features.sum().item() > 0 else -features)
"""


def test_a_network_that_depends_on_values_is_named(configured: Any, tmp_path: Path) -> None:
    (tmp_path / "unplanned_network.py").write_text(UNPLANNED)
    config = configured("model=mlp", "~model.hidden", "~model.dropout", "model._target_=unplanned_network.Branching")
    with pytest.raises(CannotStart) as found:
        count(config.model_copy(update={"python_path": [str(tmp_path)]}), BATCH)
    problem = found.value.problem
    assert problem is not None
    assert "_local_scalar_dense" in problem.text
    assert "--from RUN" in problem.remedy


def test_images_of_unknown_shape_are_refused(configured: Any) -> None:
    config = configured("model=mlp")
    data = config.dataset.model_copy(update={"target": "leyden.trainer.data.task_loaders.TaskLoaders"})
    with pytest.raises(CannotStart, match="the shape of its images is known only when they are read"):
        count(config.model_copy(update={"dataset": data}), BATCH)


CACHED = """
import json, sys, time
from leyden.trainer.config.schema import Config
from leyden.trainer.planner.work_cache import load_count
config = Config.model_validate(json.load(open(sys.argv[1])))
began = time.perf_counter()
found = load_count(config, [4])
print(json.dumps([found.memory(4).total, found.work(4).parameters, "torch" in sys.modules]))
"""


def test_the_cache_needs_no_torch(configured: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEYDEN_CACHE", str(tmp_path / "cache"))
    config = configured(*VIT)
    counted = load_count(config, [4])
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config.model_dump(mode="json", by_alias=True)))
    command = [sys.executable, "-c", CACHED, str(file)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ)).stdout
    assert json.loads(output) == [counted.memory(4).total, counted.work(4).parameters, False]


def test_the_cache_knows_what_counts(configured: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEYDEN_CACHE", str(tmp_path))
    config = configured(*VIT)
    first = load_count(config, [4])
    assert load_count(config, [4]).counted == first.counted
    (file,) = tmp_path.glob("plans/*.json")
    load_count(config.model_copy(update={"seed": 7}), [4])
    assert len(list(tmp_path.glob("plans/*.json"))) == 1, "the seed changes no count"
    file.write_text("{")
    assert load_count(config, [4]).counted == first.counted, "counted again"
    monkeypatch.setattr(work_cache, "_MANY", 0)
    wider = load_count(configured(*VIT, "model.width=64"), [4])
    assert list(wider.counted) == [2, 4], "half the batch in place of large ones, where a step is many operations"
    assert wider.memory(4).parameters > first.memory(4).parameters
    assert asdict(first.memory(4)).keys() == asdict(wider.memory(4)).keys()


def test_layers_that_differ_by_batch_are_not_interpolated() -> None:
    from leyden.trainer.planner.quantities import Cost, PeakMemory

    def step(batch: int, name: str) -> tuple[StepWork, PeakMemory]:
        return StepWork(batch, (LayerWork(name, Cost(), Cost()),), Cost()), PeakMemory(1, 1, 1, 1, 1)

    with pytest.raises(ValueError, match="computes other layers with 8 samples than with 4"):
        CountedBatches({4: step(4, "a"), 8: step(8, "b")}).work(6)


# oneDNN's layouts and buffers of convolutions depend on the instructions that the CPU has
_LARGEST_ERROR = 0.02 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 0.12


@pytest.mark.machine
@pytest.mark.campaign
def test_the_peak_is_that_of_the_cpus_allocator() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "planner" / "memory.py"), "--rows", "lenet5"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = json.loads(next(line for line in output.splitlines() if line.startswith("ROWS")).removeprefix("ROWS"))
    assert len(rows) == 2 * 3
    assert max(abs(row["error"]) for row in rows) < _LARGEST_ERROR
