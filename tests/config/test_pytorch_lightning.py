"""Modules and data modules that import pytorch_lightning: the same code as lightning.pytorch under another name."""

from pathlib import Path

import lightning_examples
import pytest
import pytorch_lightning as pl
import pytorch_lightning_examples as examples
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from runs import metrics, weights

from leyden.trainer.cli.main import main
from leyden.trainer.config.lightning.base_classes import (
    is_data_module_class,
    is_lightning_module,
    is_module_class,
    lightning_base,
    overrides,
)

WORDS = ["dataset=synthetic", "~dataset.samples", "~dataset.classes", "~dataset.image_shape", "model=null",
         "dataset._target_=pytorch_lightning_examples.Data", "batch_size=8", "trainer.max_epochs=2",
         "trainer.enable_progress_bar=false", "hydra.run.dir=run"]  # fmt: skip


def module(name: str) -> str:
    return f"task._target_=pytorch_lightning_examples.{name}"


@pytest.fixture
def here(here: Path) -> Path:
    examples.SEEN.clear()
    return here


def test_module_and_data_module_of_pytorch_lightning_train_as_under_its_trainer(here: Path) -> None:
    own = examples.Module()
    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(own, datamodule=examples.Data())
    expected = list(examples.SEEN)
    examples.SEEN.clear()
    assert main([*WORDS, module("Module")]) == 0
    assert expected == examples.SEEN
    assert all(torch.equal(value, own.state_dict()[name]) for name, value in weights(here / "run").items())
    found = metrics(here / "run")
    assert found["val_acc"] == float(trainer.callback_metrics["val_acc"])
    assert found["train_loss_epoch"] == pytest.approx(float(trainer.callback_metrics["train_loss_epoch"]), rel=1e-6)
    assert found["inner"] == 11.0


def test_data_of_one_package_and_a_module_of_the_other(here: Path) -> None:
    words = [*WORDS, "task._target_=lightning_examples.Plain"]
    assert main(words) == 0
    assert "train_loss_epoch" in metrics(here / "run")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([module("OwnStep")], "OwnStep overrides optimizer_step"),
        ([module("Module"), "dataset._target_=pytorch_lightning_examples.DataOfTwoTransfers"],
         "DataOfTwoTransfers overrides transfer_batch_to_device"),
        ([module("Module"), "strategy=asgd"], "the servers step with the config's optimizer, and this task brings its"),
    ],
)  # fmt: skip
def test_what_the_loop_does_not_offer_is_refused_of_them_too(
    here: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*WORDS, *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(here.iterdir())


def test_loaders_inside_one(here: Path) -> None:
    words = [*(word for word in WORDS if "dataset" not in word), "dataset=null", module("LoadersInside")]
    assert main(words) == 0
    assert metrics(here / "run")["inner"] == 11.0


def test_each_class_is_compared_with_the_base_of_its_own_package() -> None:
    for base in (LightningModule, pl.LightningModule, LightningDataModule, pl.LightningDataModule):
        name = base.__name__
        derived = type("Derived", (base,), {"setup": lambda self, stage: None})
        assert lightning_base(derived, name) is base
        assert overrides(derived(), "setup")
        assert not overrides(derived(), "prepare_data")
        assert is_module_class(derived) is (name == "LightningModule")
        assert is_data_module_class(derived) is (name == "LightningDataModule")
    assert is_lightning_module(lightning_examples.Plain())
    assert not is_lightning_module(torch.nn.Linear(1, 1))
    assert not is_module_class(type("LightningModule", (), {}))
