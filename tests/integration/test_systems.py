"""The recipes of the five systems: bytes of the true scale, and the claims of the small twins, cut to seconds."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from folders import ROOT
from pool import Pool
from runs import HERE, Freeze, distance, metrics, rows, summary, weights
from traffic_examples import traffic_of

from leyden.models.cots_autoencoder import COTSAutoencoder
from leyden.trainer.cli.main import main
from leyden.trainer.compose.composer import Composer
from leyden.trainer.config.targets import build
from leyden.trainer.entrypoints.start import start

RECIPES = ROOT / "conf" / "experiment"
Pools = Callable[[int], Pool]
TRUE_SCALE = {
    "deep_image_dp32": (3, 224, 224),
    "deep_image_hybrid16": (3, 224, 224),
    "owt_alexnet8": (3, 224, 224),
    "nyu_easgd": (3, 221, 221),
    "cots_1b": (3, 200, 200),
    "cots_11b": (3, 200, 200),
    "gpu_asgd8": (3, 224, 224),
}
NET = [
    "model.stages=[[8],[16]]",
    "model.hidden=[512,512]",
    "model.dropout=0.2",
    "dataset.image_size=16",
    "augment=none",
]
"""The shape of vgg_small in a fraction of its size."""
SHORT = ["trainer.enable_progress_bar=false", "trainer.limit_val_batches=0", "trainer.limit_test_batches=0"]
WITH_CHECKPOINT = [*SHORT, "callbacks.checkpoint.monitor=null"]
CONSTANT = "schedule=constant"
SIMULATED = "strategy.execution.simulate=true"


def recipe(name: str, *more: str) -> list[str]:
    return [f"experiment={name}", *more]


def header(name: str) -> str:
    """The comment of a recipe as one line."""
    lines = (RECIPES / f"{name}.yaml").read_text().splitlines()
    return " ".join(line.removeprefix("# ") for line in lines if line.startswith("#"))


def sent(run_dir: Path) -> float:
    return summary(run_dir)["communication"]["bytes_a_step_and_worker"]


def parameters(run_dir: Path) -> int:
    return sum(tensor.numel() for tensor in weights(run_dir).values())


# --- true scale


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", TRUE_SCALE)
def test_a_header_says_what_the_strategy_sends(name: str, tmp_path: Path) -> None:
    config = Composer().run(recipe(name, f"dataset.root={tmp_path}", "topology.device.kind=cpu")).config
    transfers = traffic_of(config, 1000, TRUE_SCALE[name])
    megabytes = [sum(size / t.every for t, size in zip(transfers, sizes, strict=True)) / 1e6
                 for sizes in ([t.bytes for t in transfers], [t.inter_node_bytes for t in transfers])]  # fmt: skip
    text = f"A worker sends {megabytes[0]:,.1f} MB a step, {megabytes[1]:,.1f} of them between nodes"
    assert text in header(name)


@pytest.mark.parametrize("name", ["cots_1b", "cots_11b"])
def test_a_header_says_what_data_parallelism_would_send(name: str) -> None:
    maps, workers = {"cots_1b": (8, 12), "cots_11b": (26, 64)}[name]
    with torch.device("meta"):
        network = COTSAutoencoder((3, 200, 200), maps=maps)
    first = sum(parameter.numel() for parameter in network.stages[0].parameters())
    assert f"would be {2 * (workers - 1) / workers * 4 * first / 1e6:,.1f}." in header(name)


def test_a_header_says_what_models_move(tmp_path: Path) -> None:
    text = (RECIPES / "multi_training_8x8.yaml").read_text()
    names = re.findall(r"\w+", re.findall(r"model: (.*)", text)[0])
    count = 0
    for name in names:
        config = (
            Composer()
            .run(recipe("multi_training_8x8", f"dataset.root={tmp_path}", f"model={name}", "strategy=ddp"))
            .config
        )
        assert config.model is not None
        with torch.device("meta"):
            network: torch.nn.Module = build(config.model, classes=1000, image_shape=(3, 224, 224), seed=0)
        count += sum(parameter.numel() for parameter in network.parameters())
    assert len(names) == 8
    told = header("multi_training_8x8")
    assert f"at most {8 * 8 * count / 1e9:.1f} GB: 8 hops of 8 bytes for each of {count:,} parameters" in told
    assert f"ddp would send {2 * 7 * 4 * count * 1_281_167 / 128 / 1e9:,.0f} GB" in told


@pytest.mark.parametrize("name", [*TRUE_SCALE, "multi_training_8x8"])
def test_each_has_a_twin_and_a_header(name: str) -> None:
    assert "Published" in header(name)
    assert "Not run by us at this size" in header(name)
    assert "Two CPU cores: " in header(f"{name}_small")
    assert f"leyden experiment={name}_small" in header(f"{name}_small").replace("-m ", "")


# --- twins, cut to seconds


@pytest.fixture
def by_ddp(freeze: Freeze, pools: Pools) -> Path:
    """The network of Deep Image's twins, three steps by ddp on four workers."""
    options = ["dataset=digits", "model=vgg_small", *NET, "topology.devices_per_node=4", "strategy=ddp", CONSTANT]
    run_dir = freeze("ddp", *options, *WITH_CHECKPOINT, "trainer.max_steps=3")
    pools(4).run(run_dir)
    return run_dir


@pytest.mark.slow
def test_a_lazy_butterfly_is_ddp_and_leaves_the_node_less(freeze: Freeze, pools: Pools, by_ddp: Path) -> None:
    two_nodes = ["topology.nodes=2", "topology.devices_per_node=2", "trainer.max_steps=3", CONSTANT, *NET]
    runs = {}
    for name, more in {"near": [], "far": ["strategy.order=far_first"], "eager": ["strategy.lazy=false"]}.items():
        runs[name] = freeze(name, *recipe("deep_image_dp32_small", *two_nodes, *more, *WITH_CHECKPOINT))
        pools(4).run(runs[name])
    assert distance(weights(runs["near"]), weights(by_ddp)) <= 1e-5
    assert distance(weights(runs["near"]), weights(runs["eager"])) == 0
    assert sent(runs["near"]) == pytest.approx(1.5 * 4 * parameters(by_ddp), rel=1e-3)
    between = {name: summary(run)["communication"]["inter_node_bytes"] for name, run in runs.items()}
    assert between["near"] == pytest.approx(between["far"] / 2, rel=1e-3)


def test_a_lazy_exchange_is_hidden_by_backward_and_the_next_forward(freeze: Freeze) -> None:
    """Order of events: every bucket may travel until the next forward comes to its layers."""
    for lazy, hidden_by, needed_by in ((True, ("backward", "next forward"), "next forward"),
                                       (False, ("backward",), "update")):  # fmt: skip
        config = Composer().run(recipe("deep_image_dp32_small", f"strategy.lazy={lazy}".lower())).config
        for transfer in traffic_of(config, 10, (1, 32, 32)):
            assert (transfer.overlaps, transfer.needed_by) == (hidden_by, needed_by)


@pytest.mark.slow
def test_a_hybrid_is_ddp_at_a_fraction_of_its_bytes(freeze: Freeze, pools: Pools, by_ddp: Path) -> None:
    options = [*NET, *WITH_CHECKPOINT, "trainer.max_steps=3"]
    hybrid = freeze("hybrid", *recipe("deep_image_hybrid16_small", *options, CONSTANT))
    often = freeze("often", *recipe("owt_alexnet8_small", *options))
    for run_dir in (hybrid, often):
        pools(4).run(run_dir)
    assert distance(weights(hybrid), weights(by_ddp)) <= 1e-5
    assert sent(hybrid) < 0.3 * sent(by_ddp)
    assert sent(often) == sent(hybrid)
    assert distance(weights(often), weights(hybrid)) > 1e-3, "a head that is updated after each worker's images"


def test_the_hybrid_of_the_whole_twin_sends_a_sixth(freeze: Freeze) -> None:
    hybrid = Composer().run(recipe("deep_image_hybrid16_small")).config
    butterfly = Composer().run(recipe("deep_image_dp32_small")).config
    totals = [sum(t.bytes for t in traffic_of(config, 10, (1, 32, 32))) for config in (hybrid, butterfly)]
    assert totals[0] < totals[1] / 6


@pytest.mark.slow
def test_easgd_sends_a_tenth_of_ddps_bytes(freeze: Freeze) -> None:
    small = ["dataset.image_size=24", "trainer.max_steps=10", SIMULATED, *WITH_CHECKPOINT]
    elastic = freeze("elastic", *recipe("nyu_easgd_small", *small, "strategy.form=allreduce"))
    served = freeze("served", *recipe("nyu_easgd_small", *small))
    for run_dir in (elastic, served):
        assert start(run_dir) == 0
    size = 4 * parameters(elastic)
    assert sent(elastic) == pytest.approx(2 * 3 / 4 * size / 10)
    assert sent(served) == pytest.approx(2 * size / 10, rel=0.11)


@pytest.mark.slow
def test_what_does_not_fit_one_worker_trains_on_a_grid(freeze: Freeze, pools: Pools) -> None:
    """210,603 parameters in three stages: with gradients and momentum of the stage in training too much for one."""
    limit = 1_000_000
    small = ["model.maps=6", "dataset.image_size=22", "trainer.max_steps=2", "batch_size=16", *SHORT,
             "+callbacks.limit._target_=system_examples.MemoryLimit", f"+callbacks.limit.limit={limit}",
             HERE]  # fmt: skip
    alone = freeze("alone", *recipe("cots_11b_small", *small, "topology.devices_per_node=1", "strategy.grid=[1,1]"))
    assert start(alone) == 1
    assert f"do not fit into {limit}" in summary(alone)["error"]
    grid = freeze("grid", *recipe("cots_11b_small", *small))
    pools(4).run(grid)
    assert summary(grid)["status"] == "done"


@pytest.mark.campaign
def test_asgd_keeps_its_throughput_with_a_straggler(freeze: Freeze) -> None:
    """Seven of eight workers and a quarter of the eighth are left; in lockstep all wait for it."""
    straggler, quick = (
        "strategy.execution.delay=straggler",
        [*SHORT, "callbacks=none", "batch_size=32", "trainer.max_epochs=1"],
    )
    lockstep = ["dataset=digits", "augment=none", "dataset.image_size=16", "strategy=local_sgd", "strategy.h=1",
                "topology.devices_per_node=8", SIMULATED, "strategy.execution.delay_ms=100"]  # fmt: skip
    seconds = {}
    for name, options in {
        "asgd": recipe("gpu_asgd8_small", "strategy.warm_start_steps=0"),
        "lockstep": lockstep,
    }.items():
        for delay in ("constant", "straggler"):
            run_dir = freeze(f"{name}-{delay}", *options, *quick, straggler.replace("straggler", delay))
            assert start(run_dir) == 0
            seconds[name, delay] = metrics(run_dir)["local_update/simulated_seconds"]
    assert seconds["asgd", "constant"] / seconds["asgd", "straggler"] > 0.8
    assert seconds["lockstep", "constant"] / seconds["lockstep", "straggler"] == pytest.approx(1 / 4)


@pytest.mark.slow
def test_a_warm_start_helps_asgd(freeze: Freeze) -> None:
    """At a rate that one client bears, eight that start cold have hardly learned anything after six epochs."""
    best = {}
    for steps in (0, 160):
        run_dir = freeze(str(steps), *recipe("gpu_asgd8_small", f"strategy.warm_start_steps={steps}",
                         "trainer.max_epochs=6", "callbacks=none"))  # fmt: skip
        assert start(run_dir) == 0
        best[steps] = max(float(row["val/acc"]) for row in rows(run_dir) if row["val/acc"])
    assert best[160] > best[0] + 0.2


@pytest.mark.campaign
def test_eight_models_finish_sooner_in_a_pipeline(tmp_path: Path) -> None:
    """Two workers train eight models in little more than half of the time that the sub-epochs take in all."""
    small = ["model=mlp", "model.hidden=[64],[128]", "optimizer.lr=0.02,0.01,0.005,0.002", "trainer.max_epochs=2",
             "dataset.image_size=16", "trainer.enable_progress_bar=false"]  # fmt: skip
    assert main(["-m", *recipe("multi_training_8x8_small", *small, f"hydra.sweep.dir={tmp_path / 'sweep'}")]) == 0
    made = json.loads((tmp_path / "sweep" / "pipeline" / "summary.json").read_text())
    assert made["visits"] == 8 * 2 * 2
    assert made["makespan_s"] < 0.75 * sum(made["busy_s"])
    assert made["hop_bytes"]["parameters"] == made["hop_bytes"]["optimizer"] > 0


# --- side by side


@pytest.mark.slow
def test_lockstep_strategies_train_the_network_of_the_comparison_alike(freeze: Freeze, pools: Pools) -> None:
    options = [*WITH_CHECKPOINT, "trainer.max_steps=3", "trainer.precision=64-true", "model.hidden=[64]"]
    options += ["dataset.image_size=16", "batch_size=24"]
    alone = freeze("alone", *recipe("five_systems", *options, "strategy=single", "topology.devices_per_node=1"))
    assert start(alone) == 0
    for strategy in ("ddp", "butterfly", "hybrid", "spatial"):
        run_dir = freeze(strategy, *recipe("five_systems", *options, f"strategy={strategy}"))
        pools(2).run(run_dir)
        assert distance(weights(run_dir), weights(alone)) <= 1e-10, strategy
