"""Which keys `leyden resume` may change: declared where they are defined, and written in the reference."""

import sys
from importlib import resources
from pathlib import Path

import pytest
import yaml
from folders import ROOT
from runs import TINY, Freeze

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.compose.reopen import change, open_run, read_changes
from leyden.trainer.compose.rules.resumable_keys import may_change, resumable_arguments, resumable_fields
from leyden.trainer.runs.frozen import read_values

CONF = Path(str(resources.files("leyden.conf")))


def values_of(target: str) -> dict[str, object]:
    return {"dataset": {"_target_": target}, "callbacks": {"mine": {"_target_": target}}}


@pytest.mark.parametrize(
    ("key", "target", "may"),
    [
        ("trainer.max_epochs", "", True),
        ("topology.fabric.kind", "", True),
        ("dataset.threads", "user.Data", True),
        ("dataset.val_fraction", "user.Data", False),
        ("dataset.root", "leyden.datasets.image_folder.ImageFolder", True),
        ("dataset.limits.pixels", "leyden.datasets.image_folder.ImageFolder", False),
        ("dataset.root", "user.Data", False),
        ("callbacks.mine.patience", "leyden.trainer.components.callbacks.early_stopping.EarlyStopping", True),
        ("callbacks.mine.monitor", "leyden.trainer.components.callbacks.early_stopping.EarlyStopping", False),
        ("callbacks.mine", "user.Callback", False),
        ("callbacks.other.patience", "user.Callback", False),
        ("seed", "", False),
        ("optimizer.lr", "", False),
        ("nothing.of.this", "", False),
    ],
)
def test_a_key_says_where_it_is_defined_whether_it_may_change(key: str, target: str, may: bool) -> None:
    assert may_change(key, values_of(target)) is may


def test_no_class_is_imported_to_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "leyden.datasets.hub", raising=False)  # of another test
    resumable_arguments.cache_clear()
    assert resumable_arguments("leyden.datasets.hub.HubImages") == frozenset()
    assert resumable_arguments("leyden.datasets.nothing.Nothing") == frozenset()
    assert "leyden.datasets.hub" not in sys.modules


def test_the_reference_names_every_key_that_may_change() -> None:
    page = (ROOT / "docs/reference/resuming.md").read_text()
    documented = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    declared = set(resumable_fields())
    for group in ("dataset", "callbacks"):
        for file in sorted((CONF / group).glob("*.yaml")):
            values = yaml.safe_load(file.read_text()) or {}
            node = values.get(group, values) if group == "dataset" else values
            for name, each in {"": node, **node}.items():
                target = each.get("_target_", "") if isinstance(each, dict) else ""
                prefix = f"{group}.{name}." if name else f"{group}."
                declared |= {prefix + argument for argument in resumable_arguments(target)}
    assert documented == declared


def test_a_relative_path_is_that_of_the_command(here: Path, freeze: Freeze) -> None:
    for name in ("old", "new"):
        (here / name).mkdir()
    run = open_run(str(freeze("run", *TINY, "dataset=image_folder", f"dataset.root={here}/old")))
    change(run, read_changes(["dataset.root=new"]))
    assert run.values["dataset"]["root"] == str(here / "new")
    assert read_values(run.folder)["dataset"]["root"] == str(here / "old")


def test_data_that_are_gone_are_named_with_a_remedy_that_works(here: Path, freeze: Freeze) -> None:
    words = [*TINY, "dataset=image_folder", f"dataset.root={here}/old"]
    run = open_run(str(freeze("run", *words)))
    with pytest.raises(ConfigError, match=r"no such file or folder(.|\n)*needs: dataset\.root=PATH"):
        run.validate_reopened()
    (here / "new").mkdir()
    change(run, read_changes(["dataset.root=new"]))
    run.validate_reopened()
    other = open_run(str(freeze("other", *words, "dataset._target_=leyden.datasets.hub.HubImages")))
    with pytest.raises(ConfigError, match=r"no such file or folder(.|\n)*needs: ln -s"):
        other.validate_reopened()
