"""A class of the user's by `_target_` alone: keys that Leyden's YAML sets for the class before it are dropped."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.cli.main import main
from leyden.trainer.compose.composer import Composer

pytestmark = pytest.mark.thinned(2)

MINE = """
import torch
from lightning.fabric.loggers import CSVLogger
from lightning.fabric.strategies import SingleDeviceStrategy
from lightning.pytorch import LightningModule

class Mine(LightningModule):
    def __init__(self, width: int = 4):
        super().__init__()
        self.net = torch.nn.Linear(64, 10)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.net(images.flatten(1)), labels)
        self.log("train/loss", loss)
        return loss

class Smooth(Mine):
    def __init__(self, label_smoothing: float = 0.5):
        super().__init__()

class TakesAll(Mine):
    def __init__(self, **settings):
        super().__init__()

class Net(torch.nn.Module):
    def __init__(self, classes, image_shape):
        super().__init__()
        self.classes = classes

    def forward(self, images):
        return images.flatten(1)[:, : self.classes]

class Data:
    def __init__(self, split):
        pass

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.zeros(1, 8, 8), 0

class Schedule(torch.optim.lr_scheduler.LRScheduler):
    def __init__(self, optimizer):
        pass

class Callback:
    def on_fit_end(self, state): ...

class Crop:
    def __call__(self, image, key):
        return image

class Log(CSVLogger):
    def __init__(self, root_dir): ...

class Alone(SingleDeviceStrategy):
    def __init__(self): ...
"""


@dataclass(frozen=True)
class Case:
    name: str
    overrides: Sequence[str]
    dropped: Sequence[str]
    kept: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


CASES = [
    Case("task", ["task._target_=mine.Mine", "model=null"], ["task.label_smoothing"]),
    Case("task that takes the key", ["task._target_=mine.Smooth", "model=null"], ["task.loss"],
         {"task.label_smoothing": 0.0}),
    Case("task that takes any", ["task._target_=mine.TakesAll", "model=null"], [], {"task.label_smoothing": 0.0}),
    Case("task, with a key of its own", ["task._target_=mine.Mine", "task.width=7", "model=null"],
         ["task.label_smoothing"], {"task.width": 7}),
    Case("optimizer", ["optimizer._target_=torch.optim.Adam"], ["optimizer.momentum", "optimizer.nesterov"],
         {"optimizer.lr": 0.02, "optimizer.decay_bias_and_norm": True}),
    Case("schedule", ["schedule._target_=mine.Schedule"], ["schedule.warmup_steps", "schedule.final_fraction"],
         {"schedule.interval": "step"}),
    Case("model", ["model=mlp", "model._target_=mine.Net"], ["model.hidden", "model.dropout"]),
    Case("dataset", ["dataset=synthetic", "dataset._target_=mine.Data"],
         ["dataset.samples", "dataset.classes", "dataset.image_shape"], {"dataset.val_fraction": 0.2}),
    Case("callback", ["callbacks.checkpoint._target_=mine.Callback"],
         [f"callbacks.checkpoint.{n}" for n in ("monitor", "mode", "save_top_k", "keep_last", "every_n_epochs",
                                                "every_n_steps")]),
    Case("logger", ["logger.csv._target_=mine.Log"], []),
    Case("strategy", ["strategy=easgd", "topology.devices_per_node=2", "strategy._target_=mine.Alone"],
         ["strategy.tau", "strategy.beta"]),
    Case("augmentation", ["augment=crop", "augment._target_=mine.Crop"], ["augment.padding", "augment.flip"]),
    Case("a YAML of the user's over ours", ["--config-dir", "conf", "optimizer=mine"],
         ["optimizer.momentum", "optimizer.nesterov"], {"optimizer.lr": 0.5},
         {"conf/optimizer/mine.yaml": "defaults: [sgd]\n_target_: torch.optim.Adam\nlr: 0.5\n"}),
    Case("another strategy than an experiment's",
         ["experiment=deep_image_hybrid16", "dataset.root=.", "strategy=butterfly"], ["strategy.scheme"]),
    Case("an experiment of the user's", ["--config-dir", "conf", "experiment=mine"], ["task.label_smoothing"], {},
         {"conf/experiment/mine.yaml": "# @package _global_\ntask: {_target_: mine.Mine}\n"
                                       "defaults: [{override /model: null}]\n"}),
]  # fmt: skip


@pytest.fixture
def here(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (here / "mine.py").write_text(MINE)
    return here


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def value_at(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values.get(part, ...) if isinstance(values, dict) else ...
    return values


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_keys_of_leydens_yaml_that_another_class_does_not_take_are_dropped(case: Case, here: Path) -> None:
    write(here, case.files)
    words = list(case.overrides)
    config_dir = words[words.index("--config-dir") + 1] if "--config-dir" in words else None
    overrides = [word for word in words if "=" in word]
    run = Composer(config_dir).run(overrides)
    assert set(case.dropped) <= {each.key for each in run.dropped}
    for values in (run.values, Composer(config_dir).freeze_in(run, here / "run")):
        for key in case.dropped:
            assert value_at(values, key) is ..., key
        for key, value in case.kept.items():
            assert value_at(values, key) == value, key


@pytest.mark.parametrize(
    ("overrides", "files", "key", "where"),
    [
        (["task.label_smoothing=0.1"], {}, "task.label_smoothing", "override 'task.label_smoothing=0.1'"),
        (["task=mine"], {"conf/task/mine.yaml": "defaults: [classification]\nlabel_smoothing: 0.2\n"},
         "task.label_smoothing", "conf/task/mine.yaml:2"),
        (["experiment=mine"], {"conf/experiment/mine.yaml": "# @package _global_\ntask: {label_smoothing: 0.2}\n"},
         "task.label_smoothing", "conf/experiment/mine.yaml:2"),
        (["task.smoothing=0.1"], {}, "task.smoothing", "override 'task.smoothing=0.1'"),
    ],
)  # fmt: skip
def test_a_key_of_the_users_stays_a_mistake(
    here: Path, overrides: list[str], files: Mapping[str, str], key: str, where: str
) -> None:
    write(here, {"conf/empty.yaml": "", **files})
    with pytest.raises(ConfigError) as error:
        Composer("conf").run([*overrides, "task._target_=mine.Mine", "model=null"])
    (problem,) = error.value.problems
    assert (problem.key, problem.where) == (key, where)
    assert "Mine takes no argument" in problem.text


SMALL = ["model=null", "dataset.image_size=8", "trainer.max_epochs=1", "trainer.limit_train_batches=2", "logger=none",
         "callbacks=none", "trainer.enable_progress_bar=false"]  # fmt: skip


def test_what_is_dropped_is_said_once_and_is_not_frozen(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["task._target_=mine.Mine", "optimizer._target_=torch.optim.Adam", "hydra.run.dir=run", *SMALL]) == 0
    out = capsys.readouterr().out
    line = (
        "task: Mine does not take loss, label_smoothing, class_weights, focal_gamma, target_threshold, metrics, set by"
    )
    assert out.count(line) == 1
    assert out.count("left out") == 2
    values = yaml.safe_load((here / "run/config.yaml").read_text())
    assert "label_smoothing" not in values["task"]
    assert not {"momentum", "nesterov"} & set(values["optimizer"])
    assert values["optimizer"]["lr"] == 0.02


@pytest.mark.slow
def test_trials_of_a_sweep_drop_their_own_keys(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    targets = "task._target_=mine.Mine,mine.Smooth"
    assert main(["-m", targets, "hydra.sweep.dir=sweep", *SMALL, "trainer.fast_dev_run=true"]) == 0
    assert capsys.readouterr().out.count("left out") == 2
    kept = [yaml.safe_load((here / f"sweep/{n}/config.yaml").read_text())["task"] for n in range(2)]
    assert [("label_smoothing" in task, task["_target_"]) for task in kept] == [
        (False, "mine.Mine"),
        (True, "mine.Smooth"),
    ]


def test_the_mistake_of_one_trial_is_found_before_the_sweep(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-m", "task._target_=mine.Mine,mine.Smooth", "task.label_smoothing=0.1", *SMALL]
    assert main(words) == 2
    assert "in trial 0 (task._target_=mine.Mine" in capsys.readouterr().err
    assert not (here / "outputs").exists()


def test_the_workers_of_a_pipeline_build_the_dataset_without_the_dropped_keys(here: Path) -> None:
    words = [
        "hydra/launcher=pipeline",
        "topology.devices_per_node=2",
        "dataset=synthetic",
        "dataset._target_=mine.Data",
    ]
    composer = Composer()
    from leyden.trainer.sweep.sweep import Sweep  # after Hydra has read its plugins, which makes their classes anew

    sweep = Sweep(composer, words)
    assert sweep.validate([[*words, "seed=1"], [*words, "seed=2"]], 0) == {}
    assert sweep.plan is not None
    dataset = sweep.plan.values([], here)["dataset"]
    assert dataset["_target_"] == "mine.Data"
    assert not {"samples", "classes", "image_shape"} & set(dataset)
