"""The command from its overrides to a run folder: composing, freezing, printing, and a user's own YAML and class."""

import json
import os
import platform
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import yaml
from folders import CONF, ROOT
from runs import TINY

from leyden.trainer.base.errors import ConfigError
from leyden.trainer.base.versions import TESTED_PYTHON, TESTED_TORCH
from leyden.trainer.cli.main import main
from leyden.trainer.compose.composer import Composer
from leyden.trainer.compose.reference.json_schema import editor_schema
from leyden.trainer.runs.folder import absolute_paths, claim, run_and_checkpoint
from leyden.trainer.runs.frozen import read_values

QUIET = [*TINY, "trainer.max_epochs=1", "trainer.enable_progress_bar=false", "logger=none"]


def leyden(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "leyden", *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


def written_yaml(path: Path) -> object:
    return yaml.safe_load(path.read_text())


# what is printed


def test_help_names_verbs_groups_with_choices_and_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for word in ("eval", "resume", "view", "schema", "alexnet, alexnet_owt", "single", "--multirun", "--cfg"):
        assert word in text
    assert len(text.splitlines()) <= 60


def test_help_lists_the_users_own_choices(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine/model").mkdir(parents=True)
    (here / "mine/model/tiny.yaml").write_text("_target_: a.B\n")
    assert main(["--help", "--config-dir", "mine"]) == 0
    assert "tiny" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    here, tested = capsys.readouterr().out.splitlines()
    assert here.startswith(f"leyden 0.1.0 with Python {platform.python_version()} and torch {torch.__version__}")
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    assert f"torch=={TESTED_TORCH}" in constraints
    assert tested.startswith(f"tested: Python {TESTED_PYTHON} with torch {TESTED_TORCH} on Linux")


def test_cfg_job_prints_what_was_composed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cfg", "job", "data=cifar10", "model=null", "schedule.interval=epoch", "dataset.root=x"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["dataset"]["_target_"].endswith("CIFAR10")
    assert printed["dataset"]["val_fraction"] == 0.1
    assert printed["schedule"]["interval"] == "epoch"
    assert "_target_" not in printed["model"]
    assert "hydra" not in printed
    assert not list(here.iterdir())


def test_cfg_prints_a_package(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cfg", "job", "--package", "optimizer", "optimizer.lr=1"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["lr"] == 1
    assert main(["--cfg", "job", "--package", "optimiser"]) == 2


def test_cfg_hydra_prints_hydras_own_node(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cfg", "hydra"]) == 0
    assert set(yaml.safe_load(capsys.readouterr().out)) == {"hydra"}


@pytest.mark.parametrize("what", ["defaults-tree", "defaults", "config", "searchpath", "plugins"])
def test_info_is_hydras(what: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = {"defaults-tree": "dataset: digits", "defaults": "model/lenet5", "config": "batch_size", "searchpath":
             "leyden.conf", "plugins": "BasicSweeper"}  # fmt: skip
    assert main(["--info", what]) == 0
    assert words[what] in capsys.readouterr().out


def test_schema_is_for_files_that_hold_a_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert {"trainer", "model", "defaults", "hydra"} <= set(whole["properties"])
    assert "required" not in json.dumps(whole)
    assert editor_schema("topology")["$defs"]["Topology"]["properties"]["nodes"]


@pytest.mark.slow
def test_view_serves_this_machine_only(here: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "leyden", "view", ".", "--port", "0"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "http://" in line)
        assert "http://localhost:" in line
    finally:
        process.terminate()
        process.communicate()
        # its folder of links is gone
        assert process.returncode == 0


def test_view_takes_the_next_port_and_several_folders(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda _, command: started.append(command))
    for name in ("a", "b:c"):
        (here / name).mkdir()
    with socket.socket() as used:
        used.bind(("localhost", 0))
        used.listen()
        port = used.getsockname()[1]
        main(["view", "a", "b:c", "--port", str(port)])
    (command,) = started
    taken = int(command[4])
    assert port < taken < port + 100
    assert f"port {port} is in use here: TensorBoard takes {taken}" in capsys.readouterr().out
    assert command[5:] == ["a", "b:c"]
    assert main(["view", "a", "missing"]) == 2
    assert len(started) == 1


# composing


def test_constructor_argument_needs_no_plus(here: Path) -> None:
    run = Composer().run(["model=mlp", "model.dropout=0.5"])
    assert run.config.model is not None
    assert run.config.model.arguments["dropout"] == 0.5
    sgd = Composer().run(["+optimizer.maximize=true", "optimizer.dampening=0.0"]).config.optimizer
    assert sgd is not None
    assert sgd.arguments["maximize"] is True
    assert sgd.arguments["dampening"] == 0.0


def test_several_choices_of_a_group(here: Path) -> None:
    assert {"checkpoint", "ema"} <= set(Composer().run(["callbacks=[default,ema]"]).config.callbacks)


@pytest.mark.parametrize("override", ["schedule=null", "~schedule"])
def test_no_schedule(override: str, here: Path) -> None:
    assert Composer().run([override]).config.schedule is None


def test_interpolations_of_hydra_and_now_are_resolved(here: Path) -> None:
    run = Composer().run(["tags=['${hydra:runtime.choices.model}','${now:%Y}']", "hydra.run.dir=x/${seed}"])
    assert run.config.tags[0] == "lenet5"
    assert run.config.tags[1].isdigit()
    assert run.composed.hydra.run.dir == "x/0"


def test_users_file_goes_before_ours(here: Path) -> None:
    (here / "mine/model").mkdir(parents=True)
    (here / "mine/model/mlp.yaml").write_text("_target_: leyden.models.mlp.MLP\nhidden: [7]\n")
    model = Composer("mine").run(["model=mlp"]).config.model
    assert model is not None
    assert model.arguments == {"hidden": [7]}


def test_origin_knows_files_packages_and_overrides(here: Path) -> None:
    (here / "mine/experiment").mkdir(parents=True)
    head = "# @package _global_\ndefaults:\n  - override /model: mlp\n\n"
    (here / "mine/experiment/e.yaml").write_text(f"{head}trainer:\n  max_epochs: 4\nmodel:\n  dropout: 0.1\n")
    origin = Composer("mine").origin(["experiment=e", "seed=3"])
    assert origin.where("trainer.max_epochs") == "mine/experiment/e.yaml:6"
    assert origin.where("model.dropout") == "mine/experiment/e.yaml:8"
    assert origin.where("model.hidden").rpartition(":")[0].endswith("conf/model/mlp.yaml")
    assert origin.where("dataset._target_").rpartition(":")[0].endswith("conf/dataset/digits.yaml")
    assert origin.where("seed") == "override 'seed=3'"


# run folders


def test_run_folder_holds_frozen_config_and_dot_hydra(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hydra.run.dir=out/one", *QUIET, "seed=5"]) == 0
    run = here / "out/one"
    assert read_values(run)["seed"] == 5
    assert read_values(run)["python_path"] == [str(here)]
    assert {path.name for path in (run / ".hydra").iterdir()} == {"config.yaml", "hydra.yaml", "overrides.yaml"}
    assert written_yaml(run / ".hydra/overrides.yaml") == [*QUIET, "seed=5"]
    assert json.loads((run / "summary.json").read_text())["status"] == "done"
    printed = capsys.readouterr().out
    assert "dataset=digits  model=mlp  strategy=single  topology=local" in printed
    assert "overridden: hydra.run.dir=out/one" in printed
    assert "run folder: out/one" in printed
    found = "1,437 pictures of 10 classes: 0 149, 1 141, 2 151, 3 139, 4 144, 5 145, 6 135, 7 151, 8 140, 9 142"
    assert printed.count(f"{found}; validation: 20 %, the same for every seed (287); test: 360\n") == 1
    data = json.loads((run / "data.json").read_text())
    assert (data["classes"], data["held_out"]) == (10, 0.2)
    assert {split: each["samples"] for split, each in data["splits"].items()} == {
        "train": 1150,
        "val": 287,
        "test": 360,
    }
    assert all(sum(each["classes"].values()) == each["samples"] for each in data["splits"].values())


def test_a_batch_of_more_samples_than_there_are_is_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUIET, "batch_size=100000", "trainer.limit_train_batches=1.0"]) == 0
    text = "a batch of 100,000 (batch_size) is more than the 1,150 training samples: a step takes them all\n"
    assert capsys.readouterr().out.count(text) == 1


def test_folder_that_holds_a_run_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hydra.run.dir=one", *QUIET]) == 0
    before = (here / "one/config.yaml").stat().st_mtime_ns
    assert main(["hydra.run.dir=one", *QUIET]) == 2
    assert "leyden resume one" in capsys.readouterr().err
    assert (here / "one/config.yaml").stat().st_mtime_ns == before


def test_folder_with_other_files_is_refused_and_kept(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "notes").mkdir()
    (here / "notes/thesis.txt").write_text("years of work")
    for folder, told in (("notes", "is not empty"), (".", "is not empty"), ("notes/thesis.txt", "is a file")):
        assert main([f"hydra.run.dir={folder}", *QUIET, "schedule.warmup_steps=100000"]) == 2
        assert told in capsys.readouterr().err
    assert (here / "notes/thesis.txt").read_text() == "years of work"


def test_two_runs_in_the_same_second_get_two_folders(here: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        claimed = list(pool.map(lambda _: claim(here / "outputs/day/time", named_by_user=False), range(40)))
    assert len({each.folder for each in claimed}) == 40
    assert {each.folder.name for each in claimed} == {"time", *(f"time-{number}" for number in range(2, 41))}


@pytest.mark.slow
def test_processes_that_start_together_get_two_folders(here: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        (here / "conf").mkdir()
        (here / "conf/train.yaml").write_text((CONF / "train.yaml").read_text().replace("${now:%H-%M-%S}\n", "same\n"))
        done = list(pool.map(lambda _: leyden("-cd", "conf", *QUIET, cwd=here), range(3)))
    assert [process.returncode for process in done] == [0, 0, 0], done[0].stderr
    assert len(list(here.glob("outputs/*/*/summary.json"))) == 3


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_output_place_without_permission(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "locked").mkdir(mode=0o500)
    assert main(["hydra.run.dir=locked/run", *QUIET]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_mistake_that_only_building_shows_leaves_no_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUIET, "schedule.warmup_steps=100000"]) == 2
    told = capsys.readouterr().err
    assert "schedule.warmup_steps = 100000" in told
    assert "Traceback" not in told
    assert not list(here.iterdir())


def test_paths_are_frozen_absolute(here: Path) -> None:
    (here / "data").mkdir()
    values = {"dataset": {"root": "data", "cache_dir": "not/there", "name": "data"}, "init_from": "data", "seed": 1}
    frozen = absolute_paths(values)
    assert frozen["dataset"] == {"root": str(here / "data"), "cache_dir": "not/there", "name": "data"}
    assert frozen["init_from"] == str(here / "data")


def test_run_is_named_by_folder_or_checkpoint(here: Path) -> None:
    (here / "run/checkpoints").mkdir(parents=True)
    (here / "run/config.yaml").write_text("seed: 1\n")
    (here / "run/checkpoints/last.ckpt").touch()
    assert run_and_checkpoint("run") == (here / "run", None)
    assert run_and_checkpoint("run/checkpoints") == (here / "run", None)
    assert run_and_checkpoint("run/checkpoints/last.ckpt") == (here / "run", here / "run/checkpoints/last.ckpt")
    with pytest.raises(ConfigError):
        run_and_checkpoint("run/checkpoints/none.ckpt")


# a user's own YAML and class


OWN_CLASS = """
from torch import nn

class Net(nn.Module):
    def __init__(self, classes, image_shape, width: int = 4):
        super().__init__()
        channels, height, wide = image_shape
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(channels * height * wide, width), nn.Linear(width, classes))

    def forward(self, images):
        return self.net(images)
"""


@pytest.mark.slow
@pytest.mark.parametrize("beside", ["cwd", "config_dir"])
def test_own_yaml_and_own_class_from_any_folder(beside: str, tmp_path: Path) -> None:
    work, conf = tmp_path / "work", tmp_path / "elsewhere/conf"
    (conf / "model").mkdir(parents=True)
    work.mkdir()
    (conf / "model/mine.yaml").write_text("_target_: my_networks.Net\nwidth: 3\n")
    ((work if beside == "cwd" else conf) / "my_networks.py").write_text(OWN_CLASS)

    quiet = [word for word in QUIET if not word.startswith("model")]
    done = leyden("--config-dir", "../elsewhere/conf", "model=mine", "hydra.run.dir=run", *quiet, cwd=work)

    assert done.returncode == 0, done.stderr
    assert read_values(work / "run")["python_path"] == [str(work), str(conf)]
    assert leyden("eval", str(work / "run"), cwd=tmp_path).returncode == 0


# eval and resume


def test_resume_changes_limits_and_notes_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hydra.run.dir=run", *QUIET]) == 0
    assert main(["eval", "run"]) == 0
    assert not (here / "run/resume.yaml").exists()
    assert main(["resume", "run", "trainer.max_epochs=2", "topology.device.kind=cpu"]) == 0
    (change,) = yaml.safe_load((here / "run/resume.yaml").read_text())
    assert change["changed"] == {"trainer.max_epochs": 2, "topology.device.kind": "cpu"}
    assert set(change) == {"at", "changed"}
    assert read_values(here / "run")["trainer"]["max_epochs"] == 2
    assert json.loads((here / "run/summary.json").read_text())["epochs"] == 2


def test_resume_is_judged_as_a_whole(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hydra.run.dir=run", *QUIET]) == 0
    before = sorted(here.rglob("*"))
    capsys.readouterr()
    for words, told in [
        (["topology.devices_per_node=3", "strategy=ddp"], "divisible by 3 workers"),
        (["topology.devices_per_node=2"], "try: strategy=ddp"),
        (["trainer.max_epoch=3"], "did you mean trainer.max_epochs?"),
        (["trainer.max_epochs=x"], "must be a whole number"),
        (["topology.device.knd=cpu"], "did you mean topology.device.kind?"),
        (["topology=nowhere"], "topology can be cirrascale_k80, "),
        (["strategy=ddp", "strategy.bucket_cap=3"], "did you mean bucket_cap_mb?"),
        (["optimizer.lr=1"], "stays frozen"),
        (["trainer.max_epochs=1,2"], "one value"),
    ]:
        assert main(["resume", "run", *words]) == 2
        assert told in capsys.readouterr().err
    assert sorted(here.rglob("*")) == before


@pytest.mark.slow
def test_resume_names_another_strategy(here: Path) -> None:
    assert main(["hydra.run.dir=run", *QUIET]) == 0
    more = ["topology.devices_per_node=2", "strategy.timeout_s=60", "strategy=ddp", "trainer.max_epochs=2"]
    assert main(["resume", "run", *more]) == 0
    values = read_values(here / "run")
    assert values["strategy"]["_target_"].endswith("DDP")
    assert values["strategy"]["timeout_s"] == 60
    assert json.loads((here / "run/summary.json").read_text())["world_size"] == 2


def test_workers_need_linux_and_the_rest_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "platform", "darwin")
    for words in ([], ["eval", "RUN"], ["-m", "seed=1,2"]):
        assert main(words) == 2
        assert "needs Linux" in capsys.readouterr().err
    assert main(["--cfg", "job"]) == 0
    assert main(["status"]) == 0
    assert not list(tmp_path.iterdir())
