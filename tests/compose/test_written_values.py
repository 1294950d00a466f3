"""Numbers in texts from the environment, and times that YAML reads to base 60."""

from pathlib import Path

import pytest

from leyden.trainer.cli.main import main
from leyden.trainer.compose.composer import Composer

ENVIRONMENT = {"BS": "32", "LR": "1e-3", "ON": "true", "TAG": "007", "BAD": "fast", "P": "0.5"}


@pytest.fixture
def here(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return here


def test_text_of_the_environment_is_read_as_on_the_command_line(here: Path) -> None:
    run = Composer().run([
        "batch_size=${oc.env:BS}", "optimizer.lr=${oc.env:LR}", "trainer.fast_dev_run=${oc.env:ON}",
        "tags=['${oc.env:TAG}']",
        "trainer.max_epochs=${batch_size}", "model=mlp", "model.hidden=['${oc.env:BS}',8]", "model.dropout=${oc.env:P}",
    ])  # fmt: skip
    config = run.config
    assert config.model is not None
    assert config.optimizer is not None
    assert (config.batch_size, config.trainer.max_epochs, config.trainer.fast_dev_run) == (32, 32, True)
    assert config.optimizer.arguments["lr"] == 0.001
    assert (config.model.arguments["hidden"], config.model.arguments["dropout"]) == ([32, 8], 0.5)
    assert config.tags == ["007"], "text where text is wanted"
    assert run.values["batch_size"] == 32


@pytest.mark.parametrize("override", ["batch_size=${oc.env:BAD}", "optimizer.lr=${oc.env:BAD}", "batch_size='32'"])
def test_other_text_is_refused(override: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([override]) == 2
    assert "must be a " in capsys.readouterr().err


MISREAD = {
    "trainer:\n  max_time: 12:00:00\n": [
        "trainer.max_time = 12:00:00",
        "try: max_time: '00:12:00:00'",
        "mine.yaml:3",
    ],
    "topology:\n  slurm: {time_min: 12:00:00}\n": ["time_min = 12:00:00", "try: time_min: 720"],
    "tags: ['1:30', 4:3]\n": ["tags.1 = 4:3", "in quotes it is text"],
}


@pytest.mark.parametrize("text", MISREAD)
def test_number_to_base_60_is_named(text: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "conf/experiment").mkdir(parents=True)
    (here / "conf/experiment/mine.yaml").write_text(f"# @package _global_\n{text}")
    assert main(["--config-dir", "conf", "experiment=mine"]) == 2
    said = capsys.readouterr().err
    for part in ["base 60", *MISREAD[text]]:
        assert part in said, said


def test_times_in_quotes_and_blocks_are_read(here: Path) -> None:
    (here / "conf/experiment").mkdir(parents=True)
    text = "trainer: {max_time: '00:12:00:00'}\ntags: ['12:30', \"1:2\", 01:00:00]\n"
    (here / "conf/experiment/mine.yaml").write_text(f"# @package _global_\n{text}")
    config = Composer("conf").run(["experiment=mine"]).config
    assert (config.trainer.max_time, config.tags) == ("00:12:00:00", ["12:30", "1:2", "01:00:00"])
