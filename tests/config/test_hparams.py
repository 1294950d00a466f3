"""TensorBoard's HPARAMS of a sweep: what varies comes first, metrics that compare the trials, runs with names."""

from pathlib import Path
from typing import Any

import pytest
from runs import TINY, Freeze
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from leyden.trainer.cli.main import main
from leyden.trainer.config.hyperparameters import hyperparameters, title, varied_names
from leyden.trainer.config.schema import load

QUICK = [*TINY, "trainer.max_epochs=1", "trainer.enable_progress_bar=false"]


def recorded(run_dir: Path) -> tuple[Any, Any]:
    """Experiment and start of a run, from its event file."""
    events = EventAccumulator(str(run_dir))
    events.Reload()
    content = events.PluginTagToContent("hparams")
    experiment = metadata.parse_experiment_plugin_data(content[metadata.EXPERIMENT_TAG])
    return experiment, metadata.parse_session_start_info_plugin_data(content[metadata.SESSION_START_INFO_TAG])


@pytest.mark.slow
def test_a_sweep_shows_what_it_varies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["-m", *QUICK, "optimizer.lr=0.1,0.01", "hydra.sweep.dir=mine", "logger=default"]) == 0
    for number, rate in enumerate((0.1, 0.01)):
        experiment, start = recorded(tmp_path / "mine" / str(number))
        infos = {info.name: info for info in experiment.hparam_infos}
        assert [name for name, info in infos.items() if info.differs] == ["optimizer.lr"]
        assert {"model", "batch_size", "seed", "dataset.image_size"} < set(infos)
        assert not [name for name in infos if "_target_" in name or "_partial_" in name]
        assert next(iter(infos)) == "optimizer.lr"
        assert start.hparams["optimizer.lr"].number_value == rate
        assert start.hparams["model"].string_value == "mlp"
        assert start.group_name == f"{number} optimizer.lr={rate}"
        metrics = [info.name.tag for info in experiment.metric_infos]
        assert metrics[:2] == ["val/acc", "val/acc5"]
        assert not [name for name in metrics if name.split("/")[0] not in ("val", "test", "train")]


def test_keys_as_they_were_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups by their files, `data` for `dataset`, added and removed keys, lists, Hydra's own."""
    monkeypatch.chdir(tmp_path)
    words = [*QUICK, "data=digits", "callbacks=[default,ema]", "optimizer.nesterov=true", "tags=[a,b]", "logger=none",
             "hydra.run.dir=run", "~callbacks.progress"]  # fmt: skip
    assert main(words) == 0
    config = load(tmp_path / "run")
    found = hyperparameters(config)
    assert list(found) == ["model", "model.hidden", "dataset.image_size", "trainer.max_epochs",
                           "trainer.enable_progress_bar", "dataset", "callbacks", "optimizer.nesterov", "tags",
                           "logger", "optimizer.lr", "batch_size", "seed"]  # fmt: skip
    assert found["model"] == "mlp"
    assert found["dataset"] == "digits"
    assert found["callbacks"] == "[default,ema]"
    assert found["optimizer.nesterov"] is True
    assert found["tags"] == "[a,b]"
    assert varied_names(config.composition) == []
    assert title(config, tmp_path / "run").startswith("run model=mlp ")
    assert "hydra" not in title(config, tmp_path / "run")


def test_a_run_frozen_before_there_was_a_composition(freeze: Freeze) -> None:
    config = load(freeze("old", *QUICK))
    assert hyperparameters(config)["batch_size"] == 64
    assert title(config, Path("old")) == "old"
