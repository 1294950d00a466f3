"""`trainer.activation_checkpointing`: the same gradients, statistics and names, from fewer kept activations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pool import Pool
from runs import FEW, TINY, VIT, Freeze, distance, weights
from torch import Tensor, nn

from leyden.trainer.base.signals import StopRequest
from leyden.trainer.cli.main import main
from leyden.trainer.config.schema import load
from leyden.trainer.core.keyed.dropout import SampleKeys
from leyden.trainer.core.keyed.modules import with_keyed_layers
from leyden.trainer.core.network.activation_checkpointing import checkpoint_activations
from leyden.trainer.engine.build import assemble
from leyden.trainer.entrypoints.start import start

ON = "trainer.activation_checkpointing=true"
SHORT = [*FEW, "trainer.max_epochs=1"]
SHORT_VIT = [*VIT, *SHORT]
RESNET = [
    "model=resnet20", "model.depth=14", "dataset=synthetic", "dataset.samples=96", "dataset.image_shape=[3,8,8]",
    "batch_size=16", *SHORT,
]  # fmt: skip
TWO = "topology.devices_per_node=2"


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("model", "switch"),
    [(SHORT_VIT, "true"), (SHORT_VIT, "[_EncoderBlock]"), (SHORT_VIT, "['blocks.*.mlp',_Attention]"), (RESNET, "true")],
    ids=["vit", "by class", "by name", "statistics"],
)
def test_weights_and_statistics_are_equal_bit_for_bit(freeze: Freeze, model: list[str], switch: str) -> None:
    plain, saved = freeze("plain", *model), freeze("saved", *model, f"trainer.activation_checkpointing={switch}")
    assert start(plain) == start(saved) == 0
    assert equal(weights(saved), weights(plain))


class Drawing(nn.Module):
    """Draws from the process's generator, and notes its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.tanh(self.linear(x)) * torch.rand_like(x)


def test_random_draws_are_repeated_and_evaluation_computes_once() -> None:
    gradients: list[Tensor] = []
    for chosen in (False, True):
        torch.manual_seed(0)
        network = nn.Sequential(Drawing(), Drawing())
        checkpoint_activations(network, chosen)
        network(torch.ones(2, 4)).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None]))
        with torch.no_grad():
            network(torch.ones(2, 4))
        assert [block.calls for block in network if isinstance(block, Drawing)] == [2 + chosen] * 2
    assert torch.equal(*gradients)


def test_less_is_kept_for_the_backward(freeze: Freeze) -> None:
    def kept(*options: str) -> int:
        run_dir = freeze("-".join(("run", *options)).replace("=", ""), *SHORT_VIT, *options)
        state = assemble(load(run_dir), run_dir, StopRequest())
        part = next(iter(state.data.train_parts(0)))
        state.sample_keys.set(part.keys)
        sizes: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            sizes[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            state.module("training_step", state.data.on_after_batch_transfer(part.batch, 0), 0)
        return sum(sizes.values())

    assert kept(ON) < 0.5 * kept()


@pytest.mark.slow
def test_a_compiled_network_stays_one_graph(freeze: Freeze, graphs: list[Any]) -> None:
    options = [*SHORT_VIT, "trainer.limit_val_batches=0", "trainer.limit_test_batches=0"]
    plain = freeze("plain", *options)
    saved = freeze("saved", *options, ON, "trainer.compile={fullgraph: true}")
    assert start(plain) == start(saved) == 0
    assert len(graphs) == 1
    assert any("checkpoint" in str(node.target) for node in graphs[0].graph.nodes)
    assert distance(weights(saved), weights(plain)) < 1e-5
    graphs.clear()
    torch.compiler.reset()
    regional = freeze("regional", *options, ON, "trainer.compile={regional: true}")
    assert start(regional) == 0
    assert len(graphs) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "options"),
    [
        pytest.param(SHORT_VIT, ["strategy=ddp"], marks=pytest.mark.campaign),
        pytest.param(SHORT_VIT, ["strategy=butterfly"], marks=pytest.mark.campaign),
        (SHORT_VIT, ["strategy=fsdp", "strategy.min_parameters=1"]),
        pytest.param(SHORT_VIT, ["strategy=local_sgd"], marks=pytest.mark.campaign),
        (RESNET, ["strategy=ddp", "trainer.sync_batchnorm=true", "trainer.accumulate_grad_batches=2"]),
    ],
    ids=["ddp", "butterfly", "fsdp", "local_sgd", "sync_batchnorm"],
)
def test_two_workers(freeze: Freeze, pools: Callable[[int], Pool], model: list[str], options: list[str]) -> None:
    plain, saved = freeze("plain", *model, *options, TWO), freeze("saved", *model, *options, TWO, ON)
    for run_dir in (plain, saved):
        pools(2).run(run_dir)
    assert equal(weights(saved), weights(plain))


def test_a_dropout_layer_of_two_blocks_is_refused() -> None:
    sample_keys, shared = SampleKeys(), nn.Dropout(0.5)
    network = with_keyed_layers(nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), shared) for _ in range(2))), sample_keys)
    with pytest.raises(ValueError, match="share a dropout layer"):
        checkpoint_activations(network, True)


def test_a_network_without_blocks_is_refused(freeze: Freeze) -> None:
    for switch, told in (("true", "MLP repeats no block"), ("[Bottleneck]", "has the class or name Bottleneck")):
        run_dir = freeze("run", *TINY, f"trainer.activation_checkpointing={switch}")
        with pytest.raises(ValueError, match=f"trainer.activation_checkpointing.*{told}"):
            start(run_dir)
        assert not run_dir.exists()


@pytest.mark.parametrize(
    "strategy", [["strategy=spatial", "model=local_net"], ["strategy=hybrid", "model=alexnet_owt"]]
)
def test_messages_inside_the_forward_are_not_repeated(strategy: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*strategy, TWO, ON]) == 2
    assert "inside the model's forward, which cannot be computed again" in capsys.readouterr().err
