"""The contract of callbacks: hooks that cannot get lost, with the base class and without it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from callback_contract_examples import Fits, Plain
from folders import CONF
from runs import TINY, Freeze

from leyden.trainer.cli.main import main
from leyden.trainer.compose.rules.hook_names import misspelt_hooks
from leyden.trainer.config.locate import locate
from leyden.trainer.config.schema import load
from leyden.trainer.core.callback_contract import CallbackContract
from leyden.trainer.core.hooks import own_hook
from leyden.trainer.core.state import RunState

SHIPPED = {
    node["_target_"]
    for file in (CONF / "callbacks").glob("*.yaml")
    for node in yaml.safe_load(file.read_text()).values()
    if isinstance(node, dict) and "_target_" in node
}
NEARLY = {
    "Misspelt": [
        "Misspelt defines on_train_epoch_edn, which nothing calls; the hook of CallbackContract is on_epoch_end"
    ],
    "PlainAndMisspelt": [
        "PlainAndMisspelt defines on_step_ends, which nothing calls; the hook of CallbackContract is on_step_end",
        "PlainAndMisspelt defines state_dcit, which nothing calls; the hook of CallbackContract is state_dict",
    ],
    "Plain": [],
    "Fits": [],
}


def test_shipped_callbacks_inherit_the_contract() -> None:
    assert len(SHIPPED) > 5
    assert all(issubclass(locate(target), CallbackContract) for target in SHIPPED)


@pytest.mark.parametrize("name", NEARLY)
def test_a_hook_that_nothing_would_call_is_found(name: str, freeze: Freeze) -> None:
    config = load(freeze("run", *TINY, f"+callbacks.own._target_=callback_contract_examples.{name}"))
    assert [problem.text for problem in misspelt_hooks(config)] == NEARLY[name]


def test_a_misspelt_hook_is_refused_before_the_start(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "+callbacks.own._target_=callback_contract_examples.Misspelt"]) == 2
    told = capsys.readouterr().err
    assert NEARLY["Misspelt"][0] in told
    assert "def on_epoch_end, or _on_train_epoch_edn if it is not a hook" in told
    assert not (here / "outputs").exists()


def test_hooks_are_called_with_the_contract_and_without_it() -> None:
    fits, plain = Fits(), Plain()
    state: Any = SimpleNamespace(callbacks={"fits": fits, "plain": plain})
    assert RunState.callback_hooks(state, CallbackContract.on_step_end) == [plain.on_step_end]
    assert RunState.callback_hooks(state, CallbackContract.on_epoch_end) == [fits.on_epoch_end]
    assert own_hook(fits, CallbackContract.state_dict) is None
