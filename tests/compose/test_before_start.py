"""What building network, optimizer, data and loggers would show, said before the start, with the key at fault."""

import csv
import resource
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch
from folders import MODULES
from runs import TINY

from leyden.trainer.cli.main import main
from leyden.trainer.components.tasks.classification import Classification
from leyden.trainer.components.tasks.reconstruction import Reconstruction
from leyden.trainer.compose import trial_build
from leyden.trainer.compose.composer import Composer
from leyden.trainer.compose.known_names import find_metric
from leyden.trainer.config.faults import fault
from leyden.trainer.config.schema import Target

pytestmark = pytest.mark.thinned(3)

SMALL = ["dataset.image_size=8", "model.parallel=null"]


def net(name: str) -> str:
    return f"model._target_=before_start_examples.{name}"


MISTAKES = {
    # command: key, part of the text, remedy
    net("Raises"): ("model = Raises", "KeyError: 'no such key'", ""),
    net("NoForward"): ("model = NoForward", "has no method forward", ""),
    net("Lazy"): ("model = Lazy", "layer (LazyLinear) gets its shape from the first batch", ""),
    f"{net('Fixed')} dataset.image_size=16": ("model = Fixed", "a batch of images of 1 x 16 x 16", ""),
    net("Few"): ("model = Few", "[2, 3] of a batch of 2 images, not scores [2, 10]", ""),
    net("Pair"): ("model = Pair", "gives a tuple", ""),
    net("Huge"): ("model = Huge", "not scores [2, 10]", ""),
    net("text"): ("model = text", "gives a str", ""),
    net("NeedsValuesAndRaises"): ("model = NeedsValuesAndRaises", "KeyError: 'only a worker finds this'", ""),
    "model=alexnet": ("model = AlexNet", "at least 52 x 52 pixels", "dataset.image_size=52"),
    "model=mlp model.dropout=1.5": ("model.dropout = 1.5", "must be at least 0 and less than 1", ""),
    "model=timm model.name=resnet18": ("model.name = resnet18", "needs timm", "pip install 'leyden[timm]'"),
    "model=mlp model.num_clases=10": ("model.num_clases = 10", "declares the number of classes", "leave it out"),
    "model=mlp task=reconstruction": ("task = Reconstruction", "needs a model with stages", ""),
    "model=mlp augment=airbench +augment.size={0:8,1:16} trainer.max_epochs=2": (
        "augment.size = 8", "MLP: does not take a batch of images of 1 x 8 x 8", "",
    ),
    "dataset=image_folder dataset.root=. model=vit_small dataset.image_size=32 dataset.crop=48 dataset.resize=null": (
        "dataset.crop = 48", "ViT: does not take a batch of images of 3 x 48 x 48", "",
    ),
    "dataset.image_size=4": ("dataset.image_size = 4", "at least 8", ""),
    "optimizer=null": ("optimizer", "is null, and Classification has no configure_optimizers", "optimizer=sgd"),
    "task=multi_label": ("task", "the images of the dataset have one class", "task=classification"),
    "optimizer.weight_decay=-1": ("optimizer.weight_decay = -1", "at least 0", "optimizer.weight_decay=0.0"),
    "optimizer.momentum=1.5": ("optimizer.momentum = 1.5", "less than 1", "optimizer.momentum=0.9"),
    "optimizer.nesterov=true optimizer.momentum=0": (
        "optimizer.nesterov = true", "needs momentum", "optimizer.nesterov=true optimizer.momentum=0.9",
    ),
    "optimizer=adamw optimizer.betas=[1.5,0.9]": (
        "optimizer.betas = [1.5, 0.9]", "less than 1", "optimizer.betas=[0.9,0.999]",
    ),
    "optimizer=adagrad optimizer._target_=torch.optim.LBFGS ~optimizer.weight_decay": (
        "optimizer._target_ = torch.optim.LBFGS", "closure", "optimizer=sgd",
    ),
    "logger=[default,trackio]": ("logger.trackio = Trackio", "needs the package trackio", "pip install trackio"),
    "+logger.comet._target_=lightning.pytorch.loggers.CometLogger": (
        "logger.comet", "comet_ml", "pip install comet_ml",
    ),
    "callbacks=[default,early_stopping] callbacks.early_stopping.monitor=val_loss": (
        "callbacks.early_stopping.monitor = val_loss", "is not logged", "callbacks.early_stopping.monitor=val/loss",
    ),
    "callbacks.checkpoint.monitor=eval_accuracy": (
        "callbacks.checkpoint.monitor = eval_accuracy", "Classification logs", "callbacks.checkpoint.monitor=val/acc",
    ),
    "callbacks=[default,early_stopping] callbacks.early_stopping.monitor=test/acc": (
        "callbacks.early_stopping.monitor = test/acc", "is not logged", "callbacks.early_stopping.monitor=",
    ),
    "callbacks=[default,early_stopping] callbacks.early_stopping.patience=0": (
        "callbacks.early_stopping.patience = 0", "must be over 0", "",
    ),
    "dataset=image_folder dataset.root=damaged.zip": ("dataset.root = damaged.zip", "damaged", ""),
    "dataset=image_folder dataset.root=empty.zip": ("dataset.root = empty.zip", "holds no images", ""),
    "dataset=cifar10 dataset.root=damaged.tar.gz": ("dataset.root = damaged.tar.gz", "damaged", ""),
    "dataset=cifar10 dataset.root=other.tar.gz": ("dataset.root = other.tar.gz", "holds no data_batch_1.bin", ""),
    "init_from=damaged.safetensors": ("init_from = damaged.safetensors", "cannot be read", ""),
    "init_from=nothing": ("init_from = nothing", "holds no checkpoint", ""),
    "schedule.warmup_steps=100000": ("schedule.warmup_steps = 100000", "is more than the training's", ""),
    "dataset.partitions=5000": ("dataset.partitions = 5000", "training samples", ""),
}  # fmt: skip


@pytest.fixture
def here(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path, str(MODULES)])
    (here / "damaged.zip").write_bytes(b"PK\x03\x04 nonsense" * 30)
    (here / "damaged.tar.gz").write_bytes(b"\x1f\x8b nonsense" * 30)
    (here / "damaged.safetensors").write_bytes(b"nonsense" * 30)
    with zipfile.ZipFile(here / "empty.zip", "w") as archive:
        archive.writestr("readme.txt", "no images")
    with tarfile.open(here / "other.tar.gz", "w:gz") as archive:
        archive.add(here / "empty.zip", "empty.zip")
    (here / "nothing").mkdir()
    return here


@pytest.mark.thinned(4)
@pytest.mark.parametrize("command", MISTAKES)
def test_key_at_fault_is_the_users(command: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, text, remedy = MISTAKES[command]
    before = sorted(here.rglob("*"))
    small = SMALL if "before_start_examples" in command else []
    assert main([*small, *command.split()]) == 2
    printed = capsys.readouterr()
    told = printed.err.replace("\n      ", " ").replace(f"{here}/", "")
    assert f"\n  {key}" in told, told
    assert text in told, told
    assert remedy in told if remedy else "try:" not in told, told
    assert "set by override" in told or ("set by" in told and "logger/trackio.yaml:2" in told), told
    assert "Traceback" not in told
    assert "run folder" not in printed.out
    assert sorted(here.rglob("*")) == before


def test_what_cannot_be_built_without_values_is_left_to_the_worker(here: Path) -> None:
    quick = ["trainer.max_epochs=1", "trainer.max_steps=2", "trainer.enable_progress_bar=false", "logger=none"]
    assert main([*SMALL, net("NeedsValues"), *quick]) == 0


def test_a_derived_dataset_may_take_other_arguments(here: Path) -> None:
    Composer().run(["dataset._target_=hopping_examples.Watched", f"+dataset.log={here / 'read.txt'}"])


def test_a_huge_network_is_tried_without_memory(here: Path) -> None:
    run = Composer().validate_run(Composer().compose_with_hydra([*SMALL, net("Huge")]), [])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (problem,) = trial_build.problems_of_building(run.config, {})
    assert problem.key == "model"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB; its weights are 4,900,000


def test_trials_of_a_sweep_share_the_trial_build(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real = trial_build._Network.problem
    monkeypatch.setattr(trial_build._Network, "problem", lambda self: calls.append("network") or real(self))
    composer = Composer()
    for rate in (0.1, 0.2, 0.3):
        composer.run([*TINY, f"optimizer.lr={rate}"])
    assert calls == ["network"]
    composer.run([*TINY, "model.hidden=[8]"])
    assert len(calls) == 2


def test_the_trial_build_draws_nothing(here: Path) -> None:
    before = torch.get_rng_state()
    Composer().run(TINY)
    assert torch.equal(torch.get_rng_state(), before)


def test_second_trial_of_a_sweep_is_refused_before_the_first(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(here.rglob("*"))
    assert main(["-m", "model=mlp,alexnet"]) == 2
    assert "trial 1 (model=alexnet)" in capsys.readouterr().err
    assert sorted(here.rglob("*")) == before


def test_tasks_log_what_they_declare(here: Path) -> None:
    quiet = ["trainer.enable_progress_bar=false", "trainer.log_every_n_steps=1"]
    names: dict[str, set[str]] = {}
    for folder, overrides in {
        "ten": TINY,
        "two": ["model=mlp", "dataset=synthetic", "dataset.classes=2", "trainer.max_steps=2"],
        "auto": ["task=reconstruction", "model=cots_autoencoder", "model.maps=1", "model.stages=1", "model.rf=3",
                 "model.pool=2", "model.lcn=3", "dataset.image_size=8", "trainer.max_steps=2", "batch_size=8",
                 "trainer.limit_val_batches=1", "trainer.limit_test_batches=1"],
    }.items():  # fmt: skip
        assert main([*overrides, *quiet, f"hydra.run.dir={folder}"]) == 0
        with open(here / folder / "metrics.csv", newline="") as file:
            columns = set(next(csv.reader(file)))
        names[folder] = {name for name in columns if name.split("/")[0] in ("train", "val", "test")}
    assert names["ten"] == {name for name, least in Classification.LOGGED.items() if least <= 10}
    assert names["two"] == {name for name, least in Classification.LOGGED.items() if least <= 2}
    assert names["auto"] == set(Reconstruction.LOGGED)


def test_a_derived_task_may_log_something_else(here: Path) -> None:
    (here / "derived.py").write_text(
        "from leyden.trainer.components.tasks.classification import Classification\n"
        "class Mine(Classification):\n    pass\n"
    )
    stopping = ["callbacks=[default,early_stopping]", "callbacks.early_stopping.monitor=val/mine"]
    Composer().run([*TINY, "task._target_=derived.Mine", *stopping])


def test_a_metric_that_nobody_logged_is_one_sentence(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "other.py").write_text(
        "from leyden.trainer.components.tasks.classification import Classification\n"
        "class Mine(Classification):\n    pass\n"
    )
    stopping = ["callbacks=[default,early_stopping]", "callbacks.early_stopping.monitor=val/mine"]
    quiet = ["trainer.enable_progress_bar=false", "logger=none"]
    assert main([*TINY, "task._target_=other.Mine", *stopping, *quiet]) == 1
    told = capsys.readouterr().err
    assert "callbacks.early_stopping.monitor=val/mine was not logged; logged so far: epoch, lr, " in told
    assert "Traceback" not in told


def test_more_reading_processes_than_cores_are_warned_of(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from leyden.trainer.compose.checks import slow_settings
    from leyden.trainer.hardware.topology import cores

    composer = Composer()
    quiet = composer.validate_run(composer.compose_with_hydra([f"dataset.num_workers={cores()}"]), []).config
    assert not list(slow_settings(quiet))
    loud = ["dataset.num_workers=2", f"topology.devices_per_node={cores()}", "strategy=ddp"]
    (problem,) = slow_settings(composer.validate_run(composer.compose_with_hydra(loud), []).config)
    assert (problem.key, problem.remedy) == ("dataset.num_workers", "dataset.num_workers=1")
    assert f"{2 * cores()} processes" in problem.text


@pytest.mark.parametrize(
    ("name", "meant"),
    [("val_loss", "val/loss"), ("eval/accuracy", "val/acc"), ("valid_loss", "val/loss"), ("accuracy", "val/acc"),
     ("top5", "val/acc5"), ("perplexity", None)],
)  # fmt: skip
def test_metrics_of_other_tools(name: str, meant: str | None) -> None:
    assert find_metric(name, ["train/loss", "val/loss", "val/acc", "val/acc5"]) == meant


def test_an_exception_is_shown_with_its_line(here: Path) -> None:
    config = Composer().validate_run(Composer().compose_with_hydra([*SMALL, net("Raises")]), []).config
    assert config.model is not None
    from before_start_examples import Raises

    with pytest.raises(KeyError) as caught:
        Raises(10)
    assert "before_start_examples.py:12)" in fault("model", config.model, caught.value).text


def test_of_two_paths_in_a_message_the_longer_names_its_key() -> None:
    keys = {
        "_target_": "leyden.datasets.image_folder.ImageFolder",
        "root": "/data/set",
        "labels": "/data/set/of.csv",
    }
    found = fault("dataset", Target.model_validate(keys), ValueError("/data/set/of.csv, line 2: no label"))
    assert (found.key, found.value) == ("dataset.labels", "/data/set/of.csv")
    assert fault("dataset", Target.model_validate(keys), ValueError("/data/set/1.jpg: damaged")).key == "dataset.root"
