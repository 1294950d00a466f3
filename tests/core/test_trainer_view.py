"""What a module may ask of `self.trainer`: the values are those of Lightning's Trainer, the rest is refused by name."""

import functools
import inspect
from pathlib import Path
from typing import Any

import lightning_examples as examples
import pytest
import torch
import trainer_view_examples
from folders import MODULES
from lightning.pytorch import Trainer
from runs import POINTS, Freeze, cut_back, metrics, summary, weights

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.cli.main import main
from leyden.trainer.compose.composer import Composer
from leyden.trainer.config.lightning import trainer_uses
from leyden.trainer.config.schema import Target
from leyden.trainer.config.targets import build
from leyden.trainer.core.checkpoints import checkpoint_io
from leyden.trainer.entrypoints.start import start

pytestmark = pytest.mark.usefixtures("seen")
FEW_BATCHES = ["trainer.limit_train_batches=3", "trainer.limit_val_batches=2"]
OPTIONS = [*POINTS, "logger=none", "trainer.log_every_n_steps=50"]


def asking(name: str) -> str:
    return f"task._target_=trainer_view_examples.{name}"


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, []),
        ({"accumulate_grad_batches": 4}, ["trainer.accumulate_grad_batches=4", "+dataset.batch_size=8"]),
        ({"limit_train_batches": 3, "limit_val_batches": 2}, FEW_BATCHES),
    ],
    ids=["plain", "accumulated, the last step of two batches", "limited"],
)  # fmt: skip
def test_every_attribute_has_lightnings_value_at_every_hook(
    freeze: Freeze, seen: list[Any], settings: dict[str, Any], options: list[str]
) -> None:
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, num_sanity_val_steps=0,
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=50, **settings,
    )  # fmt: skip
    trainer.fit(trainer_view_examples.Asks(), datamodule=examples.Points())
    expected = [entry for entry in seen if entry[0] in vars(trainer_view_examples.Asks)]
    seen.clear()
    assert start(freeze("run", *OPTIONS, asking("Asks"), *options)) == 0
    found = [entry for entry in seen if entry[0] in vars(trainer_view_examples.Asks)]
    assert len(expected) > 20
    assert [hook for hook, _ in found] == [hook for hook, _ in expected]
    for number, ((hook, values), (_, wanted)) in enumerate(zip(found, expected, strict=True)):
        if settings.get("accumulate_grad_batches"):  # a short last step: here its mean
            values["logged"], wanted["logged"] = sorted(values["logged"]), sorted(wanted["logged"])
        assert values == wanted, (number, hook)


def test_a_module_of_lightning_hydra_template_trains(freeze: Freeze) -> None:
    runs = [freeze(name, *OPTIONS, asking(name)) for name in ("HydraTemplate", "Plain")]
    runs[1] = freeze("plain", *OPTIONS, "task._target_=lightning_examples.Plain")
    for run_dir in runs:
        assert start(run_dir) == 0
    assert all(torch.equal(value, weights(runs[1])[name]) for name, value in weights(runs[0]).items())


def test_checkpoints_that_a_module_saves_are_whole(freeze: Freeze, seen: list[Any], tmp_path: Path) -> None:
    monitored = ["callbacks.checkpoint.monitor=val_loss", "callbacks.checkpoint.mode=min"]
    run_dir = freeze("run", *POINTS, asking("Saves"), *monitored)
    assert start(run_dir) == 0
    notes = [entry for entry in seen if isinstance(entry, tuple) and len(entry) == 3]
    assert notes[0] == ("", "", None)
    assert notes[1][0] == str(run_dir / "checkpoints" / "step=00000006.ckpt")
    assert notes[1][1] == str(run_dir / "checkpoints" / "last.ckpt")
    assert seen[-2] is True, "at the end of the training it is there when the call returns"
    steps = {path.stem: checkpoint_io.read(path)["position"]["step"] for path in run_dir.glob("*.ckpt")}
    assert steps == {"at8": 8, "epoch0": 6, "epoch1": 12, "end": 12}
    broken = cut_back(run_dir, tmp_path / "broken", 0)
    (broken / "checkpoints" / "step=00000008.ckpt").write_bytes((broken / "at8.ckpt").read_bytes())
    assert start(broken, "resume") == 0
    assert summary(broken)["resumed_from_step"] == 8
    assert all(torch.equal(value, weights(broken)[name]) for name, value in weights(run_dir).items())
    assert metrics(broken)["val_loss"] == metrics(run_dir)["val_loss"]


COMMAND = [
    "dataset=synthetic", "~dataset.samples", "~dataset.classes", "~dataset.image_shape", "model=null",
    "dataset._target_=lightning_examples.Points", "batch_size=8", "trainer.max_epochs=1",
    "trainer.enable_progress_bar=false", "trainer.limit_train_batches=1", "logger=none", "callbacks=none",
]  # fmt: skip


def test_an_optimizer_that_is_an_argument_with_partial(freeze: Freeze) -> None:
    optimizer = "+task.optimizer={_target_:torch.optim.SGD,_partial_:true,lr:0.1,momentum:0.9}"
    partial = freeze("partial", *OPTIONS, asking("TakesPartials"), optimizer)
    plain = freeze("plain", *OPTIONS, "task._target_=lightning_examples.Plain")
    for run_dir in (partial, plain):
        assert start(run_dir) == 0
    assert all(torch.equal(value, weights(plain)[name]) for name, value in weights(partial).items())
    options = [option for option in OPTIONS if not option.startswith("python_path=")]
    with pytest.raises(ConfigError, match="SGD takes no argument 'momentom'; did you mean momentum"):
        Composer(str(MODULES)).run([*options, asking("TakesPartials"), optimizer.replace("momentum", "momentom")])


def test_partials_nest() -> None:
    """As Hydra's instantiate has them: what is inside of one is built with it, the function is called by its owner."""
    norm = {"_target_": "torch.nn.GroupNorm", "_partial_": True, "num_groups": 2}
    inner = {"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 3}
    values = {"_target_": "trainer_view_examples.Keeps", "norm": norm, "layers": [inner, {"a": norm}]}
    kept = build(Target.model_validate(values))
    assert isinstance(kept.norm, functools.partial)
    assert kept.norm(num_channels=4).num_groups == 2
    assert isinstance(kept.layers[0], torch.nn.Linear)
    assert kept.layers[1]["a"](num_channels=8).num_channels == 8


@pytest.mark.parametrize("key", ["augment", "callbacks.mine"])
def test_a_partial_that_nothing_completes_is_an_error(key: str) -> None:
    node = f"+{key}={{_target_:trainer_view_examples.Keeps,_partial_:true,norm:1}}"
    with pytest.raises(ConfigError) as told:
        Composer(str(MODULES)).run([*(["augment=null"] if key == "augment" else []), node])
    assert [(p.key, p.remedy) for p in told.value.problems] == [(f"{key}._partial_", "leave it out")]


@pytest.mark.parametrize("name", ["AsksTooMuch", "AsksBaseTooMuch"])
def test_what_is_not_offered_is_found_in_the_source_before_the_start(
    here: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    file = Path(trainer_view_examples.__file__)
    line = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if "self.print(self.trainer.fit_l" in text)
    assert main([*COMMAND, asking(name)]) == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert f"{name} reads self.trainer.fit_loop ({file}:{line}), which Leyden's trainer does not offer" in printed
    assert not list(here.iterdir())


def test_sources_that_never_say_trainer_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """To find a class in its file, Python parses all of it: nn.Module's takes longer than every other check."""
    parsed: list[type] = []
    find = inspect.getsourcelines
    monkeypatch.setattr(inspect, "getsourcelines", lambda cls: (parsed.append(cls), find(cls))[1])
    trainer_uses._read.cache_clear()
    found = trainer_uses.uses(trainer_view_examples.AsksTooMuch)
    assert "fit_loop" in [use.name for use in found]
    assert trainer_view_examples.AsksTooMuch in parsed
    assert torch.nn.Module not in parsed


def test_a_module_that_looks_before_it_reads_is_not_refused(here: Path, seen: list[Any]) -> None:
    assert main([*COMMAND, asking("AsksCarefully")]) == 0
    assert [entry for entry in seen if entry in ("no tuner", "none")] == ["no tuner", "none"]


def test_what_no_source_shows_ends_the_run_with_module_attribute_and_line(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, asking("AsksInASideDoor")]) == 1
    file = Path(trainer_view_examples.__file__)
    line = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if "return trainer.fit_loop" in text)
    printed = f"AsksInASideDoor reads trainer.fit_loop ({file}:{line}), which Leyden's trainer does not offer"
    assert printed in capfd.readouterr().err
