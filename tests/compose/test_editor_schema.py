"""What an editor says of YAML files by the schemas that `leyden schema` prints."""

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from folders import CONF
from jsonschema import Draft202012Validator, ValidationError

from leyden.trainer.cli.main import main
from leyden.trainer.compose.reference.json_schema import editor_schema

OTHERS = ("hydra/", "planner/", "plan.yaml", "prepare.yaml", "predict.yaml", "inspect.yaml", "find_")
"""Hydra's own groups, the planner's constants, and keys of a verb."""
FILES = sorted(path.relative_to(CONF) for path in CONF.rglob("*.yaml"))
SHIPPED = [path for path in FILES if not str(path).startswith(OTHERS)]


@cache
def validator(group: str | None) -> Draft202012Validator:
    schema = editor_schema(group)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def mistakes(group: str | None, text: str) -> list[str]:
    """Messages of all mistakes in a file; of a value with alternatives, why it is none of them."""
    return list(messages(validator(group).iter_errors(yaml.safe_load(text))))


def messages(errors: Iterable[ValidationError]) -> Iterator[str]:
    for error in errors:
        yield from messages(error.context) if error.context else [error.message]


@pytest.mark.thinned(4, 4)
@pytest.mark.parametrize("path", SHIPPED, ids=str)
def test_shipped_files_are_valid(path: Path) -> None:
    text = (CONF / path).read_text()
    assert not mistakes(str(path.parent) if path.parent.parts else None, text)
    if "# @package _global_" in text:
        assert not mistakes(None, text)


MLP, SGD = "_target_: leyden.models.mlp.MLP\n", "_target_: torch.optim.SGD\n_partial_: true\n"
EASGD = "_target_: leyden.trainer.strategies.easgd.EASGD\n"
WRONG = [
    ("model", f"{MLP}hiden: [3]", "'hiden' was unexpected"),
    ("model", f"{MLP}hidden: 3", "3 is not"),
    ("model", f"{MLP}hidden: [wide]", "['wide'] is not"),
    ("model", "_target_: leyden.models.resnet.ResNet\ndepth: 19", "19 is not"),
    ("model", "defaults: [mlp]\nhiden: [3]", "'hiden' was unexpected"),
    ("optimizer", f"{SGD}lr: fast", "'fast' is not"),
    ("optimizer", f"{SGD}decay_bias_and_nrom: true", "was unexpected"),
    ("optimizer", "_target_: torch.optim.AdamW\nbetas: [0.9]", "[0.9] is not"),
    ("strategy", f"{EASGD}taau: 3", "'taau' was unexpected"),
    ("strategy", f"{EASGD}execution: {{servers: one}}", "'one' is not"),
    ("strategy", f"{EASGD}execution: {{sevrers: 1}}", "'sevrers' was unexpected"),
    ("schedule", "_target_: leyden.trainer.components.lr_schedules.WarmupCosine\nwarmup: 3", "'warmup' was unexpected"),
    (
        "schedule",
        "_target_: leyden.trainer.components.lr_schedules.MultiStep\nmilestone: [3]",
        "'milestone' was unexpected",
    ),
    ("dataset", "_target_: leyden.datasets.digits.Digits\nval_fraction: 2", "2 is not"),
    ("dataset", "_target_: leyden.datasets.digits.Digits\nimagesize: 8", "'imagesize' was unexpected"),
    ("dataset", "dataset:\n  _target_: leyden.datasets.digits.Digits\n  imagesize: 8", "'imagesize' was unexpected"),
    (
        "callbacks",
        "ema:\n  _target_: leyden.trainer.components.callbacks.ema.EMA\n  deccay: 0.9",
        "'deccay' was unexpected",
    ),
    (
        "callbacks",
        "progress:\n  _target_: leyden.trainer.components.callbacks.progress.Progress\n  bar: no",
        "'bar' was unexpected",
    ),
    (
        "task",
        "_target_: leyden.trainer.components.tasks.classification.Classification\nsmoothing: 0.1",
        "'smoothing' was unexpected",
    ),
    ("topology", "nodes: two", "'two' is not"),
    ("experiment", "trainer:\n  max_epochs: many", "'many' is not"),
]


@pytest.mark.parametrize(
    ("group", "text", "message"), WRONG, ids=[f"{group}: {text[-20:]!r}" for group, text, _ in WRONG]
)
def test_mistakes_are_found(group: str, text: str, message: str) -> None:
    found = " ".join(mistakes(group, text))
    assert message in found


RIGHT = [
    ("model", "_target_: my_models.Mine\nanything: [3]"),
    ("model", f"{MLP}hidden: ${{oc.env:HIDDEN}}\nparallel: {{sharded: [layers]}}\ndropout: ???"),
    ("model", "_target_: leyden.models.timm_model.TimmModel\nname: resnet50\ndrop_rate: 0.1"),  # takes **options
    ("model", "defaults: [mlp]\nhidden: [3]"),
    ("model", "hidden: [3]"),  # whatever it is based on, this file does not say
    ("optimizer", f"{SGD}foreach: null\nlr: 1"),
    ("optimizer", "defaults: [sgd]\nnesterov: true\ndecay_bias_and_norm: false"),
    ("schedule", "schedule: null"),
    ("callbacks", "defaults: [default]\ncheckpoint:\n  save_top_k: 3\nprogress: null"),
    ("callbacks", "mine:\n  _target_: my_callbacks.Mine\n  every: 3"),
    ("strategy", "defaults: [easgd]\ntau: 3"),
    ("model", f"{MLP}hidden:\n  _target_: my_models.Widths\n  first: 3"),
]


@pytest.mark.parametrize(("group", "text"), RIGHT, ids=[f"{group}: {text[-20:]!r}" for group, text in RIGHT])
def test_what_leyden_takes_is_valid(group: str, text: str) -> None:
    assert not mistakes(group, text)


def test_editors_show_what_the_files_say(capsys: pytest.CaptureFixture[str]) -> None:
    schema: dict[str, Any] = editor_schema("strategy")
    (tau,) = [
        rule["then"]["properties"]["tau"]
        for rule in schema["$defs"]["Target"]["allOf"]
        if "tau" in rule["then"]["properties"]
    ]
    assert tau["description"].startswith("local steps from one exchange to the next")
    assert main(["schema", "modle"]) == 2
    assert "leyden schema model" in capsys.readouterr().err
