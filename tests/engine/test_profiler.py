"""trainer.profiler: a trace of some steps, with their phases, and the same training."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from runs import TINY, Freeze, weights

from leyden.trainer.base.heartbeat import heartbeat
from leyden.trainer.cli.main import main
from leyden.trainer.entrypoints.start import start


def names(file: Path) -> Counter[str]:
    with gzip.open(file) as stream:
        return Counter(event.get("name", "") for event in json.load(stream)["traceEvents"])


def test_steps_are_in_a_trace_with_their_phases_and_train_the_same(freeze: Freeze) -> None:
    words = [*TINY, "dataset=digits", "topology=cpu", "trainer.enable_progress_bar=false", "trainer.max_epochs=1"]
    plain, profiled = freeze("plain", *words), freeze("run", *words, "trainer.profiler={first_step: 3, steps: 2}")
    assert start(plain) == start(profiled) == 0
    (file,) = (profiled / "profile").iterdir()
    assert file.name == "rank-0-steps-3-4.json.gz"
    found = names(file)
    assert found["data"] == found["backward"] == found["update"] == 2
    assert found["forward"] >= 2
    assert found["aten::linear"] == 4  # two layers, two steps
    assert heartbeat.observer is None
    ours, theirs = weights(profiled), weights(plain)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_training_that_ends_among_the_steps_leaves_what_there_is(freeze: Freeze) -> None:
    run = freeze("run", *TINY, "dataset=digits", "topology=cpu", "trainer.enable_progress_bar=false",
                 "trainer.max_steps=3", "trainer.profiler={first_step: 2, steps: 50}")  # fmt: skip
    assert start(run) == 0
    (file,) = (run / "profile").iterdir()
    assert file.name == "rank-0-steps-2-3.json.gz"


def test_a_training_that_ends_before_the_steps_says_so(freeze: Freeze) -> None:
    run = freeze("run", *TINY, "trainer.max_steps=2", "trainer.profiler={first_step: 9, steps: 5}")
    assert start(run) == 0
    assert not (run / "profile").exists()
    assert "ended at step 2, before step 9: no step was profiled" in (run / "run.log").read_text()


@pytest.mark.parametrize("options", ["{first_step: 0}", "{steps: 1000}", "{step: 1}"])
def test_mistakes_are_named(
    options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([f"trainer.profiler={options}"]) == 2
    assert "trainer.profiler" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
