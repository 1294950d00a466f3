"""Keys of release 0.1 that have moved: accepted in overrides, YAML, frozen runs and their changes, with a notice."""

from pathlib import Path

import pytest
import yaml
from runs import TINY

from leyden.trainer.cli.main import main
from leyden.trainer.config.compose import Composer
from leyden.trainer.config.reopen import read_changes
from leyden.trainer.config.schema import load

OLD = ["strategy.simulate=true", "strategy.delay=exponential", "strategy.delay_ms=20"]
NEW = [override.replace("strategy.", "strategy.execution.") for override in OLD]
SHORT = ["trainer.max_steps=2", "topology.devices_per_node=2", "trainer.enable_progress_bar=false"]


@pytest.mark.parametrize("strategy", ["easgd", "asgd", "local_sgd"])
def test_overrides(strategy: str) -> None:
    base = [*TINY, *SHORT, f"strategy={strategy}"]
    old, new = Composer().run([*base, *OLD]), Composer().run([*base, *NEW])
    assert old.config.strategy == new.config.strategy
    assert old.config.strategy.arguments["execution"]["delay_ms"] == 20
    assert old.notices() == [
        f"strategy.{key} is strategy.execution.{key} now; the old name goes with the next release"
        for key in ("simulate", "delay", "delay_ms")
    ]
    assert new.notices() == []


def test_a_yaml_file_and_the_notice_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "conf/strategy").mkdir(parents=True)
    target = "leyden.trainer.strategies.easgd.EASGD"
    (tmp_path / "conf/strategy/mine.yaml").write_text(f"_target_: {target}\ntau: 3\nsimulate: true\n")
    monkeypatch.chdir(tmp_path)
    assert main(["--config-dir", "conf", "strategy=mine", "hydra.run.dir=run", *TINY, *SHORT]) == 0
    assert "strategy.simulate is strategy.execution.simulate now" in capsys.readouterr().out
    assert load(Path("run")).strategy.arguments == {"tau": 3, "execution": {"simulate": True}}
    assert load(Path("run")).simulated


def test_a_frozen_run_and_what_its_resumption_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["hydra.run.dir=run", *TINY, "trainer.max_steps=1", "trainer.enable_progress_bar=false"]) == 0
    flat = {"_target_": "leyden.trainer.strategies.asgd.ASGD", "n_push": 2, "servers": 2, "elastic": False}
    Path("run/resume.yaml").write_text(yaml.safe_dump([{"changed": {"strategy": flat}}]))
    config = load(Path("run"))
    assert config.strategy.arguments == {"n_push": 2, "execution": {"servers": 2, "elastic": False}}
    assert config.servers == 2


def test_a_metric_that_is_monitored() -> None:
    run = Composer().run([*TINY, "strategy=local_sgd", *NEW, *SHORT, "callbacks.checkpoint.monitor=ahead/distance"])
    checkpoint = run.config.callbacks["checkpoint"]
    assert checkpoint is not None
    assert checkpoint.arguments["monitor"] == "local_update/distance"
    notice = "callbacks.checkpoint.monitor: ahead/distance is local_update/distance now; "
    assert run.notices() == [f"{notice}the old name goes with the next release"]


def test_changes_of_a_resumption() -> None:
    old = read_changes(["strategy=asgd", "strategy.servers=2"])
    assert old.dotted == read_changes(["strategy=asgd", "strategy.execution.servers=2"]).dotted
    assert old.dotted["strategy"]["execution"]["servers"] == 2


def test_a_class_of_the_users_is_told_the_new_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_easgd.py").write_text(
        "from leyden.trainer.strategies.easgd import EASGD\nclass Mine(EASGD):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["strategy._target_=own_easgd.Mine", "+strategy.servers=2", *TINY, *SHORT]) == 2
    message = capsys.readouterr().err
    assert "did you mean execution.servers?" in message
    assert "strategy.execution.servers=2" in message
