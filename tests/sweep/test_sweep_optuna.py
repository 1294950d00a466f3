"""Sweeps by Optuna: search spaces, mistakes, failed and pruned trials, and a study that goes on after kill -9."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from runs import TINY, metrics, summary

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.cli.main import main

optuna = pytest.importorskip("optuna")

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution  # noqa: E402
from optuna.storages.journal import JournalFileBackend  # noqa: E402
from optuna.trial import TrialState  # noqa: E402

from leyden.trainer.sweep.results import Metric  # noqa: E402
from leyden.trainer.sweep.study.components import SamplerFactory  # noqa: E402
from leyden.trainer.sweep.study.journal import StudyJournal  # noqa: E402
from leyden.trainer.sweep.study.outcome import TrialOutcome  # noqa: E402
from leyden.trainer.sweep.study.search_space import SearchSpace  # noqa: E402

pytestmark = pytest.mark.thinned(2)

OPTUNA = ["hydra/sweeper=optuna", "hydra.sweep.dir=mine"]
QUICK = [*TINY, "trainer.max_epochs=1", "trainer.enable_progress_bar=false", "logger=none", "topology=cpu"]


def seeded(seed: int) -> list[str]:
    return ["hydra/sweeper/sampler=random", f"hydra.sweeper.sampler.seed={seed}"]


def chosen(folder: Path, typed: str, seed: int, count: int) -> list[dict[str, Any]]:
    """Points of the first trials of a study that nothing interrupts."""
    folder.mkdir(parents=True, exist_ok=True)
    samplers = SamplerFactory({"_target_": "optuna.samplers.RandomSampler", "seed": seed})
    study = StudyJournal(folder, SearchSpace.of({}, [typed]), Metric(), samplers)
    for number in range(count):
        study.ask(number)
        study.tell(number, TrialOutcome("complete", 0.5))
    return [study.trials[number].params for number in range(count)]


def drawn(typed: str, seed: int, count: int) -> list[Any]:
    """Values of the first trials of a study of one key."""
    samplers = SamplerFactory({"_target_": "optuna.samplers.RandomSampler", "seed": seed})
    space, study = SearchSpace.of({}, [typed]), optuna.create_study()
    values = []
    for number in range(count):
        study.sampler = samplers.of_trial(number)
        values += study.ask(dict(space.distributions)).params.values()
    return values


def study_of(sweep: Path) -> Any:
    backend = JournalFileBackend(str(sweep / "study.journal"))
    return optuna.load_study(study_name=None, storage=optuna.storages.JournalStorage(backend))


@pytest.mark.parametrize(
    ("typed", "distribution"),
    [
        ("optimizer.lr=interval(0.1,0.5)", FloatDistribution(0.1, 0.5)),
        ("optimizer.lr=tag(log,interval(1e-4,1e-1))", FloatDistribution(1e-4, 1e-1, log=True)),
        ("optimizer.lr=interval(1,2)", FloatDistribution(1.0, 2.0)),
        ("batch_size=int(interval(8,64))", IntDistribution(8, 64)),
        ("batch_size=tag(log,int(interval(8,64)))", IntDistribution(8, 64, log=True)),
        ("batch_size=range(1,10,3)", IntDistribution(1, 7, step=3)),
        ("batch_size=range(10,0,-3)", IntDistribution(1, 10, step=3)),
        ("optimizer.lr=range(0.0,1.0,0.25)", FloatDistribution(0.0, 0.75, step=0.25)),
        ("batch_size=shuffle(range(1,4))", CategoricalDistribution([1, 2, 3])),
        ("model=lenet5,mlp", CategoricalDistribution(["lenet5", "mlp"])),
        ("trainer.gradient_clip_val=null,1.5", CategoricalDistribution([None, 1.5])),
        ("model.hidden=choice([8],[8,8])", CategoricalDistribution(["[8]", "[8,8]"])),
    ],
)
def test_spaces_of_hydras_grammar(typed: str, distribution: Any) -> None:
    assert list(SearchSpace.of({}, [typed]).distributions.values()) == [distribution]


def test_the_command_comes_after_the_yaml() -> None:
    space = SearchSpace.of({"batch_size": "range(1,3)", "optimizer.lr": "interval(0.1,1.0)"}, ["batch_size=8"])
    assert space.overrides({"optimizer.lr": 0.25}) == ["optimizer.lr=0.25", "batch_size=8"]
    space = SearchSpace.of({}, ["trainer.gradient_clip_val=null,1", "trainer.compile=choice(true,false)"])
    point = {"trainer.gradient_clip_val": None, "trainer.compile": True}
    assert space.overrides(point) == ["trainer.gradient_clip_val=null", "trainer.compile=true"]


@pytest.mark.parametrize(
    ("words", "key", "remedy"),
    [
        ("hydra.sweeper.direction=minimize", "hydra.sweeper.direction = minimize", "leave it out"),
        ("hydra.sweeper.direction=[maximize,minimize]", "hydra.sweeper.direction", "'minimize' or 'maximize'"),
        ("hydra.sweeper.n_trials=0", "hydra.sweeper.n_trials = 0", "greater than or equal to 1"),
        ("hydra.sweeper.metric=val/loss", "hydra.sweeper.metric = val/loss", "hydra.sweeper.direction=minimize"),
        pytest.param(
            "hydra.sweeper.metric=val/los hydra.sweeper.direction=minimize",
            "hydra.sweeper.metric = val/los", "hydra.sweeper.metric=val/loss", marks=pytest.mark.slow,
        ),
        ("hydra/sweeper/sampler=tpee", "hydra/sweeper/sampler = tpee", "hydra/sweeper/sampler=tpe"),
        (
            "hydra.sweeper.sampler._target_=optuna.samplers.TPE",
            "hydra.sweeper.sampler._target_ = optuna.samplers.TPE", "optuna.samplers.TPESampler",
        ),
        pytest.param(
            "optimizer.lr=interval(0.1,0.2) hydra.sweeper.sampler._target_=optuna.samplers.CmaEsSampler",
            "hydra.sweeper.sampler = CmaEsSampler", "pip install cmaes",
            marks=pytest.mark.skipif(find_spec("cmaes") is not None, reason="cmaes is installed"),
        ),
        (
            "hydra.sweeper.sampler._target_=optuna.samplers.GridSampler "
            "+hydra.sweeper.sampler.search_space={seed:[1,2]}",
            "GridSampler cannot choose trials", "hydra/sweeper/sampler=",
        ),
        ("hydra/sweeper/sampler=nsgaii", "hydra/sweeper/sampler = nsgaii", "optuna.samplers.NSGAIISampler"),
        ("hydra.sweeper.storage=sqlite:///x.db", "hydra.sweeper.storage = sqlite:///x.db", "leyden resume SWEEP"),
        (
            "hydra.sweeper.sampler._target_=optuna.samplers.RandomSampler hydra.sweeper.sampler.n_startup_trials=3",
            "hydra.sweeper.sampler.n_startup_trials = 3", "seed",
        ),
        ("+hydra.sweeper.sampler.seeds=1", "hydra.sweeper.sampler.seeds = 1", "seed"),
        ("hydra.sweeper.pruner._target_=optuna.samplers.TPESampler", "hydra.sweeper.pruner._target_", "MedianPruner"),
        ("hydra/launcher=pipeline hydra/sweeper/pruner=median", "hydra/sweeper/pruner = MedianPruner", "halving"),
        ("optimizer.lr=choice(-1,-2)", "optimizer.lr = -", "optimizer.lr"),
        ("optimizer.lr=0.1", "the search space is empty", "tag(log,interval(1e-4,1e-1))"),
        ("optimizer.lr=range(3,1)", "optimizer.lr = range(3,1)", "the range is empty"),
        ("optimizer.lr=tag(log,interval(0,1))", "must be over 0", "tag(log,interval(1e-6,1.0))"),
        ("optimizer.lr=tag(logg,interval(0.1,1))", "the tag logg has no meaning", "tag(log,interval(a,b))"),
        ("topology=slurm topology.device.kind=cpu", "hydra/sweeper = OptunaSweeper", "topology.launcher=local"),
        (
            "hydra/launcher=pipeline topology=cpu topology.launcher=node topology.nodes=2",
            "hydra/sweeper = OptunaSweeper", "hydra/sweeper=basic",
        ),
    ],
)  # fmt: skip
def test_nothing_is_made(words: str, key: str, remedy: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", *OPTUNA, *QUICK, "optimizer.lr=choice(0.1,0.2)", *words.split()]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert key in error
    assert remedy in error
    assert not list(here.iterdir())


def test_optuna_is_named_where_it_is_missing(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["-m", *OPTUNA, *QUICK, "optimizer.lr=interval(0.1,0.2)"]) == 2
    assert "pip install 'leyden[optuna]'" in capsys.readouterr().err
    assert not list(here.iterdir())


def test_other_sweeps_do_not_import_optuna(here: Path) -> None:
    code = (
        "import sys; from leyden.trainer.cli.main import main\n"
        "assert main(sys.argv[1:]) == 2\n"
        "assert 'leyden.trainer.sweep.sweep' in sys.modules and 'optuna' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, "-m", *QUICK, "optimizer.lr=-1,-2"], cwd=here, check=True)


def test_a_study_of_another_space_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen(here / "mine", "optimizer.lr=interval(0.1,0.2)", 1, 1)
    before = (here / "mine" / "study.journal").read_bytes()
    assert main(["-m", *OPTUNA, *QUICK, "optimizer.lr=interval(0.1,0.3)"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "another search space: optimizer.lr in float(step=None, low=0.1, high=0.2, log=False)" in error
    assert main(["-m", *OPTUNA, *QUICK, "optimizer.lr=interval(0.1,0.2)"]) == 2
    assert "try: leyden resume mine\n" in capsys.readouterr().err
    assert main(["-m", *OPTUNA, *QUICK, "callbacks.checkpoint.monitor=val/loss",
                 "callbacks.checkpoint.mode=min", "optimizer.lr=interval(0.1,0.2)"]) == 2  # fmt: skip
    assert "optimizes val/acc max" in capsys.readouterr().err
    assert (here / "mine" / "study.journal").read_bytes() == before


def test_a_journal_cut_off_is_mended(tmp_path: Path) -> None:
    whole = chosen(tmp_path / "whole", "optimizer.lr=interval(0.1,0.2)", 7, 3)
    chosen(tmp_path / "cut", "optimizer.lr=interval(0.1,0.2)", 7, 2)
    journal = tmp_path / "cut" / "study.journal"
    journal.write_bytes(journal.read_bytes() + b'{"op_code":4,"worker')
    os.symlink(journal, f"{journal}.lock")
    samplers = SamplerFactory({"_target_": "optuna.samplers.RandomSampler", "seed": 7})
    study = StudyJournal(tmp_path / "cut", SearchSpace.of({}, ["optimizer.lr=interval(0.1,0.2)"]), Metric(), samplers)
    study.repair()
    study.ask(2)
    assert [study.trials[number].params for number in range(3)] == whole
    study.tell(2, TrialOutcome("failed"))
    study.tell(2, TrialOutcome("complete", 0.75))  # resumed, and complete now
    best = study.best()
    assert best is not None
    assert (best[0], best[1].value) == (2, 0.75)


def test_damage_is_named(tmp_path: Path) -> None:
    chosen(tmp_path, "optimizer.lr=interval(0.1,0.2)", 7, 1)
    journal = tmp_path / "study.journal"
    journal.write_text("nonsense\n" + journal.read_text())
    with pytest.raises(ConfigError, match="its study cannot be read"):
        chosen(tmp_path, "optimizer.lr=interval(0.1,0.2)", 7, 1)


@pytest.mark.slow
def test_trials_that_fail_and_that_cannot_be(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """In a pipeline for each batch. The refused one is in the second: in the first it would end the sweep."""
    space, wanted = "optimizer.lr=choice(0.1,1e30,-1,0.01)", {0.1, 1e30, -1, 0.01}
    draws = {seed: drawn(space, seed, 4) for seed in range(500)}
    seed = next(s for s, values in draws.items() if set(values) == wanted and values.index(-1) > 1)
    asked = ["hydra.sweeper.n_trials=4", "hydra.sweeper.n_jobs=2", space]
    pipeline = ["hydra/launcher=pipeline", "topology.devices_per_node=2"]
    assert main(["-m", *OPTUNA, *asked, *seeded(seed), *pipeline, *QUICK]) == 1
    output = capfd.readouterr()
    assert "(optimizer.lr=-1" in output.err
    assert output.out.count("│ refused │") == output.out.count("│ failed  │") == 1
    found = yaml.safe_load((here / "mine" / "optimization_results.yaml").read_text())
    values = {t.params["optimizer.lr"]: (t.state, t.value) for t in study_of(here / "mine").trials}
    assert values[1e30][0] is values[-1][0] is TrialState.FAIL
    best = max(0.1, 0.01, key=lambda lr: values[lr][1])
    assert (found["best_params"]["optimizer.lr"], found["best_value"]) == (best, values[best][1])
    assert found["best_value"] == metrics(here / "mine" / str(found["best_trial"]))["val/acc"]


@pytest.mark.slow
def test_the_least_is_the_best_and_more_trials_follow(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    least = ["hydra.sweeper.metric=val/loss", "hydra.sweeper.direction=minimize"]
    asked = ["hydra.sweeper.n_trials=2", "optimizer.lr=interval(0.001,0.1)"]
    assert main(["-m", *OPTUNA, *asked, *least, *QUICK]) == 0
    found = yaml.safe_load((here / "mine" / "optimization_results.yaml").read_text())
    assert found["best_value"] == min(metrics(here / "mine" / name)["val/loss"] for name in "01")
    capfd.readouterr()
    assert main(["resume", "mine"]) == 0
    output = capfd.readouterr().out
    assert "2 of 2 trials are done" in output
    assert f"best trial: {found['best_trial']}, val/loss" in output
    assert main(["resume", "mine", "hydra.sweeper.n_trials=3"]) == 0
    assert summary(here / "mine" / "2")["status"] == "done"
    assert capfd.readouterr().out.count("│ done   │") == 3


@pytest.mark.slow
def test_a_worse_trial_is_pruned_on_all_workers(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    space = "optimizer.lr=choice(0.1,1e-9)"
    seed = next(s for s in range(100) if drawn(space, s, 2) == [0.1, 1e-9])
    pruner = ["hydra/sweeper/pruner=median", "hydra.sweeper.pruner.n_startup_trials=1"]
    asked = ["hydra.sweeper.n_trials=2", space, *pruner]
    workers = ["strategy=ddp", "topology.devices_per_node=2"]
    assert main(["-m", *OPTUNA, *asked, *seeded(seed), *QUICK, "trainer.max_epochs=3", *workers]) == 0
    assert "│ pruned by MedianPruner at" in capfd.readouterr().out
    best, worse = study_of(here / "mine").trials
    assert (best.state, sorted(best.intermediate_values)) == (TrialState.COMPLETE, [1, 2, 3])
    assert (worse.state, sorted(worse.intermediate_values)) == (TrialState.PRUNED, [1])
    assert [summary(here / "mine" / name)["epochs"] for name in "01"] == [3, 1]
    assert main(["status", "mine", "--json"]) == 0
    assert [row["state"] for row in json.loads(capfd.readouterr().out)] == ["done", "pruned"]
    assert main(["resume", "mine"]) == 0
    assert "2 of 2 trials are done" in capfd.readouterr().out


@pytest.mark.slow
def test_a_killed_study_goes_on_as_if_it_had_not_been(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    space = "optimizer.lr=interval(0.001,0.1)"
    words = ["-m", *OPTUNA, "hydra.sweeper.n_trials=2", *seeded(5), space, *QUICK, "trainer.max_epochs=8"]
    process = subprocess.Popen([sys.executable, "-m", "leyden", *words], cwd=here, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (here / "mine" / "0" / "checkpoints" / "last.ckpt").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        process.wait()
        psutil.wait_procs(family, timeout=20)
    finally:
        process.kill()
    assert [trial.state for trial in study_of(here / "mine").trials] == [TrialState.RUNNING]
    assert main(["resume", "mine"]) == 0
    assert "0 of 1 trials are done, 1 are resumed" in capfd.readouterr().out
    trials = study_of(here / "mine").trials
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 2
    assert [trial.params for trial in trials] == chosen(here / "whole", space, 5, 2)
    assert [trial.value for trial in trials] == [metrics(here / "mine" / name)["val/acc"] for name in "01"]
