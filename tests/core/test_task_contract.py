"""The contract of tasks: declarations that cannot get lost, with the base class and without it."""

from pathlib import Path

import pytest
from runs import TINY, Freeze
from task_contract_examples import Derived, Fits, Foreign

from leyden.trainer.cli.main import main
from leyden.trainer.compose.rules.hook_names import misspelt_hooks
from leyden.trainer.config.schema import load
from leyden.trainer.core.task_contract import defines, takes_multi_label

NEARLY = {
    "Misspelt": "Misspelt defines try_networks, which nothing calls; the hook of TaskContract is try_network",
    "Plain": "Plain defines try_network, a hook of Leyden's TaskContract, and does not inherit it",
}


@pytest.mark.parametrize("name", ["Misspelt", "Plain", "Fits", "Foreign"])
def test_a_declaration_that_nothing_would_read_is_found(name: str, freeze: Freeze) -> None:
    config = load(freeze("run", *TINY, f"task._target_=task_contract_examples.{name}"))
    assert [problem.text for problem in misspelt_hooks(config)] == ([NEARLY[name]] if name in NEARLY else [])


def test_a_misspelt_declaration_is_refused_before_the_start(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "task._target_=task_contract_examples.Misspelt"]) == 2
    assert NEARLY["Misspelt"] in capsys.readouterr().err
    assert not (here / "outputs").exists()


def test_a_derived_task_declares_its_own_metrics() -> None:
    assert defines(Fits, "LOGGED")
    assert not defines(Derived, "LOGGED"), "it may log others"
    assert not defines(Foreign, "LOGGED")
    assert not defines(lambda: None, "try_network")


def test_targets_are_known_without_the_contract() -> None:
    assert [takes_multi_label(task) for task in (Fits, Fits(), Foreign, Foreign())] == [None, None, True, True]
