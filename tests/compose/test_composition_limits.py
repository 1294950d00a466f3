"""Limits of a composition: bombs of interpolations end in a sentence, what people write is resolved."""

import resource
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.cli.main import main
from leyden.trainer.compose import limits
from leyden.trainer.compose.composer import Composer
from leyden.trainer.compose.composition.loader import nested_references
from leyden.trainer.compose.composition.resolved_values import plain

REFERENCES = "x0: xxxxxxxxxx\n" + "".join(f"x{n}: '" + f"${{x{n - 1}}}" * 10 + "'\n" for n in range(1, 10))
NODES = "x0: [1]\n" + "".join(f"x{n}: [" + f"'${{x{n - 1}}}', " * 6 + "]\n" for n in range(1, 12))
ONE_TEXT = f'a: {"x" * 300_000}\nx: "{"${a}" * 900}"\n'


@pytest.fixture(autouse=True)
def in_a_command() -> Iterator[None]:
    with limits.in_a_command():
        yield


def composer_of(folder: Path, text: str) -> Composer:
    (folder / "experiment").mkdir()
    (folder / "experiment" / "bomb.yaml").write_text(f"# @package _global_\n{text}")
    return Composer(str(folder))


def state() -> tuple[object, ...]:
    return signal.getsignal(signal.SIGVTALRM), signal.getitimer(signal.ITIMER_VIRTUAL), resource.getrlimit(
        resource.RLIMIT_DATA)  # fmt: skip


@pytest.mark.parametrize("text", [
    REFERENCES, NODES, f"{REFERENCES}hydra: {{run: {{dir: '${{x9}}'}}}}\n",
    f"{REFERENCES}hydra: {{callbacks: {{a: {{_target_: '${{x9}}'}}}}}}\n",
], ids=["texts", "lists", "run folder", "callback"])  # fmt: skip
def test_one_that_takes_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    composer, before = composer_of(tmp_path, text), state()
    monkeypatch.setattr(limits, "MAX_SECONDS", 0.05)
    with pytest.raises(ConfigError, match=r"composing takes more than 0\.05 s"):
        composer.run(["experiment=bomb"])
    assert state() == before


def test_one_that_takes_too_long_is_refused_though_what_it_interrupts_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_SECONDS", 0.05)

    @limits.limit_composition()
    def fails_when_interrupted() -> None:
        try:
            while True:
                pass
        finally:
            raise AttributeError("'NoneType' object has no attribute '_invalidate_flags_cache'")

    with pytest.raises(ConfigError, match="composing takes more than"):
        fails_when_interrupted()


def test_one_that_takes_too_long_is_refused_though_a_callback_of_the_collector_loses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MAX_SECONDS", 0.05)
    monkeypatch.setattr(limits, "_AGAIN_S", 0.05)

    class Collected:
        def __del__(self) -> None:
            until = time.process_time() + 0.07
            while time.process_time() < until:
                pass

    def compute() -> None:
        collected = Collected()
        del collected
        while True:
            pass

    with pytest.raises(ConfigError, match="composing takes more than"), limits.limit_composition():
        compute()


def test_one_that_takes_too_much_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    composer, before = composer_of(tmp_path, ONE_TEXT), state()
    monkeypatch.setattr(limits, "MAX_BYTES", 100 << 20)
    with pytest.raises(ConfigError, match=r"composing takes more than 0\.098 GiB"):
        composer.run(["experiment=bomb"])
    assert state() == before


def test_hundreds_of_references_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB", "/lab")
    values = plain(OmegaConf.create({"a": ["${oc.env:LAB}"] * 401}))
    assert values == {"a": ["/lab"] * 401}


def test_in_another_thread_nothing_is_limited() -> None:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(Composer().run(["batch_size=7"]).config.batch_size))
    thread.start()
    thread.join()
    assert found == [7]


def test_ctrl_c_ends_a_composition_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    OmegaConf.register_new_resolver("ctrl_c", lambda: signal.raise_signal(signal.SIGINT), replace=True)
    before = state()
    try:
        assert main(["batch_size=${ctrl_c:}"]) == 130
    finally:
        OmegaConf.clear_resolver("ctrl_c")
    assert state() == before
    assert not list(tmp_path.iterdir())


def test_references_inside_each_other(tmp_path: Path) -> None:
    assert nested_references("a ${b} {c} } ${d.${e}}") == 2
    assert nested_references("{a: {b: c}}") == 0
    with pytest.raises(ConfigError, match="nested more than 24 deep"):
        composer_of(tmp_path, f'x: "{"${a." * 99}a{"}" * 99}"\n').run(["experiment=bomb"])


def test_a_number_without_end_and_defaults_of_themselves_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="batch_size"):
        Composer().compose_with_hydra([f"batch_size={'9' * 5000}"])
    (tmp_path / "optimizer").mkdir()
    (tmp_path / "optimizer" / "hostile.yaml").write_text("defaults:\n  - hostile\n")
    with pytest.raises(ConfigError, match="leads back to itself"):
        Composer(str(tmp_path)).compose_with_hydra(["optimizer=hostile"])
