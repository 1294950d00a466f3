"""Bombs of interpolations: refused by key and place, before they take memory or time; what people write is resolved."""

import os
from pathlib import Path

import pytest

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.config.compose import Composer
from leyden.trainer.config.interpolation_limits import nested_references

TEXTS = "x0: xxxxxxxxxx\n" + "".join(f"x{n}: '" + f"${{x{n - 1}}}" * 10 + "'\n" for n in range(1, 10))
BOMBS = {
    "references": (TEXTS, "references"),
    "nodes": ("x0: [1]\n" + "".join(f"x{n}: [" + f"'${{x{n - 1}}}', " * 6 + "]\n" for n in range(1, 12)), "stand for"),
    "characters": (f'a: {"x" * 300_000}\nx: "{"${a}" * 900}"\n', "characters"),
    "chain": ("".join(f"x{n}: ${{x{n + 1}}}\n" for n in range(99)) + "x99: 1\n", "lead to each other"),
    "nested": (f'x: "{"${a." * 99}a{"}" * 99}"\n', "nested more than 24 deep"),
    "run folder": (TEXTS + "hydra: {run: {dir: '${x9}'}}\n", "references"),
    "callback": (TEXTS + "hydra: {callbacks: {a: {_target_: '${x9}'}}}\n", "references"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused(tmp_path: Path, name: str) -> None:
    text, reason = BOMBS[name]
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "bomb.yaml").write_text(f"# @package _global_\n{text}")
    composer = Composer(str(tmp_path))
    before = os.times()
    with pytest.raises(ConfigError, match=reason):
        composer.run(["experiment=bomb"])
    after = os.times()
    assert after.user - before.user < 3


def test_each_composition_has_the_limits_to_itself() -> None:
    composer = Composer()
    words = ["tags=[" + ",".join(["'a${seed}'"] * 100) + "]"]
    for _ in range(8):
        composer.validated(composer.composed(words), words)


def test_a_number_without_end_and_defaults_of_themselves_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="batch_size"):
        Composer().composed([f"batch_size={'9' * 5000}"])
    (tmp_path / "optimizer").mkdir()
    (tmp_path / "optimizer" / "hostile.yaml").write_text("defaults:\n  - hostile\n")
    with pytest.raises(ConfigError, match="leads back to itself"):
        Composer(str(tmp_path)).composed(["optimizer=hostile"])


def test_references_inside_each_other() -> None:
    assert nested_references("a ${b} {c} } ${d.${e}}") == 2
    assert nested_references("{a: {b: c}}") == 0
