"""Random draws outside nn.Dropout: by the sample where we know how, else reproducible and named in the log."""

import itertools
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from drawing_examples import Attends, DropPath
from lightning_examples import Noisy, points
from runs import HERE, POINTS, TINY, Freeze, cut_back, distance, rows, task, weights
from torch import Tensor, nn
from torch.utils.data import DataLoader

from leyden.trainer.base.signals import IgnoreStopSignals
from leyden.trainer.config.schema import load
from leyden.trainer.core.batch import Part
from leyden.trainer.core.keyed.dropout import KeyedAlphaDropout, KeyedDropPath, SampleKeys
from leyden.trainer.core.keyed.modules import with_keyed_layers
from leyden.trainer.data.lightning_data import LoaderData
from leyden.trainer.data.order.reader_seeds import ReaderSeeds
from leyden.trainer.engine.part_draws import PartDraws
from leyden.trainer.entrypoints.start import start

QUICK = [*TINY, "trainer.enable_progress_bar=false", HERE]
NET = ["~model.hidden", "~model.dropout"]
DRAWS = [*QUICK, *NET, "model._target_=drawing_examples.Draws"]
ATTENDS = [*QUICK, *NET, "model._target_=drawing_examples.Attends", "trainer.precision=64-true"]


def keys(count: int) -> Tensor:
    return torch.randint(2**62, (count,), generator=torch.Generator().manual_seed(0))


# alpha dropout and stochastic depth


@pytest.mark.parametrize("whole_channels", [False, True])
def test_alpha_dropout_drops_to_selus_limit_and_keeps_mean_and_variance(whole_channels: bool) -> None:
    sample_keys = SampleKeys()
    sample_keys.set(keys(64))
    kind = nn.FeatureAlphaDropout if whole_channels else nn.AlphaDropout
    layer = with_keyed_layers(nn.Sequential(kind(0.25)), sample_keys)[0]
    assert isinstance(layer, KeyedAlphaDropout)
    x = torch.randn(64, 32, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    dropped = layer(x)
    torch.manual_seed(0)
    as_torch = kind(0.25)(x)
    low = as_torch.mode().values.mode().values.mode().values.mode().values  # the one value that comes often
    gone = (dropped - low).abs() < 1e-6
    assert gone.double().mean() == pytest.approx(0.25, abs=0.02)
    assert (dropped.mean(), dropped.std()) == (pytest.approx(0, abs=0.05), pytest.approx(1, abs=0.02))
    stays = (as_torch - low).abs() > 1e-6
    both = stays & ~gone
    assert torch.allclose(dropped[both], as_torch[both], rtol=0, atol=1e-6), "what stays is scaled as torch scales it"
    by_channel = gone.flatten(2).double().mean(2)
    assert bool(((by_channel == 0) | (by_channel == 1)).all()) is whole_channels
    assert torch.equal(layer.eval()(x), x)


def test_drop_path_of_timm_is_known_by_its_name() -> None:
    sample_keys = SampleKeys()
    sample_keys.set(keys(400))
    net = nn.Sequential(DropPath(0.25), DropPath(0.25, scale_by_keep=False), DropPath(0.0))
    with_keyed_layers(net, sample_keys)
    assert all(isinstance(layer, KeyedDropPath) for layer in net)
    x = torch.ones(400, 3, 2)
    scaled, plain = net[0](x), net[1](x)
    assert scaled.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert plain.unique().tolist() == [0, 1]
    assert (plain.flatten(1) == plain[:, 0, :1]).all(), "one draw a sample"
    assert (plain[:, 0, 0] == 0).double().mean() == pytest.approx(0.25, abs=0.05)
    assert torch.equal(net[2](x), x)
    sample_keys.set(keys(400)[100:150])
    assert torch.equal(net[0](x[100:150]), scaled[100:150]), "any part of the samples drops what the whole does"
    torch.manual_seed(3)
    expected = DropPath(0.25)(x)
    torch.manual_seed(3)
    sample_keys.set(None)
    assert torch.equal(net[0](x), expected), "without keys it is timm's own"


def test_a_layer_in_two_places_stays_one_layer() -> None:
    shared = nn.Dropout(0.5)
    net = nn.ModuleDict({"a": nn.Sequential(shared), "b": nn.Sequential(shared)})
    with_keyed_layers(net, SampleKeys())
    assert net.get_submodule("a.0") is net.get_submodule("b.0") is not shared


# attention


def test_timms_fused_attention_drops_by_the_sample() -> None:
    class Attention(nn.Module):
        """The attributes of timm.layers.Attention."""

        def __init__(self, p: float):
            super().__init__()
            self.fused_attn = True
            self.attn_drop = nn.Dropout(p)

    net = nn.ModuleList([Attention(0.1), Attention(0.0)])
    with_keyed_layers(net, SampleKeys())
    assert [module.fused_attn for module in net] == [False, True]


@pytest.mark.slow
def test_two_workers_equal_one_with_dropout_of_every_kind(freeze: Freeze, pools: Any) -> None:
    short = [*ATTENDS, "trainer.max_epochs=1", "trainer.max_steps=5"]
    one = freeze("one", *short)
    assert start(one) == 0
    parts = freeze("parts", *short, "trainer.accumulate_grad_batches=4")
    assert start(parts) == 0
    assert distance(weights(parts), weights(one)) < 1e-10
    two = freeze("two", *short, "strategy=ddp", "topology.devices_per_node=2")
    pools(2).run(two)
    assert distance(weights(two), weights(one)) < 1e-10
    none = freeze("none", *short, "+model.dropout=0.0")
    assert start(none) == 0
    assert distance(weights(none), weights(one)) > 1e-3, "it does drop"
    for run_dir in (one, two):
        assert "depend on the number of workers" not in (run_dir / "run.log").read_text()


# draws from the process's generators


@pytest.mark.slow
def test_a_resume_in_the_middle_of_an_epoch_draws_the_same_whatever_was_drawn_before(
    freeze: Freeze, tmp_path: Path
) -> None:
    every = ["callbacks.checkpoint.every_n_steps=1", "callbacks.checkpoint.keep_last=100"]
    whole = freeze("whole", *DRAWS, *every)
    assert start(whole) == 0
    for step in (7, 25):
        broken = cut_back(whole, tmp_path / f"broken-{step}", step)
        assert start(broken, "resume") == 0
        assert all(torch.equal(value, weights(broken)[name]) for name, value in weights(whole).items())
    # validation that draws, or happens more rarely, changes nothing of what training draws
    validating = freeze("validating", *DRAWS, "task._target_=drawing_examples.DrawsInEvaluation")
    rarely = freeze("rarely", *DRAWS, "trainer.check_val_every_n_epoch=2")
    for run_dir in (validating, rarely):
        assert start(run_dir) == 0
        assert all(torch.equal(value, weights(run_dir)[name]) for name, value in weights(whole).items())
    other = freeze("other", *DRAWS, "seed=1", "init_from=" + str(whole), "trainer.max_steps=1")
    assert start(other) == 0


def test_steps_and_shares_draw_apart(freeze: Freeze) -> None:
    draws = {(rank, same): begun(freeze, rank, same, number) for number, (rank, same) in enumerate(CASES)}
    assert draws[0, False] == draws[1, False], "keys tell shares apart; a rank is not a part of them"
    assert draws[0, True] != draws[1, True], "workers of the same samples"


CASES = list(itertools.product((0, 1), (False, True)))


def begun(freeze: Freeze, rank: int, same_samples: bool, number: int) -> list[float]:
    """What is drawn in two parts with keys, and in one without."""
    contract = SimpleNamespace(batch_share=lambda: (0, 1) if same_samples else (rank, 2))
    fabric = SimpleNamespace(global_rank=rank, device=torch.device("cpu"))
    state: Any = SimpleNamespace(config=load(freeze(str(number), *TINY)), fabric=fabric, contract=contract)
    draws = PartDraws(state)
    found: list[float] = []
    for part_keys in keys(2):
        draws.begin(Part(None, 1, 1, 1.0, True, part_keys.view(1)), 0, 0)
        found.append(float(torch.rand(1)))
    assert len(set(found)) == 2
    draws.begin(Part(None, 1, 1, 1.0, True), 0, 0)
    without = float(torch.rand(1))
    draws.begin(Part(None, 1, 1, 1.0, True), 0, 1)
    assert float(torch.rand(1)) != without
    return found


def test_the_generator_of_a_workers_own_gpu_is_seeded(freeze: Freeze, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: dict[int, list[int]] = {0: [], 1: []}
    generators = [SimpleNamespace(manual_seed=seeds[index].append) for index in seeds]
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    contract = SimpleNamespace(batch_share=lambda: (0, 1))
    fabric = SimpleNamespace(global_rank=1, device=torch.device("cuda", 1))
    state: Any = SimpleNamespace(config=load(freeze("run", *TINY)), fabric=fabric, contract=contract)
    for word in keys(2):
        PartDraws(state).begin(Part(None, 1, 1, 1.0, True, word.view(1)), 0, 0)
    assert seeds[0] == []
    assert len(set(seeds[1])) == 2


# what a data module's loaders draw


def stand_in(rank: int) -> Any:
    return SimpleNamespace(world_size=1, local_rank=0, global_rank=rank, barrier=lambda: None)


def test_loaders_leave_the_generators_of_gpus_alone(freeze: Freeze, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(freeze("run", *POINTS, task("Plain"), "+dataset.shuffle=true", "+dataset.noisy=true"))
    data = LoaderData(config, stand_in(0))
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    torch.manual_seed(1)
    assert seeded == [1]
    list(data.train_parts(0))
    list(data.evaluation_batches("val"))
    assert seeded == [1]


def test_workers_read_one_order_and_draw_apart_from_the_first_batch_on(freeze: Freeze) -> None:
    config = load(freeze("run", *POINTS, task("Plain"), "+dataset.shuffle=true", "+dataset.noisy=true"))
    read: dict[int, list[Part]] = {}
    for rank in (0, 1, 0):
        torch.manual_seed(rank + 5)  # whatever was drawn before
        read[rank] = list(LoaderData(config, stand_in(rank)).train_parts(0))
    again = list(LoaderData(config, stand_in(1)).train_parts(0, first_step=2))
    for number, (one, other) in enumerate(zip(read[0], read[1], strict=True)):
        assert torch.equal(one.batch[1], other.batch[1])
        assert not torch.equal(one.batch[0], other.batch[0])
        if number >= 2:
            assert torch.equal(again[number - 2].batch[0], other.batch[0])


def test_processes_that_read_draw_apart_as_well() -> None:
    def noise(init: Any) -> Tensor:
        torch.manual_seed(3)
        loader = DataLoader(Noisy(points(8, 0)), batch_size=8, num_workers=1, worker_init_fn=init)
        return next(iter(loader))[0]

    plain = noise(None)
    assert torch.equal(noise(IgnoreStopSignals(ReaderSeeds(0, None))), plain)
    others = [noise(IgnoreStopSignals(ReaderSeeds(rank, None))) for rank in (1, 2, 1)]
    assert torch.equal(others[0], others[2])
    assert not torch.equal(others[0], plain)
    assert not torch.equal(others[0], others[1])


def test_processes_that_stay_read_and_draw_as_new_ones(freeze: Freeze) -> None:
    """Epoch 1 after epoch 0, and of a run that is resumed in it; evaluation, each time."""
    config = load(freeze("run", *POINTS, task("Plain"), "dataset._target_=lightning_examples.PointsOfProcesses"))
    stays, resumed, of_rank_0 = (LoaderData(config, stand_in(rank)) for rank in (1, 1, 0))
    next(stays.train_parts(0))  # left in its middle
    evaluated = [[batch for batch, _ in stays.evaluation_batches("val")] for _ in range(2)]
    epochs = [[part.batch for part in data.train_parts(1, first)] for data, first in ((stays, 0), (resumed, 2))]
    for some, others in (evaluated, (epochs[0][2:], epochs[1])):
        assert len(some) == len(others) > 1
        for one, other in zip(some, others, strict=True):
            assert torch.equal(one[0], other[0])
            assert torch.equal(one[1], other[1])
    assert not torch.equal(epochs[0][0][0], next(of_rank_0.train_parts(1)).batch[0])
    for data in (stays, resumed, of_rank_0):  # torch waits five seconds for what the garbage collector ends
        data.close()


# the log


def said(run_dir: Path) -> list[str]:
    text = (run_dir / "run.log").read_text()
    return [line.partition("draws of ")[2] for line in text.splitlines() if "draws of " in line]


def test_modules_that_draw_by_themselves_are_named_once_the_innermost(freeze: Freeze) -> None:
    run_dir = freeze("run", *DRAWS, "task._target_=drawing_examples.DrawsInTraining", "trainer.max_steps=3")
    assert start(run_dir) == 0
    names = ", ".join(f"model.layers.{index} (Noise)" for index in (2, 3, 4))
    assert said(run_dir) == [
        f"DrawsInTraining.training_step, {names} depend on the number of workers; a resume on as many repeats them"
    ]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ([*TINY, "model.dropout=0.2"], None),
        ([*POINTS, task("DropsOut")], "DropsOut.training_step"),
        ([*ATTENDS, "+model.attention_dropout=0.1"], "model.block.attn (MultiheadAttention)"),
    ],
    ids=["keyed dropout", "functional dropout", "attention"],
)
def test_nothing_is_said_of_what_draws_by_the_sample(options: list[str], names: str | None, freeze: Freeze) -> None:
    run_dir = freeze("run", *options)
    assert start(run_dir) == 0
    found = said(run_dir)
    assert [line.partition(" depend")[0] for line in found] == ([] if names is None else [names])
    assert rows(run_dir)


@pytest.mark.slow
def test_a_compiled_model_is_not_looked_into(freeze: Freeze, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", partialmethod(compiled, backend="eager"))  # its graph, interpreted
    torch.compiler.reset()
    run_dir = freeze("run", *DRAWS, "+model.sources=[torch]", "trainer.compile=true", "trainer.max_steps=2")
    assert start(run_dir) == 0
    assert [line.partition(" depend")[0] for line in said(run_dir)] == ["Classification.training_step"]


def test_watching_leaves_no_hook_behind(freeze: Freeze) -> None:
    from leyden.trainer.engine.part_draws import watch_generators

    net = Attends(10, (1, 8, 8), attention_dropout=0.3)
    with_keyed_layers(net, SampleKeys())  # no keys: all draw by themselves
    config = load(freeze("run", *TINY))
    state: Any = SimpleNamespace(config=config, task=net, fabric=SimpleNamespace(device=torch.device("cpu")))
    images = torch.randn(2, 1, 8, 8)
    with watch_generators(state) as found:
        net(images)
    assert found == [
        "block.attn (MultiheadAttention)", "block.drop_path (DropPath)", "alpha (AlphaDropout)",
        "maps (FeatureAlphaDropout)",
    ]  # fmt: skip
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
