"""`trainer.compile`: how many graphs a run compiles, the modes, and what the loop does for CUDA graphs."""

import shutil
from typing import Any

import pytest
import torch
from runs import POINTS, TINY, VIT, Freeze, Processes, distance, task, weights
from torch import Tensor, nn

from leyden.trainer.base.log import log
from leyden.trainer.base.signals import StopRequest
from leyden.trainer.config.schema import CompileOptions, load
from leyden.trainer.core.network.blocks import named_blocks, repeated_blocks
from leyden.trainer.engine import training_step
from leyden.trainer.engine.build import assemble
from leyden.trainer.engine.network.compilation import compile_network, own_gradients, uses_cuda_graphs
from leyden.trainer.entrypoints.start import start

AVERAGED = [*VIT, "trainer.max_steps=6", "callbacks=[default,ema]", "trainer.gradient_clip_val=0.5",
            "trainer.accumulate_grad_batches=2", "trainer.limit_val_batches=2",
            "trainer.limit_test_batches=1"]  # fmt: skip
REDUCED = "trainer.compile={mode: reduce-overhead, regional: true}"


def trained(freeze: Freeze, name: str, *options: str) -> dict[str, torch.Tensor]:
    run_dir = freeze(name, *options)
    assert start(run_dir) == 0
    return weights(run_dir)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("model", "switch"),
    [
        pytest.param([*TINY, "model.dropout=0.1"], "true", id="whole"),
        pytest.param(VIT, "{fullgraph: true}", marks=pytest.mark.campaign, id="a ViT without a graph break"),
        pytest.param(VIT, "{regional: true}", id="blocks", marks=pytest.mark.campaign),
        pytest.param(VIT, "{fullgraph: true, regional: true}", id="blocks without a graph break"),
    ],
)
def test_training_validation_and_smaller_batches_compile_once_each(
    freeze: Freeze, graphs: list[Any], model: list[str], switch: str
) -> None:
    options = [*model, "trainer.limit_train_batches=1.0", "trainer.limit_val_batches=3", "trainer.limit_test_batches=2",
               "batch_size=400"]  # fmt: skip
    plain = trained(freeze, "plain", *options)
    compiled = trained(freeze, "compiled", *options, f"trainer.compile={switch}")
    assert len(graphs) == 3, "training; its last, smaller batch, from then on any size; validation and test"
    assert compiled.keys() == plain.keys()
    assert distance(compiled, plain) < 1e-5


def test_static_shapes_compile_each_size(freeze: Freeze, graphs: list[Any]) -> None:
    options = [*TINY, "trainer.limit_train_batches=1.0", "trainer.limit_val_batches=0", "trainer.limit_test_batches=0"]
    trained(freeze, "static", *options, "batch_size=400", "trainer.compile={dynamic: false}")
    assert len(graphs) == 2
    graphs.clear()
    torch.compiler.reset()
    trained(freeze, "dynamic", *options, "batch_size=400", "trainer.compile={dynamic: true}")
    assert len(graphs) == 1


class Block(nn.Module):
    def __init__(self, inputs: int):
        super().__init__()
        self.layer = nn.Linear(inputs, inputs + 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.relu(self.layer(inputs))


def test_blocks_of_many_widths_are_all_compiled(graphs: list[Any]) -> None:
    network = nn.Sequential(*map(Block, range(1, 13)))
    compile_network(network, CompileOptions(regional=True))
    network(torch.ones(2, 1))
    assert len(graphs) == 12


def test_all_networks_of_a_process_are_compiled(graphs: list[Any]) -> None:
    """A pipeline's worker builds each at each of its visits, and a structure that is known takes no graph."""
    for _visit in range(2):
        for width in range(1, 13):
            network = Block(width)
            compile_network(network, True)
            network(torch.ones(2, width))
    assert len(graphs) == 12


def test_blocks_are_the_innermost_that_repeat() -> None:
    def stage(count: int) -> nn.Sequential:
        return nn.Sequential(*(nn.Sequential(nn.Linear(1, 1), nn.ReLU()) for _ in range(count)))

    network = nn.Sequential(stage(2), stage(3), nn.Linear(1, 1), nn.Linear(1, 1))
    found = repeated_blocks(network)
    assert [id(m) for m in found] == [id(m) for part in list(network)[:2] for m in part.children()]
    assert repeated_blocks(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1), stage(1))) == []
    assert [id(m) for m in named_blocks(network, ["0.*"], "key")] == [id(m) for m in network[0].children()]
    with pytest.raises(ValueError, match="has the class or name Conv2d; its classes are Linear, ReLU, Sequential"):
        named_blocks(network, ["Linear", "Conv2d"], "key")


def test_a_network_without_blocks_is_refused(freeze: Freeze) -> None:
    run_dir = freeze("run", *TINY, "trainer.compile={regional: true}")
    with pytest.raises(ValueError, match=r"trainer.compile.regional: MLP repeats no block"):
        start(run_dir)
    assert not run_dir.exists()


def test_gradients_leave_the_memory_of_cuda_graphs_before_the_next_replay(
    freeze: Freeze, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = nn.Linear(2, 2)
    one(torch.ones(1, 2)).sum().backward()
    assert one.weight.grad is not None
    before = one.weight.grad
    own_gradients(one.parameters())
    assert torch.equal(one.weight.grad, before)
    assert one.weight.grad.data_ptr() != before.data_ptr()

    copied: list[int] = []
    marked: list[int] = []
    monkeypatch.setattr(training_step, "uses_cuda_graphs", lambda given, device: True)
    monkeypatch.setattr(training_step, "own_gradients", lambda parameters: copied.append(1))
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marked.append(1))
    trained(freeze, "run", *TINY, "trainer.max_steps=3", "trainer.accumulate_grad_batches=4")
    assert (len(copied), len(marked)) == (3 * 3, 3 * 4), "not after a step's last part"


def test_a_network_of_the_tasks_own_is_not_compiled_and_the_log_says_so(
    freeze: Freeze, graphs: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = freeze("run", *POINTS, task("Classic"), "trainer.compile=true")
    log.addHandler(caplog.handler)
    try:
        assemble(load(run_dir), run_dir, StopRequest())
    finally:
        log.removeHandler(caplog.handler)
    assert "the task's own network is not compiled" in caplog.text
    assert graphs == []


def test_modes_with_cuda_graphs(freeze: Freeze) -> None:
    for mode, expected in {"default": False, "reduce-overhead": True, "max-autotune": True}.items():
        config = load(freeze(mode, *TINY, f"trainer.compile={{mode: {mode}}}"))
        assert uses_cuda_graphs(config.trainer.compile, torch.device("cuda", 0)) is expected
        assert not uses_cuda_graphs(config.trainer.compile, torch.device("cpu"))
    assert not uses_cuda_graphs(True, torch.device("cuda", 0))


@pytest.mark.slow
def test_averaged_weights_clipping_and_accumulation(freeze: Freeze, graphs: list[Any]) -> None:
    plain = trained(freeze, "plain", *AVERAGED)
    compiled = trained(freeze, "compiled", *AVERAGED, REDUCED)
    assert graphs
    assert distance(compiled, plain) < 1e-4


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler")
def test_reduce_overhead_with_averaged_weights_clipping_and_accumulation(freeze: Freeze, processes: Processes) -> None:
    plain = trained(freeze, "plain", *AVERAGED)
    compiled = freeze("compiled", *AVERAGED, REDUCED)
    code, output = processes.run(compiled)
    assert code == 0, output
    assert distance(weights(compiled), plain) < 1e-4


def test_the_arguments_reach_torch(freeze: Freeze, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(nn.Module, "compile", lambda module, **options: given.append(options))
    for number, switch in enumerate(("false", "true", "{mode: max-autotune, fullgraph: true, dynamic: false}")):
        run_dir = freeze(str(number), *TINY, f"trainer.compile={switch}")
        assemble(load(run_dir), run_dir, StopRequest())
    assert given == [
        {"mode": "default", "fullgraph": False, "dynamic": None},
        {"mode": "max-autotune", "fullgraph": True, "dynamic": False},
    ]
