"""`leyden plan`: what a training takes, before it starts; and what was planned, beside what was measured."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from folders import ROOT
from runs import TINY, Freeze, summary
from traffic_examples import traffic_of

from leyden.trainer.cli.main import main
from leyden.trainer.compose.composer import Composer
from leyden.trainer.config.schema import Config, load
from leyden.trainer.core.step_timer import StepTimes
from leyden.trainer.core.transfers import DeviceShare, DividedModule
from leyden.trainer.engine.planned_step import planned_beside_measured
from leyden.trainer.planner import work_cache
from leyden.trainer.planner.costs.shares import divide_memory, divide_work
from leyden.trainer.planner.costs.strategy_costs import strategy_costs
from leyden.trainer.planner.plan import plan
from leyden.trainer.planner.quantities import Cost, LayerWork, PeakMemory, StepWork
from leyden.trainer.planner.training_length import training_steps

EXPERIMENTS = [
    # networks of a third, of other sizes; the largest takes half a minute
    pytest.param(file.stem, marks=[pytest.mark.campaign] if file.stem in ("cots_1b", "cots_11b") else [])
    for file in sorted((ROOT / "conf/experiment").glob("*.yaml"))
]
# of the other blocks each is counted as these are
FEWER_BLOCKS = {"resnet50_imagenet": ["model.depth=18"], "vit_small_imagenet": ["model.depth=2"]}
MLP = ["model=mlp", "model.hidden=[64,64]", "dataset.image_size=16", "batch_size=96"]
CLUSTER = ["topology=dgx_h100", "topology.devices_per_node=4", "topology.nodes=2", "topology.launcher=slurm"]
DEVICE = ["topology.device.peak_tflops.fp32=0.1", "topology.device.memory_gb_s=10"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cache for all tests of this process."""
    monkeypatch.setenv("LEYDEN_CACHE", str(tmp_path_factory.getbasetemp() / "plan-cache"))


def planned(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert main(["plan", "--json", *words]) == code
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["plan", *words]) == 2
    error = capsys.readouterr().err
    assert " was started" in error
    return error


def composed(*words: str) -> Config:
    composer = Composer(plans=True)
    return composer.validate_run(composer.compose_with_hydra(words), words).config


def test_the_planner_names_no_strategy() -> None:
    targets = [yaml.safe_load(f.read_text())["_target_"] for f in (ROOT / "conf/strategy").glob("*.yaml")]
    names = {f.stem for f in (ROOT / "conf/strategy").glob("*.yaml")} | {t.rpartition(".")[2] for t in targets}
    for file in (ROOT / "trainer/planner").rglob("*.py"):
        text = file.read_text()
        # "butterfly" is a pattern of transfers, too
        for name in names - {"butterfly"}:
            assert f'"{name}"' not in text, (file, name)
        assert "strategies" not in [word for line in text.splitlines() if "import" in line for word in line.split(".")]


@pytest.mark.slow
@pytest.mark.thinned(4, 4)
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_plans_without_its_data(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, experiment: str
) -> None:
    monkeypatch.setattr(work_cache, "LINE", (777,))  # a line needs two: the experiment's own batch, and another
    text = (ROOT / f"conf/experiment/{experiment}.yaml").read_text()
    if "hydra/launcher: pipeline" in text or "simulate: true" in text:
        assert "not planned" in " ".join(refused(capsys, f"experiment={experiment}").split()) or "simulate" in text
        return
    topology = composed(f"experiment={experiment}").topology
    device = [*DEVICE, "topology.device.kind=cpu"] if topology.device.memory_gb_s is None else []
    (found,) = planned(capsys, f"experiment={experiment}", *device, *FEWER_BLOCKS.get(experiment, []))["plans"]
    assert found["step"]["low"] < found["step"]["mean"] < found["step"]["high"]
    assert found["memory"]["total"] > 0
    assert found["total"]["hours"] is None or found["total"]["hours"] > 0
    assert 0 < found["efficiency"] <= 1.01


@pytest.mark.slow
def test_a_sweep_is_ranked_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "plan.png"
    words = [*MLP, *CLUSTER, "strategy=ddp,butterfly,fsdp,easgd", "topology.nodes=1,2", "--out", str(picture)]
    found = planned(capsys, "-m", *words)
    rates = [each["samples_per_second"] for each in found["plans"]]
    assert len(rates) == 8
    assert rates == sorted(rates, reverse=True)
    assert {word for each in found["plans"] for word in each["words"]} >= {"strategy=fsdp", "topology.nodes=2"}
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["plan", "-m", *words]) == 0
    out = capsys.readouterr().out
    assert out.index("step ms (80 %)") < out.index("known from: ")
    assert "best: " in out or "equal within the interval: " in out


def test_a_cell_that_cannot_be_planned_is_said_and_ends_no_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "-m", *MLP, *CLUSTER, "strategy=single,ddp")
    assert [each["strategy"] for each in found["plans"]] == ["ddp"]
    ((words, error),) = [(each["words"], each["error"]) for each in found["refused"]]
    assert words == ["strategy=single"]
    assert "trains on one worker" in error


def test_budgets(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*MLP, *CLUSTER, "strategy=ddp"]
    (found,) = planned(capsys, *words, "budget.gpu_hours=1000", "budget.hours=500")["plans"]
    assert found["over_budget"] == []
    assert found["total"]["gpu_hours"] == pytest.approx(8 * found["total"]["hours"])
    (found,) = planned(capsys, *words, "budget.gpu_hours=1e-9", code=3)["plans"]
    assert found["over_budget"][0].startswith("budget.gpu_hours=1e-09: the training takes")
    assert "must be one of gpu_hours, hours, cost" in refused(capsys, *words, "budget.gpuhours=3")
    assert "needs a unit" in refused(capsys, *words, "budget=3")
    assert "greater than 0" in refused(capsys, *words, "budget.hours=much")
    assert "topology.device.price_per_hour" in refused(capsys, *words, "budget.cost=3")
    priced = ["topology.device.price_per_hour=2", "topology.host.price_per_hour=1", "topology.device.watts=700"]
    (found,) = planned(capsys, *words, *priced, "budget.cost=1e6")["plans"]
    hours = found["total"]["hours"]
    assert found["total"]["cost"] == pytest.approx(hours * 2 * (4 * 2 + 1))
    assert found["total"]["kwh"] == pytest.approx(hours * 8 * 0.7)


def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "topology.device.peak_tflops.fp32" in refused(capsys, *MLP, "topology.device.kind=cpu")
    assert "leyden doctor --write" in refused(capsys, *MLP, "topology.device.kind=cpu", DEVICE[0])
    assert "--from" in refused(capsys, *MLP, *CLUSTER, "strategy=ddp", "trainer.precision=64-true")
    assert "hydra/launcher" in refused(capsys, *MLP, *CLUSTER, "strategy=ddp", "hydra/launcher=pipeline")
    assert "there is no such choice" in refused(capsys, *MLP, "strategy=dpd")
    assert "there is no such folder" in refused(capsys, *MLP, *DEVICE, "--from", "nowhere")
    assert "several values" in refused(capsys, "-m", *MLP, *DEVICE)


USERS = """
import torch
from lightning.fabric.strategies import DDPStrategy
from leyden.trainer.core.strategy_contract import StrategyContract


class Silent(StrategyContract, DDPStrategy):
    pass


class Rings(StrategyContract, DDPStrategy):
    def traffic(self, workload):
        size = sum(p.nbytes for p in workload.parameters)
        return [workload.placement.all_reduce("everything", "update", size, every=3)]


class Branching(torch.nn.Module):
    def __init__(self, classes, image_shape):
        super().__init__()
        self.layer = torch.nn.Linear(image_shape[0] * image_shape[1] * image_shape[2], classes)

    def forward(self, images):
        scores = self.layer(images.flatten(1))
        return scores if scores.sum() > 0 else -scores
"""


def test_a_new_strategy_is_planned_by_its_own_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_own.py").write_text(USERS)
    monkeypatch.chdir(tmp_path)
    words = [*MLP, *CLUSTER, "strategy=ddp"]
    (found,) = planned(capsys, *words, "strategy._target_=users_own.Rings")["plans"]
    parameters = sum(a * b + b for a, b in ((256, 64), (64, 64), (64, 10)))
    assert found["sent"] == pytest.approx(2 * 7 / 8 * 4 * parameters / 3)
    assert "says nothing of what it sends" in refused(capsys, *words, "strategy._target_=users_own.Silent")
    branching = ["model._target_=users_own.Branching", "~model.hidden", "dataset.image_size=16", *CLUSTER]
    text = refused(capsys, "model=mlp", *branching, "strategy=ddp")
    assert "depends on values" in text
    assert "--from" in text


@pytest.mark.slow
def test_from_the_cache_without_torch(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*MLP, *CLUSTER, "strategy=hybrid"]
    planned(capsys, *words)
    script = (
        "import sys; from leyden.trainer.cli.main import main\n"
        f"assert main(['plan', *{words!r}]) == 0\n"
        "print('torch' in sys.modules, 'lightning' in sys.modules)"
    )
    command = [sys.executable, "-c", script]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.splitlines()[-1] == "False False"
    assert list(here.iterdir()) == []


def test_a_plan_sends_what_the_strategy_says(freeze: Freeze) -> None:
    for strategy in ("ddp", "butterfly", "hybrid", "fsdp", "local_sgd"):
        config = load(freeze(strategy, *MLP, f"strategy={strategy}", "topology.devices_per_node=4"))
        transfers = strategy_costs(config).transfers
        assert list(transfers) == traffic_of(config, 10, (1, 16, 16))


def test_the_share_of_a_device() -> None:
    layers = (LayerWork("a", Cost(100.0, 10.0, 1), Cost(200.0, 20.0, 2), 30),
              LayerWork("head.0", Cost(40.0, 10.0, 1), Cost(80.0, 8.0, 2), 70))  # fmt: skip
    work = StepWork(8, layers, Cost(10.0, 1000.0, 4))
    share = DeviceShare(8, (DividedModule("head", 1.0, 0.25, 4),), gradients=0.0)
    mine = divide_work(work, share)
    assert mine.layers[0] == layers[0]
    assert mine.layers[1] == LayerWork("head.0", Cost(40.0, 10.0, 4), Cost(80.0, 8.0, 8), 18)
    assert mine.update.bytes == pytest.approx(1000 * (30 + 70 / 4) / 100)
    parts = divide_memory(PeakMemory(400.0, 400.0, 800.0, 50.0, 5.0), work, share)
    assert parts["parameters"] == pytest.approx(400 * 0.475)
    assert parts["gradients"] == 0
    assert parts["activations"] == 50


def test_a_tile_of_each_device_adds_up_to_the_network() -> None:
    config = composed("experiment=cots_digits", *CLUSTER, "strategy=spatial", "topology.nodes=1")
    share = strategy_costs(config).share
    assert share.samples == config.batch_size
    assert {module.path for module in share.divided} >= {"stages"}
    assert all(0.25 <= module.work < 0.5 for module in share.divided)


def test_the_length_of_a_training() -> None:
    assert training_steps(composed("dataset=cifar10", "batch_size=100", "trainer.max_epochs=2")) == 900
    assert training_steps(composed("dataset=cifar10", "trainer.max_steps=7")) == 7
    assert training_steps(composed("dataset=image_folder")) is None
    assert training_steps(composed("dataset=synthetic", "dataset.samples=640", "trainer.max_epochs=3")) == 30


def test_calibrated_by_a_run_the_same_config_takes_what_was_measured(
    freeze: Freeze, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*MLP, "topology.device.kind=cpu"]
    run = freeze("run", *words)
    phases = {"data": 0.1, "forward": 1.0, "backward": 2.0, "update": 0.5, "communication": 0.0, "other": 0.1}
    times = {**phases, "total": sum(phases.values())}
    (run / "summary.json").write_text(json.dumps({"step_time": times, "sessions": [_session(100)]}))
    (same,) = planned(capsys, *words, "--from", str(run))["plans"]
    assert same["step"]["mean"] == pytest.approx(times["total"] / 100)
    assert same["compute"]["source"] == "measured"
    assert same["known_from"]["step"].startswith("measured in ")
    (twice,) = planned(capsys, *words, "batch_size=192", "--from", str(run))["plans"]
    assert same["step"]["mean"] < twice["step"]["mean"] < 2 * same["step"]["mean"]
    (other,) = planned(capsys, *words, "model.hidden=[128,128]", "--from", str(run))["plans"]
    widths = [each["step"]["high"] / each["step"]["low"] for each in (same, other)]
    assert widths[0] < widths[1]
    (run / "summary.json").write_text(json.dumps({"status": "done"}))
    assert "has no times of steps" in refused(capsys, *words, "--from", str(run))


def _session(steps: int) -> dict[str, Any]:
    return {"started_at": "2026-01-01T00:00:00.000+00:00", "from_step": 0, "from_sample": 0, "steps": steps,
            "samples": 96 * steps, "train_seconds": 3.7, "samples_per_second": 1.0, "world_size": 1}  # fmt: skip


@pytest.mark.slow
def test_memory_that_is_too_little_and_the_largest_batch(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=resnet20", "dataset=cifar10", *CLUSTER, "strategy=ddp"]
    (found,) = planned(capsys, *words, "batch_size=256", "topology.device.memory_gb=8")["plans"]
    assert found["memory"]["fits"]
    largest = found["largest_batch"]
    assert largest % 8 == 0
    for batch, fits in ((largest, True), (largest + 8, False)):
        again = plan(composed(*words, f"batch_size={batch}", "topology.device.memory_gb=8"))
        assert again.memory.fits is fits, batch


def test_measured_collectives_take_the_place_of_declared_links(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*MLP, *CLUSTER, "strategy=ddp"]
    size, parameters = 1 << 20, sum(a * b + b for a, b in ((256, 64), (64, 64), (64, 10)))
    measured = f"topology.collectives=[{{name:all_reduce,scope:all,workers:8,bytes:[1024,{size}],ms:[1.4,101.4]}}]"
    (declared,) = planned(capsys, *words)["plans"]
    (found,) = planned(capsys, *words, measured)["plans"]
    assert found["known_from"]["fabric"] == "measured"
    assert declared["known_from"]["fabric"] != "measured"
    seconds = 0.1 * 4 * parameters / (size - 1024) + 1.4e-3
    assert found["step"]["sent"] == pytest.approx(seconds, rel=0.01)
    text = refused(capsys, *words, "topology.collectives=[{name:all_reduce,scope:all,workers:8,bytes:[1],ms:[1,2]}]")
    assert "bytes must increase" in text


def test_slow_data_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*MLP, *CLUSTER, "strategy=ddp"]
    (found,) = planned(capsys, *words, "dataset.assumed.samples_per_second=100")["plans"]
    assert found["step"]["mean"] == pytest.approx(96 / 8 / 100)
    assert found["step"]["bound_by"][0][0] == "data"


def test_a_short_run_is_not_counted_and_a_defect_of_the_planner_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Config] = []

    def broken(config: Config) -> None:
        asked.append(config)
        raise KeyError("a defect")

    monkeypatch.setattr("leyden.trainer.planner.plan.plan", broken)
    config = composed(*MLP, *DEVICE, "topology.device.kind=cpu", "seed=7", "batch_size=97")
    assert planned_beside_measured(config, StepTimes(total=1.0, steps=10)) is None
    assert not asked
    assert planned_beside_measured(config, StepTimes(total=600.0, steps=10)) is None
    assert asked == [config]


@pytest.mark.slow
def test_a_run_ends_with_what_was_planned_beside_what_was_measured(tmp_path: Path) -> None:
    words = [*TINY, *DEVICE, "topology.device.kind=cpu", "topology.devices_per_node=2", "strategy=ddp"]
    for verb in ("plan", "train"):
        folder = ["hydra.run.dir=run"] if verb == "train" else []
        command = [sys.executable, "-m", "leyden", verb, *words, *folder]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    found = summary(tmp_path / "run")["plan"]
    times = summary(tmp_path / "run")["step_time"]
    assert found["measured_ms"] == pytest.approx(1e3 * times["total"] / summary(tmp_path / "run")["steps"])
    last = (done.stdout + done.stderr).splitlines()
    (line,) = [each for each in last if "exposed communication planned" in each]
    assert line.startswith("planned ")
    assert f"measured {found['measured_ms']:.3g}" in line or f"measured {found['measured_ms']:.0f}" in line
    header = (tmp_path / "run/metrics.csv").read_text().splitlines()[0]
    assert "plan/step_ms" in header
