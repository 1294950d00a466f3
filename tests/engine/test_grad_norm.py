"""train/grad_norm: the norm of the whole gradient before clipping, under every strategy, where values are logged."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from lightning_examples import SEEN
from pool import Pool
from runs import FEW, NETS, POINTS, TINY, Freeze, distance, rows, task, weights
from tables import thinned

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.base.signals import StopRequest
from leyden.trainer.cli.main import main
from leyden.trainer.compose.checks import check_classes, check_values
from leyden.trainer.config.schema import Config, load
from leyden.trainer.engine.build import assemble
from leyden.trainer.entrypoints.start import start

Pools = Callable[[int], Pool]
LOGGED = "trainer.log_grad_norm=true"
EVERY = "trainer.log_every_n_steps=1"
PLAIN = ["optimizer=sgd", "optimizer.lr=0.1", "optimizer.momentum=0.0", "optimizer.weight_decay=0.0",
         "schedule=constant"]  # fmt: skip
SHORT = [*PLAIN, "trainer.precision=64-true", "trainer.max_steps=4", "batch_size=48", LOGGED, *FEW,
         "trainer.enable_progress_bar=false", "trainer.accumulate_grad_batches=2"]  # fmt: skip
TWO = "topology.devices_per_node=2"


def norms(run_dir: Path) -> dict[int, float]:
    """By step."""
    return {int(row["step"]): float(row["train/grad_norm"]) for row in rows(run_dir) if row.get("train/grad_norm")}


def by_hand(run_dir: Path, clip: float = torch.inf) -> dict[int, float]:
    """Torch's own norm in a loop over the same batches, each as a whole."""
    state = assemble(load(run_dir), run_dir, StopRequest())
    model = state.task.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found: dict[int, float] = {}
    for part, step in zip(state.data.train_parts(0), range(state.total_steps), strict=False):
        images, labels = state.data.on_after_batch_transfer(part.batch, 0)
        optimizer.zero_grad()
        F.cross_entropy(model(images.double()), labels).backward()
        found[step + 1] = float(torch.nn.utils.clip_grad_norm_(model.parameters(), clip))
        optimizer.step()
    return found


@pytest.mark.parametrize(
    ("options", "clip"),
    [
        ([LOGGED], torch.inf),
        (["trainer.gradient_clip_val=0.5"], 0.5),
        ([LOGGED, "trainer.gradient_clip_val=0.5"], 0.5),
    ],
    ids=["not clipped", "clipped", "both"],
)
def test_equal_to_torchs_own_in_a_hand_written_loop(freeze: Freeze, options: list[str], clip: float) -> None:
    """Of the accumulated gradient, before clipping."""
    short = [option for option in SHORT if option != LOGGED]
    run_dir = freeze("run", *NETS["mlp"], *short, "augment=none", EVERY, *options)
    assert start(run_dir) == 0
    expected = by_hand(freeze("hand", *NETS["mlp"], *short, "augment=none", "trainer.accumulate_grad_batches=1"), clip)
    assert norms(run_dir) == pytest.approx(expected, rel=1e-12)
    assert min(expected.values()) > 0.5


def test_the_norm_is_only_looked_at_and_only_where_it_is_logged(freeze: Freeze) -> None:
    options = [*TINY, "trainer.log_every_n_steps=7", "trainer.max_epochs=1"]
    plain, logged = freeze("plain", *options), freeze("logged", *options, LOGGED)
    assert start(plain) == start(logged) == 0
    assert distance(weights(logged), weights(plain)) == 0.0
    assert sorted(norms(logged)) == [7, 14, 18], "18 steps an epoch"
    assert norms(plain) == {}


@pytest.mark.parametrize("algorithm", ["value", "adaptive"])
def test_before_another_kind_of_clipping(freeze: Freeze, algorithm: str) -> None:
    options = [*NETS["mlp"], *SHORT, EVERY, "trainer.max_steps=1"]
    clip = ["trainer.gradient_clip_val=1e-4", f"trainer.gradient_clip_algorithm={algorithm}"]
    free, clipped = freeze("free", *options), freeze("clipped", *options, *clip)
    assert start(free) == start(clipped) == 0
    assert norms(clipped) == norms(free)
    assert distance(weights(clipped), weights(free)) > 0


def test_a_skipped_batch_has_none(freeze: Freeze) -> None:
    run_dir = freeze("run", *POINTS, task("Skips"), LOGGED, "trainer.max_epochs=1")
    assert start(run_dir) == 0
    SEEN.clear()
    found = norms(run_dir)
    assert found
    assert {(step - 1) % 3 for step in found} == {1, 2}


UNDER = {
    "ddp": ("mlp", ["strategy=ddp", TWO]),
    "hsdp on two": ("mlp", ["strategy=hsdp", "strategy.min_parameters=500", "topology.nodes=2"]),
    "butterfly, lazy": ("mlp", ["strategy=butterfly", "strategy.bucket_cap_mb=0.01", TWO]),
    "fsdp": ("mlp", ["strategy=fsdp", "strategy.min_parameters=500", TWO]),
    "hybrid": ("vgg", ["strategy=hybrid", TWO]),
    "hybrid, scheme c": ("vgg", ["strategy=hybrid", "strategy.scheme=c", TWO]),
    "spatial": ("local_net", ["strategy=spatial", "strategy.grid=[1,2]", TWO]),
    "hsdp on four": ("mlp", ["strategy=hsdp", "strategy.min_parameters=500", "topology.nodes=2", TWO]),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", thinned(UNDER, in_ci=["butterfly, lazy", "fsdp", "spatial"]))
def test_equal_to_one_worker_under(freeze: Freeze, pools: Pools, case: str) -> None:
    net, strategy = UNDER[case]
    options = [*NETS[net], *SHORT, "trainer.log_every_n_steps=2", "trainer.max_steps=5"]
    one, several = freeze("one", *options), freeze("several", *options, *strategy)
    assert start(one) == 0
    assert "updates are applied at once" not in pools(4 if case == "hsdp on four" else 2).run(several)
    assert norms(several) == pytest.approx(norms(one), rel=1e-10)
    assert sorted(norms(one)) == [2, 4, 5]
    assert distance(weights(several), weights(one)) <= 1e-10


@pytest.mark.parametrize("strategy", ["asgd", "easgd", "local_sgd"])
def test_of_one_simulated_worker(freeze: Freeze, strategy: str) -> None:
    options = [*NETS["mlp"], *SHORT, "trainer.accumulate_grad_batches=1", "trainer.log_every_n_steps=2"]
    one = freeze("one", *options)
    simulated = freeze("simulated", *options, f"strategy={strategy}", "strategy.execution.simulate=true")
    assert start(one) == start(simulated) == 0
    first = norms(one)[2]
    assert norms(simulated)[2] == pytest.approx(first, rel=1e-12 if strategy == "asgd" else 1.0)


@pytest.mark.slow
def test_the_mean_of_the_workers_own_under_local_sgd(freeze: Freeze, pools: Pools) -> None:
    """All begin at the same weights, each on its half of the batch: no norm of the sum."""
    options = [*NETS["mlp"], *SHORT, "trainer.accumulate_grad_batches=1", EVERY, "trainer.max_steps=1"]
    one, two = freeze("one", *options), freeze("two", *options, "strategy=local_sgd", "strategy.h=2", TWO)
    assert start(one) == 0
    pools(2).run(two)
    (mean,), (whole,) = norms(two).values(), norms(one).values()
    assert whole < mean < 2 * whole


def check_all(config: Config) -> None:
    check_values(config)
    check_classes(config)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["model=vgg_small", "strategy=hybrid", TWO, "strategy.scheme=b", "strategy.update_period=1"],
            ["trainer.log_grad_norm = true", "updated 2 times a step", "strategy.update_period=null"],
        ),
        (
            ["topology.device.kind=cuda", "trainer.precision=16-mixed", "trainer.gradient_clip_val=0.1",
             "trainer.gradient_clip_algorithm=value"],
            ["trainer.log_grad_norm = true", "once a step", "trainer.gradient_clip_algorithm=norm"],
        ),
        (
            ["topology.device.kind=cuda", "trainer.precision=16-mixed", "+optimizer.fused=true"],
            ["optimizer.fused = true", "trainer.log_grad_norm has read them", "optimizer.fused=false"],
        ),
    ],
    ids=["several updates", "unscaled already", "fused"],
)  # fmt: skip
def test_refused_before_anything_starts(freeze: Freeze, options: list[str], words: list[str]) -> None:
    config = load(freeze("run", *options, LOGGED))
    with pytest.raises(ConfigError) as error:
        check_all(config)
    text = " ".join(error.value.render().split())
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("trainer.log_grad_norm=often", ["trainer.log_grad_norm = often", "true"]),
        ("+trainer.track_grad_norm=2", ["trainer.log_grad_norm=true"]),
    ],
)
def test_a_mistake_in_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], override: str, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*TINY, override]) == 2
    text = " ".join(capsys.readouterr().err.split())
    assert [word for word in words if word not in text] == []
    assert not list(tmp_path.iterdir())
