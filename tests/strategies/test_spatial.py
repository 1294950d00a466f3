"""strategy=spatial: any grid of workers is one worker, and only halos travel."""

import json
import shutil
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from pool import Failed, Pool
from runs import FEW, HERE, Freeze, distance, rows, summary
from torch import Tensor, nn

from leyden.models.cots_autoencoder import COTSAutoencoder, Stage
from leyden.models.local_filters import L2Pool, LocalFilters
from leyden.models.local_net import LocalNet
from leyden.trainer.base.errors import ConfigError
from leyden.trainer.compose.checks import check_classes
from leyden.trainer.config.schema import load
from leyden.trainer.core.checkpoints import checkpoint_io
from leyden.trainer.core.traffic import Ledger
from leyden.trainer.core.transfers import Placement
from leyden.trainer.entrypoints.start import start
from leyden.trainer.runs import checkpoints
from leyden.trainer.strategies.spatial.grid import Grid
from leyden.trainer.strategies.spatial.halo_exchange import HaloChannel, PendingHalo
from leyden.trainer.strategies.spatial.tiling import Region, materialize

Pools = Callable[[int], Pool]
CAMPAIGN = pytest.mark.campaign
SHORT = ["trainer.precision=64-true", "trainer.max_steps=5", "trainer.log_every_n_steps=1", "schedule=constant",
         "trainer.enable_progress_bar=false", "dataset.image_size=16", "augment=none"]  # fmt: skip
UNLIMITED = [*SHORT, "batch_size=500", "model=local_net", "model.maps=[4,3]", "model.rf=4", "model.lcn=3"]
NET = [*UNLIMITED, *FEW, "batch_size=40"]
CODER = [*SHORT, *FEW, "batch_size=50", "model=cots_autoencoder", "task=reconstruction", "model.maps=4",
         "model.stages=2", "model.rf=5", "model.pool=3", "model.lcn=3", "callbacks.checkpoint.monitor=null",
         "optimizer.lr=0.002"]  # fmt: skip
GREEDY = ["trainer.max_steps=-1", "trainer.max_epochs=2", "trainer.limit_train_batches=4",
          "trainer.limit_val_batches=1.0", "trainer.limit_test_batches=1.0"]  # fmt: skip
LOCAL_NET_SETTINGS = ["maps", "rf", "stride", "pool", "pool_stride", "lcn", "batch_norm", "dropout"]
EVERY_STEP = ["callbacks.checkpoint.every_n_steps=1", "callbacks.checkpoint.keep_last=9"]


def grid(gy: int, gx: int) -> list[str]:
    return ["strategy=spatial", f"strategy.grid=[{gy},{gx}]", f"topology.devices_per_node={gy * gx}"]


def whole(run_dir: Path) -> dict[str, Tensor]:
    """The newest weights, in the layout of one device."""
    path, content = checkpoint_io.newest(run_dir) or (None, {})
    assert path is not None
    divided = checkpoint_io.shards_of(path, content)
    return (content if divided is None else divided.put_together(content))["model"]


def apart(one: Path, other: Path) -> float:
    return distance(whole(one), whole(other))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [pytest.param((1, 2), marks=CAMPAIGN), (2, 1), (2, 2)])
def test_a_grid_is_one_worker(freeze: Freeze, pools: Pools, shape: tuple[int, int]) -> None:
    """With dropout in the tiled part, and a smaller last batch (the third of five)."""
    options = [*UNLIMITED, "model.dropout=0.3", *(["model.maps=[4]", "model.pool_stride=2"] if shape == (2, 1) else [])]
    one, several = freeze("one", *options), freeze("several", *options, *grid(*shape))
    assert start(one) == 0
    text = pools(shape[0] * shape[1]).run(several)
    assert apart(several, one) <= 1e-10
    count = sum(tensor.numel() for tensor in whole(one).values())
    assert f"{count:,} parameters" in text
    for row, same in zip(rows(several), rows(one), strict=True):
        if row["train/loss"]:
            assert float(row["train/loss"]) == pytest.approx(float(same["train/loss"]), rel=1e-12)
    assert summary(several)["metrics"]["test/acc"] == pytest.approx(summary(one)["metrics"]["test/acc"], rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [pytest.param((1, 2), marks=CAMPAIGN), pytest.param((2, 1), marks=CAMPAIGN), (2, 2)])
def test_an_autoencoder_on_a_grid(freeze: Freeze, pools: Pools, shape: tuple[int, int]) -> None:
    """Both stages, one after the other; filters whose window reaches over several workers' tiles in the second."""
    one, several = freeze("one", *CODER, *GREEDY), freeze("several", *CODER, *GREEDY, *grid(*shape))
    assert start(one) == 0
    pools(shape[0] * shape[1]).run(several)
    assert apart(several, one) <= 1e-10
    first = COTSAutoencoder((1, 16, 16), 0, 4, 2, 5, 1, 3, 3).state_dict()
    moved = {name: (value - first[name.removeprefix("model.")]).norm() for name, value in whole(one).items()}
    assert min(moved.values()) > 1e-5
    assert [row["train/stage"] for row in rows(several) if row["train/stage"]] == ["0.0"] * 4 + ["1.0"] * 4
    for name in ("val/cost", "test/cost", "test/unexplained"):
        assert summary(several)["metrics"][name] == pytest.approx(summary(one)["metrics"][name], rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "shape"),
    [
        (["optimizer=adamw", "trainer.gradient_clip_val=0.05", "trainer.accumulate_grad_batches=3"], (1, 2)),
        (["model.batch_norm=true", "trainer.sync_batchnorm=true"], (2, 2)),
        pytest.param(
            ["trainer.gradient_clip_val=0.001", "trainer.gradient_clip_algorithm=value", "batch_size=7"],
            (1, 2),
            marks=pytest.mark.campaign,
        ),
        (["model.maps=[3]", "model.rf=12", "model.pool=2", "model.lcn=1"], (1, 4)),
    ],
    ids=["clipped by the norm", "batch norm", "clipped by value", "windows over several workers"],
)
def test_with(freeze: Freeze, pools: Pools, options: list[str], shape: tuple[int, int]) -> None:
    one, several = freeze("one", *NET, *options), freeze("several", *NET, *options, *grid(*shape))
    assert start(one) == 0
    pools(shape[0] * shape[1]).run(several)
    assert apart(several, one) <= 1e-10


@pytest.mark.slow
def test_a_replicated_stem_before_the_tiles(freeze: Freeze, pools: Pools) -> None:
    """What every worker computes whole gets the sum of the gradients of all tiles."""
    options = [*SHORT, *FEW, "batch_size=40", "model=local_net", *(f"~model.{name}" for name in LOCAL_NET_SETTINGS),
               "model._target_=spatial_examples.StemNet", *measured()]  # fmt: skip
    one, several = freeze("one", *options), freeze("several", *options, *grid(1, 2))
    assert start(one) == 0
    pools(2).run(several)
    assert apart(several, one) <= 1e-10
    told = json.loads((several / "traffic.json").read_text())
    sent = summary(several)["communication"]["bytes_a_step_and_worker"]
    assert sum(t["bytes"] for t in told) == pytest.approx(sent, rel=1e-15)


@pytest.mark.slow
def test_a_clipped_autoencoder_with_shared_parameters(freeze: Freeze, pools: Pools) -> None:
    options = [*CODER, "trainer.gradient_clip_val=0.1", "trainer.accumulate_grad_batches=2"]
    one, several = freeze("one", *options), freeze("several", *options, *grid(1, 2))
    assert start(one) == 0
    pools(2).run(several)
    assert apart(several, one) <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "tolerance"),
    [("32-true", 1e-5), pytest.param("bf16-mixed", 0.03, marks=CAMPAIGN), ("bf16-true", 0.03)],
)
def test_precisions(freeze: Freeze, pools: Pools, precision: str, tolerance: float) -> None:
    options = [*NET, f"trainer.precision={precision}"]
    one, several = freeze("one", *options), freeze("several", *options, *grid(1, 2))
    assert start(one) == 0
    pools(2).run(several)
    expected = torch.bfloat16 if precision == "bf16-true" else torch.float32
    assert {value.dtype for value in whole(several).values()} == {expected}
    assert apart(several, one) <= tolerance


# --- bytes


def local_layers() -> list[Any]:
    features = LocalNet(10, (1, 16, 16), 0, (4, 3), rf=4, lcn=3).features
    return list(features)


def mean_halo(layer: Any, shape: tuple[int, int]) -> float:
    """Inputs of a layer that a worker needs and does not own, the mean over workers: counted one by one."""
    gy, gx = shape
    size, stride, before = layer.receptive_field

    @cache
    def owner(position: int, positions: int, parts: int) -> int:
        return next(k for k in range(parts) if position in torch.arange(positions).tensor_split(parts)[k].tolist())

    def needed(axis: int, parts: int) -> list[tuple[int, int]]:
        inputs, outputs = layer.input_shape[axis], layer.output_shape[axis]
        seen = {(owner(o, outputs, parts), o * stride - before + i) for o in range(outputs) for i in range(size)}
        return [(worker, i) for worker, i in seen if 0 <= i < inputs]

    foreign = 0
    for row_worker, row in needed(1, gy):
        for col_worker, col in needed(2, gx):
            mine = (owner(row, layer.input_shape[1], gy), owner(col, layer.input_shape[2], gx))
            foreign += mine != (row_worker, col_worker)
    return foreign / (gy * gx)


def halo_bytes(channels: int, batch: int, value: int, shape: tuple[int, int], layers: Iterable[Any]) -> list[float]:
    """2 C B s |halo| for each layer: once forward, once backward."""
    return [2 * layer.input_shape[0] * batch * value * mean_halo(layer, shape) for layer in layers]


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "nodes"), [((1, 2), 1), ((2, 2), 2), pytest.param((2, 2), 1, marks=CAMPAIGN)])
def test_a_classifier_sends_what_the_formula_says(
    freeze: Freeze, pools: Pools, shape: tuple[int, int], nodes: int
) -> None:
    workers = shape[0] * shape[1]
    run_dir = freeze("run", *NET, "trainer.max_steps=2", *grid(*shape), f"topology.nodes={nodes}",
                     f"topology.devices_per_node={workers // nodes}", *measured())  # fmt: skip
    pools(workers).run(run_dir)
    layers = local_layers()
    halos = sum(halo_bytes(0, 40, 8, shape, layers[1:]))  # every worker has the images
    channels, height, width = layers[-1].output_shape
    gathered = (workers - 1) / workers * channels * height * width * 40 * 8
    sent = summary(run_dir)["communication"]
    assert sent["bytes_a_step_and_worker"] == halos + gathered
    told = json.loads((run_dir / "traffic.json").read_text())
    assert sum(t["bytes"] for t in told) == pytest.approx(sent["bytes_a_step_and_worker"], rel=1e-15)
    assert sum(t["inter_node_bytes"] for t in told) == pytest.approx(sent["inter_node_bytes_a_step_and_worker"])
    assert (sent["inter_node_bytes"] > 0) == (nodes == 2)


@pytest.mark.slow
def test_an_autoencoder_sends_a_fifth_of_its_gradients_at_most(freeze: Freeze, pools: Pools) -> None:
    options = ["dataset.image_size=24", "model.maps=8", "model.rf=6", "batch_size=16", "trainer.max_steps=2",
               "trainer.precision=32-true"]  # fmt: skip
    run_dir = freeze("run", *CODER, *options, *grid(2, 2), *measured())
    pools(4).run(run_dir)
    model = COTSAutoencoder((1, 24, 24), 0, 8, 2, 6, 1, 3, 3)
    stage = model.stages[0]
    assert isinstance(stage, Stage)
    decoder, pool = halo_bytes(0, 16, 4, (2, 2), [stage.filters, stage.pool])
    # (batch, 3) sums, and the gradient of the decoder's scale
    summed = 2 * 3 / 4 * (3 * 16 + 1) * 4
    sent = summary(run_dir)["communication"]["bytes_a_step_and_worker"]
    assert sent == decoder + pool + summed
    told = json.loads((run_dir / "traffic.json").read_text())
    assert sum(t["bytes"] for t in told) == pytest.approx(sent, rel=1e-15)
    parameters = sum(p.numel() for p in stage.parameters())
    assert sent < 2 * 3 / 4 * parameters * 4 / 5


def measured() -> list[str]:
    return [HERE, "+callbacks.measure._target_=spatial_examples.Measure"]


def test_the_published_sizes() -> None:
    """FACTS: 3.8, 10.3 MB on 2 x 2, and 2.1, 5.4, 4.9 MB on 8 x 8 (there with maps cut to equal tiles)."""
    with torch.device("meta"):
        stages: list[Any] = list(COTSAutoencoder((3, 200, 200)).stages)

    def megabytes(number: int, shape: tuple[int, int]) -> float:
        layer = stages[number].filters
        return 2 * layer.input_shape[0] * 96 * 4 * sum(Grid(*shape).halos(layer).values()) / (shape[0] * shape[1]) / 1e6

    assert [megabytes(n, (2, 2)) for n in (0, 1)] == pytest.approx([3.8, 10.3], rel=0.08)
    assert [megabytes(n, (8, 8)) for n in (0, 1, 2)] == pytest.approx([2.1, 5.4, 4.9], rel=0.08)
    reduced = [2 * 63 / 64 * p.numel() * 4 / 1e6 for p in (stage.filters.weight for stage in stages)]
    ratios = [r / megabytes(n, (8, 8)) for n, r in enumerate(reduced)]
    assert min(ratios) > 400
    assert max(ratios) < 1000


# --- memory


@pytest.mark.slow
def test_a_worker_never_holds_more_than_its_share(freeze: Freeze, pools: Pools) -> None:
    """A net of 105 MB on four workers: each allocates a quarter while it is built, and holds a quarter of the rest."""
    run_dir = freeze(
        "run", "dataset=synthetic", "dataset._target_=spatial_examples.MeasuredImages", "dataset.samples=8",
        "dataset.image_shape=[3,48,48]", "batch_size=8", "model=local_net", "model.maps=[40]", "model.rf=13",
        "trainer.max_steps=2", "trainer.limit_val_batches=0.0", "trainer.limit_test_batches=0.0",
        "callbacks.checkpoint=null", *grid(2, 2), *measured(),
    )  # fmt: skip
    pools(4).run(run_dir)
    with torch.device("meta"):
        net = LocalNet(10, (3, 48, 48), 0, [40], rf=13)
    filters = net.features[0].get_parameter("weight").nbytes
    everything = 3 * sum(p.nbytes for p in net.parameters())  # weights, gradients, momentum
    for rank in range(4):
        sizes = json.loads((run_dir / f"memory-{rank}.json").read_text())
        assert sizes["held"] == pytest.approx(everything / 4, rel=0.1)
        assert sizes["building"] < 0.35 * filters


# --- checkpoints


def moved_to(freeze: Freeze, source: Path, name: str, step: int, *options: str) -> Path:
    """A run of another config that has the checkpoints of `source` up to a step."""
    run_dir = freeze(name, *options)
    shutil.copytree(source / "checkpoints", run_dir / "checkpoints")
    (run_dir / "checkpoints" / "last.ckpt").unlink()
    for path in checkpoints.saved_checkpoints(run_dir):
        if checkpoints.step_of(path) > step:
            checkpoints.remove(path)
    return run_dir


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(NET, id="local_net"),
        pytest.param([*CODER, "optimizer=adamw"], id="cots_autoencoder", marks=CAMPAIGN),
    ],
)
def test_resume_on_another_grid_and_on_one_device(freeze: Freeze, pools: Pools, options: list[str]) -> None:
    options = [*options, *EVERY_STEP]
    one, four = freeze("one", *options), freeze("four", *options, *grid(2, 2))
    assert start(one) == 0
    pools(4).run(four)
    alone = moved_to(freeze, four, "alone", 3, *options)
    assert start(alone, "resume") == 0
    assert apart(alone, one) <= 1e-10
    for name, source in (("from four", four), ("from one", one)):
        two = moved_to(freeze, source, name, 3, *options, *grid(1, 2))
        pools(2).run(two, "resume")
        assert summary(two)["resumed_from_step"] == 3
        assert apart(two, one) <= 1e-10


@pytest.mark.slow
def test_a_damaged_shard_leaves_the_checkpoint_before(freeze: Freeze, pools: Pools) -> None:
    options = [*NET, *EVERY_STEP, *grid(1, 2)]
    run_dir = freeze("run", *options)
    pools(2).run(run_dir)
    content = (run_dir / "config.yaml").read_text()
    for kind in ("damaged", "missing", "not finished"):
        again = moved_to(freeze, run_dir, kind, 4, *options)
        assert (again / "config.yaml").read_text() == content
        newest = checkpoints.path_of(again, 4)
        shard = checkpoints.shard_path(newest, 1)
        if kind == "damaged":
            spoilt = bytearray(shard.read_bytes())
            middle = slice(len(spoilt) // 2, len(spoilt) // 2 + 256)  # more than the padding between two tensors
            spoilt[middle] = bytes(byte ^ 0xFF for byte in spoilt[middle])
            shard.write_bytes(spoilt)
        elif kind == "missing":
            shard.unlink()
        else:  # killed after the workers' files, before the checkpoint itself
            newest.unlink()
        text = pools(2).run(again, "resume")
        assert summary(again)["resumed_from_step"] == 3
        if kind != "not finished":
            assert f"{shard.name} is" in text.replace("\n", "")
            assert "trying the one before" in text.replace("\n", " ")
        assert apart(again, run_dir) <= 1e-10


@pytest.mark.slow
def test_init_from(freeze: Freeze, pools: Pools) -> None:
    source = freeze("source", *NET)
    assert start(source) == 0
    divided = freeze("divided", *NET, *grid(2, 1))
    pools(2).run(divided)
    one = freeze("one", *NET, "seed=1", f"init_from={source}")
    assert start(one) == 0
    for name, origin in (("from one", source), ("from two", divided)):
        two = freeze(name, *NET, "seed=1", f"init_from={origin}", *grid(1, 2))
        text = pools(2).run(two)
        assert "4 of 4 tensors" in text.replace("\n", " ")
        assert apart(two, one) <= 1e-10


# --- refusals


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (
            [*NET, *grid(1, 2), "strategy.grid=[2,2]"],
            ["strategy.grid = [2, 2]", "the 2 workers", "strategy.grid=[1,2]"],
        ),
        ([*NET, *grid(1, 2), "strategy.grid=[2]"], ["strategy.grid = [2]", "two whole numbers"]),
        ([*NET, *grid(1, 2), "strategy.grid=[-1,-2]"], ["strategy.grid = [-1, -2]"]),
        (["model=lenet5", *grid(1, 2)], ["no part that can be tiled", "model=local_net"]),
        ([*NET, *grid(1, 2), "trainer.compile=true"], ["trainer.compile=false"]),
        ([*NET, *grid(1, 2), "trainer.exact_dropout=false"], ["trainer.exact_dropout=true"]),
        ([*NET, *grid(1, 2), "trainer.precision=16-mixed"], ["trainer.precision=bf16-mixed"]),
    ],
)
def test_refused_before_anything_starts(freeze: Freeze, options: list[str], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_classes(load(freeze("run", *options)))
    text = " ".join(str(caught.value).split())
    assert all(part in text for part in parts), text


def test_a_data_module_is_refused(freeze: Freeze) -> None:
    options = ["~dataset.image_size", "augment=none", "dataset._target_=lightning_examples.Points", "model=local_net"]
    run_dir = freeze("run", *options, *grid(1, 2), *measured())
    with pytest.raises(ConfigError, match="reads the whole batch"):
        check_classes(load(run_dir))


@pytest.mark.slow
def test_a_grid_finer_than_the_map(freeze: Freeze, pools: Pools) -> None:
    run_dir = freeze("run", *NET, "model.rf=14", "model.maps=[2]", "model.pool=2", "model.lcn=1", *grid(1, 4))
    with pytest.raises(Failed, match=r"\[1, 4\] is finer than the output map of .*features.0 \(LocalFilters\), 3 x 3"):
        pools(4).run(run_dir)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.BatchNorm2d(2), r"1 \(BatchNorm2d\) .* trainer.sync_batchnorm=true"),
        (nn.Conv2d(2, 2, 3), r"1 \(Conv2d\) cannot be divided by position"),
        (nn.MaxPool2d(2), r"1 \(MaxPool2d\) cannot be divided by position"),
    ],
)
def test_layers_that_cannot_be_divided(layer: nn.Module, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Region(nn.Sequential(LocalFilters((1, 8, 8), 2, 3), layer), "features", Grid(1, 2), 0, FakeLink(), 0)


def test_a_model_that_cannot_set_itself_is_refused() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.BatchNorm2d(2), nn.Linear(3, 3))
    with pytest.raises(ValueError, match=r"1 \(Linear\) was built without memory.*initialize"):
        materialize(model, torch.device("cpu"))


# --- order


class FakeLink(HaloChannel):
    """A neighbour that always sends zeros."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.ledger = Ledger(0, Placement(2, 2))
        self.peers = set()
        self._sending = []

    def exchange(self, outgoing: dict[int, Tensor], incoming: dict[int, Tensor], tag: int) -> PendingHalo:
        self.events.append("start")
        for tensor in incoming.values():
            tensor.zero_()
        return FakePending(self, [], incoming)


class FakePending(PendingHalo):
    def wait(self) -> dict[int, Tensor]:
        self._link.events.append("wait")  # pyright: ignore[reportAttributeAccessIssue]
        return super().wait()


class Watched(LocalFilters):
    """Filters that tell when which part of them is computed, forward and backward."""

    events: list[str]

    def at(self, x: Tensor, rows: range, cols: range, **positional: Tensor) -> Tensor:
        # window 3, own inputs 0 to 4 of 8: outputs 0 to 2 of 3 rows need no neighbour
        part = "inner" if cols.stop == 3 else "border"
        self.events.append(part)
        y = super().at(x, rows, cols, **positional)
        y.register_hook(lambda _: self.events.append(f"{part} backward"))
        return y


def test_messages_travel_while_the_inner_part_is_computed() -> None:
    link = FakeLink()
    Watched.events = link.events
    layers = nn.Sequential(L2Pool((1, 8, 10), 1), Watched((1, 8, 10), 2, 3))
    Region(layers, "features", Grid(1, 2), 0, link, 0)
    own = torch.randn(2, 1, 8, 5, requires_grad=True)
    for module in layers:
        own = module.forward(own)
    assert link.events == ["start", "inner", "wait", "border"]
    link.events.clear()
    own.sum().backward()
    assert link.events == ["border backward", "start", "inner backward", "wait"]


def test_contributions_travel_while_the_inner_part_is_computed() -> None:
    link = FakeLink()
    Watched.events = link.events
    torch.manual_seed(0)
    stage = COTSAutoencoder((1, 8, 10), 0, 2, 1, 3, 1, 1, 1).stages[0]
    assert isinstance(stage, Stage)
    stage.filters.__class__ = Watched
    original = LocalFilters.transposed_at

    def watched(self: Any, y: Tensor, weight: Tensor) -> Tensor:
        part = "inner" if y.shape[3] == 3 else "border"
        self.events.append(part)
        result = original(self, y, weight)
        result.register_hook(lambda _: self.events.append(f"{part} backward"))
        return result

    Watched.transposed_at = watched  # pyright: ignore[reportAttributeAccessIssue]
    Region(stage, "stage", Grid(1, 2), 0, link, 0)
    code = torch.randn(2, 2, 6, 4, requires_grad=True)
    link.events.clear()
    own = stage.decoder.forward(code)
    assert link.events == ["border", "start", "inner", "wait"]
    link.events.clear()
    own.sum().backward()
    assert link.events == ["start", "inner backward", "wait", "border backward"]
