"""Modules after public tutorials under Leyden and Lightning's Trainer: the same weights and logs, to all digits."""

import warnings
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import tutorial_modules
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers.logger import Logger
from runs import HERE, OWN_TASK, Freeze, rows, summary, weights

from leyden.trainer.entrypoints.start import start

pytestmark = pytest.mark.thinned(2)

NAMES = [
    "Supervised", "AutoEncoder", "SimCLR", "MomentumTarget", "OneCycle", "LinearWarmup", "HydraTemplate",
    "PlateauOfSteps", "Collections", "DictOutputs", "ParameterGroups", "FineTuning", "VAE", "Segmentation", "MultiTask",
    "Distillation", "Triplets", "TwoSchedules", "WarmupInHook", "MixUp", "Transformer", "LoadersInside",
]  # fmt: skip
CLIPPED = ("ParameterGroups", "Transformer", "MultiTask")
ALMOST = 1e-14
"""Means over an epoch are added up in another order: relative distance of two float64 values."""


class Recorder(Logger):
    """Keeps what Lightning's Trainer logs, by name."""

    @property
    def name(self) -> str:
        return "recorder"

    @property
    def version(self) -> int:
        return 0

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, list[float]] = defaultdict(list)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        for name, value in metrics.items():
            self.values[name].append(float(value))

    def log_hyperparams(self, *arguments: Any, **options: Any) -> None: ...


def lightnings(name: str) -> tuple[LightningModule, Recorder, Trainer]:
    module, recorder = getattr(tutorial_modules, name)(), Recorder()
    trainer = Trainer(
        max_epochs=3, accelerator="cpu", devices=1, logger=recorder, enable_checkpointing=False, precision="64-true",
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0, log_every_n_steps=1,
        gradient_clip_val=0.5 if name in CLIPPED else None,
    )  # fmt: skip
    data = None if name == "LoadersInside" else tutorial_modules.TutorialData(getattr(module, "kind", "labelled"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, datamodule=data)
    return module, recorder, trainer


def options(name: str) -> list[str]:
    kind = getattr(getattr(tutorial_modules, name), "kind", "labelled")
    data = (
        "leyden.trainer.data.task_loaders.TaskLoaders" if name == "LoadersInside" else "tutorial_modules.TutorialData"
    )
    return [
        "dataset=synthetic", "~dataset.samples", "~dataset.classes", "~dataset.image_shape", "~model",
        *OWN_TASK, f"task._target_=tutorial_modules.{name}", f"dataset._target_={data}", "batch_size=8",
        *([] if name == "LoadersInside" else [f"+dataset.kind={kind}"]), "trainer.max_epochs=3",
        "trainer.precision=64-true", "trainer.enable_progress_bar=false", "trainer.log_every_n_steps=1",
        f"trainer.gradient_clip_val={0.5 if name in CLIPPED else 'null'}", HERE,
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_weights_and_logs_are_those_of_lightnings_trainer_to_all_digits(freeze: Freeze, name: str) -> None:
    module, recorder, trainer = lightnings(name)
    run_dir = freeze("run", *options(name))
    assert start(run_dir) == 0
    assert summary(run_dir)["steps"] == trainer.global_step == 15
    found, expected = weights(run_dir), module.state_dict()
    assert found.keys() == expected.keys()
    for tensor in found:
        assert torch.equal(found[tensor], expected[tensor]), tensor
    table = rows(run_dir)
    names = set(recorder.values) - {"epoch"}
    assert names, "something is compared"
    for metric in names:
        logged = [float(row[metric]) for row in table if row.get(metric)]
        assert logged == pytest.approx(recorder.values[metric], rel=ALMOST, abs=0), metric


def test_the_table_is_long_enough() -> None:
    assert len(set(NAMES)) >= 15
