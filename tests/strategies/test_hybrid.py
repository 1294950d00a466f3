"""strategy=hybrid: a head divided over the workers computes what one worker computes."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from folders import CONF
from pool import Failed, Pool
from runs import FEW, HERE, OWN_TASK, POINTS, TINY, Freeze, apart, cut_back, distance, metrics, summary, weights
from torch import Tensor, nn

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.base.signals import StopRequest
from leyden.trainer.compose.checks import check_classes
from leyden.trainer.config.schema import load
from leyden.trainer.config.targets import build
from leyden.trainer.core.traffic import Ledger
from leyden.trainer.core.transfers import Placement
from leyden.trainer.engine.build import assemble
from leyden.trainer.entrypoints.start import start
from leyden.trainer.strategies.hybrid.p2p import P2PChannel
from leyden.trainer.strategies.hybrid.sharded_head import ShardedHead
from leyden.trainer.strategies.hybrid.traffic import head_traffic

Pools = Callable[[int], Pool]
CAMPAIGN = pytest.mark.campaign
SGD = ["optimizer=sgd", "optimizer.lr=0.05", "optimizer.momentum=0.9", "optimizer.weight_decay=1e-2",
       "schedule=constant"]  # fmt: skip
UNEVALUATED = ["trainer.limit_val_batches=0", "trainer.limit_test_batches=0"]
SHORT = ["trainer.precision=64-true", "trainer.max_steps=5", "batch_size=96", *FEW, *SGD]
NET = ["model=vgg_small", "model.stages=[[4],[6]]", "model.hidden=[19,13]", "model.dropout=0.3",
       "dataset.image_size=8", "trainer.enable_progress_bar=false"]  # fmt: skip
"""Convolutions, then a head whose widths neither 2 nor 4 workers divide, with Dropout."""
TRUNK = (9 + 1) * 4 + (4 * 9 + 1) * 6
"""Its parameters in the convolutions; the head gets 24 features."""
UNEVEN = ["trainer.precision=64-true", "trainer.max_epochs=1", "batch_size=384", *FEW, *SGD]
"""One epoch, whose last batch no number of workers divides."""
EXAMPLES = [HERE, "model=mlp", "~model.hidden", "~model.dropout",
            "dataset.image_size=8"]  # fmt: skip


def hybrid(workers: int, *options: str, nodes: int = 1) -> list[str]:
    here = [f"topology.nodes={nodes}", f"topology.devices_per_node={workers // nodes}"]
    return ["strategy=hybrid", *here, *[f"strategy.{option}" for option in options]]


# equal to one worker


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "workers"),
    [
        ("a", 2),
        ("c", 2),
        ("b", 4),
        pytest.param("b", 2, marks=CAMPAIGN),
        pytest.param("a", 4, marks=CAMPAIGN),
        pytest.param("c", 4, marks=CAMPAIGN),
    ],
)
def test_equal_to_one_worker(freeze: Freeze, pools: Pools, scheme: str, workers: int) -> None:
    options = [*NET, *SHORT, "trainer.limit_val_batches=1.0", "trainer.limit_test_batches=1.0"]
    one, several = freeze("one", *options), freeze("several", *options, *hybrid(workers, f"scheme={scheme}"))
    assert start(one) == 0
    pools(workers).run(several)
    assert apart(several, one) <= 1e-10
    for name in ("train/loss", "val/loss", "test/loss", "test/acc"):
        assert metrics(several)[name] == pytest.approx(metrics(one)[name], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [pytest.param("a", marks=CAMPAIGN), pytest.param("b", marks=CAMPAIGN), "c"])
def test_uneven_batches_accumulated_and_clipped(freeze: Freeze, pools: Pools, scheme: str) -> None:
    options = [*NET, *UNEVEN, "trainer.accumulate_grad_batches=2", "trainer.gradient_clip_val=0.5"]
    one, several = freeze("one", *options), freeze("several", *options, *hybrid(4, f"scheme={scheme}"))
    unclipped = freeze("unclipped", *options, "trainer.gradient_clip_val=1e9")
    assert start(one) == start(unclipped) == 0
    pools(4).run(several)
    assert summary(one)["samples"] % 384 % 4
    assert apart(several, one) <= 1e-10
    assert apart(unclipped, one) > 1e-3
    assert metrics(several)["train/loss"] == pytest.approx(metrics(one)["train/loss"], rel=1e-9), "the step's mean"


@pytest.mark.slow
def test_float32(freeze: Freeze, pools: Pools) -> None:
    options = ["model=lenet5", "dataset.image_size=16", "trainer.max_steps=5", "batch_size=96", *SGD]
    one, several = freeze("one", *options), freeze("several", *options, *hybrid(2))
    assert start(one) == 0
    pools(2).run(several)
    assert apart(several, one) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [pytest.param("a", marks=CAMPAIGN), pytest.param("b", marks=CAMPAIGN), "c"])
def test_all_is_head(freeze: Freeze, pools: Pools, scheme: str) -> None:
    options = [*TINY, *SHORT, "model.hidden=[33]", "model.dropout=0.4", "trainer.gradient_clip_val=0.5"]
    one, several = freeze("one", *options), freeze("several", *options, *hybrid(2, f"scheme={scheme}"))
    assert start(one) == 0
    pools(2).run(several)
    assert apart(several, one) <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [pytest.param("a", marks=CAMPAIGN), "b"])
def test_synchronized_batch_normalization_and_parameters_around_the_head(
    freeze: Freeze, pools: Pools, scheme: str
) -> None:
    model = ["model._target_=hybrid_examples.Normed", "model.parallel.sharded=[head]", "trainer.sync_batchnorm=true"]
    options = [*EXAMPLES, *SHORT, *model]
    one, several = freeze("one", *options), freeze("several", *options, *hybrid(2, f"scheme={scheme}"))
    assert start(one) == 0
    pools(2).run(several)
    assert apart(several, one) <= 1e-10


@pytest.mark.slow
def test_two_heads(freeze: Freeze, pools: Pools) -> None:
    model = ["model._target_=hybrid_examples.TwoHeads", "model.parallel.sharded=[first,second]"]
    options = [*EXAMPLES, *SHORT, *model, "trainer.accumulate_grad_batches=2"]
    one, several = freeze("one", *options), freeze("several", *options, *hybrid(2))
    assert start(one) == 0
    pools(2).run(several)
    assert apart(several, one) <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [pytest.param("a", marks=CAMPAIGN), "c"])
def test_somebody_s_data_module(freeze: Freeze, pools: Pools, scheme: str) -> None:
    """Its validation samples leave one worker a batch more than the other."""
    made = ["+model.classes=3", "+model.image_shape=[4,1,1]", "+task.classes=3", "model=mlp", "model.hidden=[7]", *SGD]
    points = [option for option in POINTS if option not in ("~model", *OWN_TASK)]
    options = [*points, *made, "trainer.precision=64-true"]
    one = freeze("one", *options, "strategy=ddp", "topology.devices_per_node=2",
                 f"trainer.accumulate_grad_batches={2 if scheme == 'c' else 1}")  # fmt: skip
    several = freeze("several", *options, *hybrid(2, f"scheme={scheme}"))
    pools(2).run(one)
    pools(2).run(several)
    assert apart(several, one) <= 1e-10
    assert metrics(several)["val/loss"] == pytest.approx(metrics(one)["val/loss"], rel=1e-6)


@pytest.mark.slow
def test_compiled(freeze: Freeze, pools: Pools, tmp_path: Path) -> None:
    noted = tmp_path / "compiled_to_graphs"
    net = [HERE, "model._target_=compiled_examples.InterpretedVGG", f"+model.noted={noted}"]
    options = [*NET, *SHORT, *net, *UNEVALUATED, "trainer.precision=32-true", *hybrid(2, "scheme=b")]
    plain, compiled = freeze("plain", *options), freeze("compiled", *options, "trainer.compile=true")
    for run_dir in (plain, compiled):
        pools(2).run(run_dir)
    assert noted.exists()
    assert apart(compiled, plain) <= 1e-5


def test_one_worker_alone(freeze: Freeze) -> None:
    one, alone = freeze("one", *NET, *SHORT), freeze("alone", *NET, *SHORT, *hybrid(1, "scheme=b"))
    assert start(one) == start(alone) == 0
    assert apart(alone, one) <= 1e-12


# equal to the serial order of passes, where the head is updated in between


def serial(run_dir: Path, passes: int, period: int, scale: float) -> dict[str, Tensor]:
    """One process, plain torch: the head updated after every `period` passes, the trunk once a step."""
    state = assemble(load(run_dir), run_dir, StopRequest())
    model: Any = state.task.model
    trunk, head = (
        _part_of(state.raw_optimizer, part, rate) for part, rate in ((model.features, 1.0), (model.classifier, scale))
    )
    for part in state.data.train_parts(0):
        images, labels = state.data.on_after_batch_transfer(part.batch, 0)
        images = images.double()
        assert part.keys is not None
        trunk.zero_grad()
        head.zero_grad()
        waiting, seen = 0, 0
        chunks = torch.arange(len(labels)).tensor_split(min(passes, len(labels)))
        for number, chunk in enumerate(chunks):
            state.sample_keys.set(part.keys[chunk])
            loss = F.cross_entropy(model.classifier(model.features(images[chunk])), labels[chunk])
            (loss * (len(chunk) / len(labels))).backward()
            waiting, seen = waiting + 1, seen + len(chunk)
            if waiting == period or number == len(chunks) - 1:
                for parameter in model.classifier.parameters():
                    parameter.grad.mul_(len(labels) / seen)
                head.step()
                head.zero_grad()
                waiting, seen = 0, 0
        trunk.step()
    return state.task.state_dict()


def _part_of(optimizer: Any, module: nn.Module, rate: float) -> torch.optim.Optimizer:
    members = set(module.parameters())
    groups = [
        {**group, "lr": group["lr"] * rate, "params": [p for p in group["params"] if p in members]}
        for group in optimizer.param_groups
    ]
    return type(optimizer)(groups)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "workers", "period", "scale"),
    [
        ("c", 2, 1, 0.5),
        ("b", 4, 2, 1.7),
        ("a", 2, None, 0.25),
        pytest.param("b", 2, 1, 0.5, marks=CAMPAIGN),
        pytest.param("b", 4, 1, 1.0, marks=CAMPAIGN),
        pytest.param("c", 4, 1, 1.0, marks=CAMPAIGN),
        pytest.param("c", 4, 2, 1.7, marks=CAMPAIGN),
        pytest.param("a", 4, None, 0.25, marks=CAMPAIGN),
        pytest.param("b", 4, 4, 0.25, marks=CAMPAIGN),
    ],
)
def test_equal_to_passes_one_after_the_other(
    freeze: Freeze, pools: Pools, scheme: str, workers: int, period: int | None, scale: float
) -> None:
    of_strategy = [f"scheme={scheme}", f"update_period={period or 'null'}", f"sharded_lr_scale={scale}"]
    one, several = freeze("one", *NET, *UNEVEN), freeze("several", *NET, *UNEVEN, *hybrid(workers, *of_strategy))
    pools(workers).run(several)
    assert distance(weights(several), serial(one, workers, period or workers, scale)) <= 1e-10


@pytest.mark.slow
def test_mixed_precision_sees_the_head_s_updates(freeze: Freeze, pools: Pools) -> None:
    """Scheme b's passes share one autocast, whose cache of cast weights must not outlive an update."""
    options = [*NET, *SHORT, "trainer.precision=bf16-mixed", "optimizer.lr=0.5", "model.dropout=0"]
    b, c, once = (
        freeze(name, *options, *hybrid(4, f"scheme={name[0]}", f"update_period={period}"))
        for name, period in (("b", 1), ("c", 1), ("b-once", 4))
    )
    for run_dir in (b, c, once):
        pools(4).run(run_dir)
    assert apart(b, c) < 0.1
    assert apart(once, c) > 0.5


# what travels


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "k", "nodes"),
    [
        ("a", 2, 1),
        ("b", 2, 2),
        ("c", 4, 2),
        *(pytest.param(scheme, 4, 1, marks=CAMPAIGN) for scheme in "abc"),
        *(pytest.param(scheme, 4, 2, marks=CAMPAIGN) for scheme in "ab"),
    ],
)
def test_ledger_and_formula_agree(freeze: Freeze, pools: Pools, scheme: str, k: int, nodes: int) -> None:
    probe = [HERE, "+callbacks.probe._target_=hybrid_examples.Probe"]
    run_dir = freeze("run", *NET, *SHORT, "trainer.max_steps=2", *hybrid(k, f"scheme={scheme}", nodes=nodes), *probe)
    pools(k).run(run_dir)
    sent, told = summary(run_dir)["communication"], json.loads((run_dir / "probe.json").read_text())
    b, e = 96 // k, 8
    head = 2 * (k - 1) * b * e * (24 + 19 + 13) + 2 * (k - 1) / k * b * e * 10
    assert sent["bytes_a_step_and_worker"] == head + 2 * (k - 1) / k * TRUNK * e
    assert sum(t["bytes"] for t in told["traffic"]) == sent["bytes_a_step_and_worker"]
    assert sum(t["inter_node_bytes"] for t in told["traffic"]) == sent["inter_node_bytes_a_step_and_worker"]
    assert (sent["inter_node_bytes"] > 0) is (nodes > 1)
    assert sum(t["messages"] for t in told["traffic"]) == told["messages"]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["a", pytest.param("b", marks=CAMPAIGN)])
def test_mixed_precision_halves_activations(freeze: Freeze, pools: Pools, scheme: str) -> None:
    mixed = [*NET, *SHORT, "trainer.precision=bf16-mixed"]
    one, several = freeze("one", *mixed), freeze("several", *mixed, *hybrid(2, f"scheme={scheme}"))
    assert start(one) == 0
    pools(2).run(several)
    k, b = 2, 96 // 2
    head = 2 * (k - 1) * b * 2 * (24 + 19 + 13) + 2 * (k - 1) / k * b * 2 * 10
    assert summary(several)["communication"]["bytes_a_step_and_worker"] == head + 2 * (k - 1) / k * TRUNK * 4
    assert apart(several, one) < 0.02


@pytest.mark.parametrize(
    ("workers", "activations", "convolutions"),
    [(2, 13, 59), (4, 39, 88), (8, 90, 103), (16, 193, 110), (32, 398, 114), (64, 809, 116)],
)
def test_published_sizes(workers: int, activations: int, convolutions: int) -> None:
    """Deep Image at 64 images a worker: FACTS 1.3 (c), MB a worker and step."""
    for scheme in ("a", "b", "c"):
        sent = head_traffic(Placement(workers, min(workers, 4)), scheme, 64, 25088, [6144, 6144, 1000], 4)  # pyright: ignore[reportArgumentType]
        inputs = [t for t in sent if "inputs" in t.what]
        assert sum(t.bytes for t in inputs) == 2 * (workers - 1) * 64 * 25088 * 4
        assert round(sum(t.bytes for t in inputs) / 1e6) == activations
    assert round(2 * (workers - 1) / workers * 58.86) == convolutions


# checkpoints


@pytest.mark.slow
def test_resumed_on_any_number_of_workers_and_on_one_device(freeze: Freeze, pools: Pools, tmp_path: Path) -> None:
    often = ["callbacks.checkpoint.every_n_steps=1", "callbacks.checkpoint.keep_last=9"]
    plain = [option for option in SHORT if not option.startswith("optimizer")]
    options = [*NET, *plain, *often, "optimizer=adamw", "optimizer.lr=0.01"]
    one, two = freeze("one", *options), freeze("two", *options, *hybrid(2, "scheme=b", "update_period=2"))
    assert start(one) == 0
    pools(2).run(two)
    again = cut_back(two, tmp_path / "again", 3)
    pools(2).run(again, "resume")
    assert summary(again)["resumed_from_step"] == 3
    assert all(torch.equal(a, b) for a, b in zip(weights(again).values(), weights(two).values(), strict=True))

    strategy = yaml.safe_load((two / "config.yaml").read_text())["strategy"]
    single = {"_target_": "leyden.trainer.strategies.single.Single"}
    for source, workers, chosen in (
        (two, 4, strategy | {"update_period": 4}),
        (two, 1, single),
        (one, 2, strategy | {"scheme": "c", "update_period": None}),
    ):
        moved = cut_back(source, tmp_path / f"{source.name}-on-{workers}", 3)
        change = {"topology.devices_per_node": workers, "strategy": chosen}
        (moved / "resume.yaml").write_text(yaml.safe_dump([{"changed": change}]))
        if workers == 1:
            assert start(moved, "resume") == 0
        else:
            pools(workers).run(moved, "resume")
        assert summary(moved)["resumed_from_step"] == 3
        assert apart(moved, one) <= 1e-10


@pytest.mark.slow
def test_starts_from_weights_of_one_device(freeze: Freeze, pools: Pools) -> None:
    first = freeze("first", *NET, *SHORT)
    assert start(first) == 0
    options = [*NET, *SHORT, "trainer.max_steps=2", f"init_from={first}"]
    one, several = freeze("one", *options), freeze("several", *options, *hybrid(2))
    assert start(one) == 0
    pools(2).run(several)
    assert apart(several, one) <= 1e-10
    assert "10 of 10 tensors" in (several / "run.log").read_text()
    assert f"{sum(w.numel() for w in weights(first).values()):,} parameters" in (several / "run.log").read_text()


# what is refused


def refused(run_dir: Path) -> str:
    with pytest.raises(ConfigError) as error:
        check_classes(load(run_dir))
    return str(error.value)


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["model.parallel=null"], ["model.parallel.sharded", "VGG names no part", "alexnet_owt", "strategy=ddp"]),
        (["model.parallel.sharded=classifier"], ["must be a list of names"]),
        (["strategy.scheme=d"], ["strategy.scheme = d", "a, b"]),
        (["strategy.scheme=b", "model.parallel.sharded=[features,classifier]"], ["these are 2", "scheme=c"]),
        (["batch_size=98"], ["batch_size = 98", "divisible by 4 workers", "batch_size=96", "batch_size=100"]),
        (["strategy.scheme=c", "batch_size=100"],
         ["4 workers x 4 passes of scheme c", "batch_size=96", "batch_size=112"]),
        (["trainer.accumulate_grad_batches=5"], ["4 workers x 5 accumulate_grad_batches", "batch_size=80"]),
        (["strategy.update_period=2"], ["must divide the 1 passes", "update_period=1, or null"]),
        (["strategy.scheme=b", "strategy.update_period=3"], ["must divide the 4 passes", "=1 or 2 or 4, or null"]),
        (["strategy.scheme=b", "strategy.update_period=0"], ["must divide the 4 passes"]),
        (["strategy.scheme=b", "strategy.update_period=2", "trainer.gradient_clip_val=1.0"],
         ["updated 2 times a step", "strategy.update_period=null"]),
        (["trainer.precision=16-mixed"], ["trainer.precision=bf16-mixed"]),
        (["strategy.sharded_lr_scale=0"], ["greater than 0"]),
        (["trainer.exact_dropout=false"], ["trainer.exact_dropout = false", "by one mask"]),
    ],
)  # fmt: skip
def test_refused_before_anything_starts(freeze: Freeze, options: list[str], told: list[str]) -> None:
    text = " ".join(refused(freeze("run", *NET, *SHORT, *hybrid(4), *options)).split())
    assert [word for word in told if word not in text] == []


@pytest.mark.parametrize(
    ("chain", "told"),
    [
        ([nn.Flatten(), nn.ReLU()], "has no Linear layer"),
        ([nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)], "the 3 outputs of head.2 cannot be divided among 4 workers"),
        ([nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 8)], "head.1 is a BatchNorm1d"),
        ([nn.Linear(8, 16), nn.Softmax(1), nn.Linear(16, 8)], "head.1 is a Softmax"),
    ],
)  # fmt: skip
def test_chains_that_cannot_be_divided(chain: Sequence[nn.Module], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ShardedHead("head", nn.Sequential(*chain), P2PChannel(Ledger(0, Placement(4, 4))))


def test_deep_image_s_own_case() -> None:
    """1000 classes on 16 and 32 workers; every row is somebody's."""
    for workers in (16, 32):
        linear = nn.Linear(4, 1000)
        whole = linear.weight.detach().clone()
        parts = []
        for rank in range(workers):
            linear = nn.Linear(4, 1000)
            linear.weight.data.copy_(whole)
            ShardedHead("head", linear, P2PChannel(Ledger(rank, Placement(workers, 4))))
            parts.append(linear.weight.detach())
        assert {len(part) for part in parts} == {1000 // workers, 1000 // workers + 1}
        assert torch.equal(torch.cat(parts), whole)


MODELS = sorted((CONF / "model").glob("*.yaml"))


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", [path.stem for path in MODELS if "sharded:" in path.read_text()])
def test_every_shipped_head_can_be_divided(freeze: Freeze, name: str) -> None:
    node = load(freeze("run", f"model={name}")).model
    assert node is not None
    assert node.parallel is not None
    with torch.device("meta"):
        model = build(node, classes=1000, image_shape=(3, 224, 224))
    for sharded in node.parallel["sharded"]:
        head = ShardedHead(sharded, model.get_submodule(sharded), P2PChannel(Ledger(31, Placement(32, 4))))
        assert head.outputs[-1] == 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["model._target_=hybrid_examples.Normed", "model.parallel.sharded=[head]"],
         "each of 2 workers would take the statistics of its own samples"),
        (["model._target_=hybrid_examples.TwoHeads", "model.parallel.sharded=[first,third]"],
         "no module 'third'; it has conv, first, second"),
        (["model._target_=hybrid_examples.Tied", "model.parallel.sharded=[up]"],
         "task.model.down.weight and task.model.up.weight are one tensor"),
        (["model._target_=hybrid_examples.TwoHeads", "model.parallel.sharded=[first]", "~optimizer.momentum",
          "~optimizer.nesterov", "optimizer._target_=torch.optim.Adafactor"], "Adafactor works on whole tensors"),
    ],
)  # fmt: skip
def test_refused_when_the_model_is_built(freeze: Freeze, pools: Pools, options: list[str], told: str) -> None:
    with pytest.raises(Failed, match=told):
        pools(2).run(freeze("run", *EXAMPLES, *SHORT, *options, *hybrid(2)))
