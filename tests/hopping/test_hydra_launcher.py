"""What Hydra promises of any launcher, after hydra/test_utils/launcher_common_tests.py, held against the pipeline.

Three of its cases mean something else here. A job's working directory (`hydra.job.chdir`) is refused: the models of a
pipeline share processes. A job's log is the run's own run.log, and not NAME.log. A task function is not called: what
would be its return value is the exit code and the metric of the trial.
"""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from folders import MODULES
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf
from runs import summary

from leyden.trainer.cli.main import main

pytestmark = pytest.mark.thinned(2)

STUDY = f"""
defaults:
  - train
  - override topology: cpu
  - override augment: none
  - override model: mlp
  - override optimizer: ???   # every sweep has to say
  - _self_

batch_size: 60
tags: ["${{shout:it}}", "job ${{hydra:job.num}}", "${{hydra:runtime.cwd}}", "${{hydra:runtime.output_dir}}"]
dataset: {{image_size: 8}}
model: {{hidden: [8]}}
trainer: {{max_epochs: 1, enable_progress_bar: false}}
callbacks:
  hears: {{_target_: hopping_examples.RecordsEnvironment, name: LAB_WORD}}
python_path: [{MODULES}]
hydra:
  sweep:
    dir: from_config
    subdir: ${{hydra.job.override_dirname}}
  job:
    name: named_by_config
    env_set: {{LAB_WORD: spoken}}
    config: {{override_dirname: {{kv_sep: _, item_sep: +, exclude_keys: [optimizer.weight_decay]}}}}
  callbacks:
    records: {{_target_: hopping_examples.RecordsCalls, file: calls.txt}}
    pickles: {{_target_: hydra.experimental.callbacks.PickleJobInfoCallback}}
"""
OPTIMIZERS = {"sgd": "torch.optim.SGD", "adamw": "torch.optim.AdamW"}


@pytest.fixture
def here(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a user's own configs."""
    monkeypatch.syspath_prepend(MODULES)
    monkeypatch.delenv("LAB_WORD", raising=False)
    (here / "configs").mkdir()
    (here / "configs" / "study.yaml").write_text(STUDY)
    yield here
    OmegaConf.clear_resolver("shout")


def study(*words: str) -> list[str]:
    return ["-m", "--config-dir=configs", "--config-name=study", "hydra/launcher=pipeline", *words]


def returned(trial: Path) -> JobReturn:
    """What Hydra's callbacks were given, kept by one of its own."""
    return pickle.loads((trial / ".hydra" / "job_return.pickle").read_bytes())


def hydra_of(trial: Path) -> dict[str, Any]:
    return yaml.safe_load((trial / ".hydra" / "hydra.yaml").read_text())["hydra"]


@pytest.mark.slow
def test_four_jobs_in_two_batches(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Over a mandatory choice that the config leaves open, with a key that only the choices have."""
    swept = ["optimizer=sgd,adamw", "seed=1,2", "optimizer.weight_decay=0.25"]
    assert main(study(*swept, "hydra.sweeper.max_batch_size=3")) == 0
    output = capfd.readouterr()
    assert output.out.count(" is done (") == 4
    assert all(line.isprintable() for line in (output.out + output.err).split("\n")), "this is no terminal"

    sweep = here / "from_config"
    assert OmegaConf.load(sweep / "multirun.yaml").hydra.overrides.task == swept
    expected = [(optimizer, seed) for optimizer in OPTIMIZERS for seed in (1, 2)]
    trials = [sweep / f"optimizer_{optimizer}+seed_{seed}" for optimizer, seed in expected]
    pipelines = [sweep / name for name in ("pipeline", "pipeline-3")]
    assert {path for path in sweep.iterdir() if path.is_dir()} == {*trials, *pipelines}
    for number, (trial, (optimizer, seed)) in enumerate(zip(trials, expected, strict=True)):
        job = returned(trial)
        assert job.status is JobStatus.COMPLETED
        assert job.return_value == (0, summary(trial)["metrics"]["val/acc"])
        assert job.overrides == [f"optimizer={optimizer}", f"seed={seed}", "optimizer.weight_decay=0.25"]
        assert job.overrides == yaml.safe_load((trial / ".hydra" / "overrides.yaml").read_text())
        assert (job.task_name, job.working_dir) == ("leyden", str(here))
        assert job.cfg is not None
        assert (job.cfg.seed, job.cfg.optimizer._target_) == (seed, OPTIMIZERS[optimizer])
        assert "hydra" not in job.cfg
        assert job.hydra_cfg is not None
        assert job.hydra_cfg.hydra.job.name == hydra_of(trial)["job"]["name"] == "named_by_config"
        assert job.hydra_cfg.hydra.job.num == hydra_of(trial)["job"]["num"] == number
        assert job.hydra_cfg.hydra.job.id == str(number)
        assert job.hydra_cfg.hydra.runtime.output_dir == hydra_of(trial)["runtime"]["output_dir"] == str(trial)
        config = yaml.safe_load((trial / "config.yaml").read_text())
        assert (config["seed"], config["optimizer"]["weight_decay"]) == (seed, 0.25)
        assert config["tags"] == ["it!", f"job {number}", str(here), str(trial)]
        assert (trial / "environment").read_text() == "spoken"
    calls = ["multirun starts"]
    for batch in (range(3), range(3, 4)):
        calls += [f"{number} starts, spoken, done: False" for number in batch]
        calls += [f"{number} ends, spoken, done: True" for number in batch]
    assert (here / "calls.txt").read_text().splitlines() == [*calls, "multirun ends"]


@pytest.mark.slow
def test_one_job_where_the_command_line_says(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And in the folder of an earlier sweep."""
    (here / "cli" / "pipeline").mkdir(parents=True)
    own = ["hydra.sweep.dir=cli", "hydra.sweep.subdir='job_${hydra.job.num}/${hydra.job.override_dirname}'"]
    separators = ["kv_sep='='", "item_sep=','", "exclude_keys=[]"]
    named = ["hydra.job.name=overridden", *(f"hydra.job.config.override_dirname.{each}" for each in separators)]
    assert main(study("optimizer=sgd", "optimizer.weight_decay=0", *own, *named)) == 0
    trial = here / "cli" / "job_0" / "optimizer.weight_decay=0,optimizer=sgd"
    assert summary(trial)["status"] == "done"
    assert hydra_of(trial)["job"]["name"] == "overridden"
    assert returned(trial).overrides == ["optimizer=sgd", "optimizer.weight_decay=0"]
    assert sorted(path.name for path in (here / "cli").iterdir()) == [
        "job_0",
        "multirun.yaml",
        "pipeline",
        "pipeline-2",
    ]
    capsys.readouterr()
    assert main(["resume", "cli"]) == 0
    assert "1 of 1 trials are done" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "output"),
    [
        ("seed=1,2", "optimizer must be chosen; it can be adagrad, adam, adamw, "),
        ("optimizer=sgd,adamw optimizer.momentum=0.9", "optimizer.momentum = 0.9"),
        ("optimizer=sgd seed=1,2 hydra.verbose=true,false", "hydra.verbose = true,false is Hydra's own key"),
        ("optimizer=sgd boo=bar", "boo = bar there is no such key"),
        ("optimizer=sgd seed=1,2 hydra.job.chdir=true", "hydra.job.chdir = true takes a job to its folder"),
        ("optimizer=sgd seed=1,2 hydra.job.env_set.LAB_WORD=${seed}", "one value of hydra.job.env_set.LAB_WORD"),
        ("optimizer=sgd seed=1,2 hydra.sweep.subdir=same", "trials 0 and 1 would share a folder"),
        ("optimizer=sgd optimizer.lr=interval(0.1,1)", "does not support sweep type"),
    ],
)
def test_nothing_is_made_where_one_job_is_wrong(
    words: str, output: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(study(*words.split())) == 2
    assert output in " ".join(capsys.readouterr().err.split())
    assert [path.name for path in here.iterdir() if path.name != "calls.txt"] == ["configs"]
