"""Run folders of others: what is read is what the owners are asked of, and nothing is written into them."""

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
import yaml
from folders import MODULES
from runs import HERE, TINY, Freeze, Processes, wait_until

from leyden.trainer.base.atomic_file import write_atomically
from leyden.trainer.base.errors import ConfigError
from leyden.trainer.base.log import close_log, open_log
from leyden.trainer.base.regular_file import NotRegularFile
from leyden.trainer.cli import stop
from leyden.trainer.cli.main import main
from leyden.trainer.config.schema import Config, Target, load
from leyden.trainer.config.target_policy import untrusted_runs
from leyden.trainer.config.target_policy.untrusted_runs import refuse_other_trials, restrict_values
from leyden.trainer.entrypoints import slurm_agent
from leyden.trainer.entrypoints.start import start
from leyden.trainer.launch.slurm import submit
from leyden.trainer.launch.worker_group import WorkerGroup
from leyden.trainer.runs import checkpoints, slurm
from leyden.trainer.runs.folder import record_pipeline
from leyden.trainer.runs.frozen import OpenedRun, read_values
from leyden.trainer.runs.slurm import SlurmJob

STRANGER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def run(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(whole, tmp_path / "run")


def given_away(run_dir: Path) -> None:
    for path in (run_dir, *run_dir.rglob("*")):
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


def edited(run_dir: Path, **changes: Any) -> None:
    values = yaml.safe_load((run_dir / "config.yaml").read_text())
    (run_dir / "config.yaml").write_text(yaml.safe_dump({**values, **changes}))


def keys(model: type[pydantic.BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted keys of the schema down to those that hold values, or arguments of a class."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        below = isinstance(kind, type) and issubclass(kind, pydantic.BaseModel) and not issubclass(kind, Target)
        yield from keys(kind, f"{prefix}{name}.") if below else [f"{prefix}{name}"]  # pyright: ignore[reportArgumentType]


REFUSED = {"doctor", "pipeline"}
"""Keys of a stranger's config that ask for more than an evaluation."""


@pytest.mark.parametrize("key", [*keys(Config), "later", "trainer.later", "topology.later"])
def test_each_key_of_a_strangers_config_is_allowed_dropped_or_refused(key: str, whole: Path) -> None:
    """A key of later must be put on a list before a stranger may set it."""
    values = read_values(whole)
    *parents, last = key.split(".")
    node = values
    for parent in parents:
        node = node.setdefault(parent, {})
    node[last] = {"x": "/tmp/x"} if key in REFUSED else "/tmp/x"
    listed = (*untrusted_runs._ALLOWED, *untrusted_runs._DROPPED)  # pyright: ignore[reportPrivateUsage]
    known = any(f"{key}.".startswith(f"{each}.") for each in listed)
    if key in REFUSED or key.endswith("later") or key == "topology.launcher":
        with pytest.raises(ConfigError, match="--trust"):
            restrict_values(values, whole, {STRANGER})
    else:
        assert known, f"{key} is on no list of untrusted_runs"
        assert restrict_values(values, whole, {STRANGER})


def test_of_a_strangers_config_what_writes_or_loads_code_is_dropped(whole: Path) -> None:
    logger = {"csv": {"_target_": "evil.Logger", "root_dir": "/tmp"}}
    values = {**read_values(whole), "logger": logger, "python_path": ["/evil"], "init_from": "/evil"}
    values["topology"] = {**values["topology"], "fabric": {"interface": "eth0"}}
    found = restrict_values(values, whole, {STRANGER})
    assert found["topology"]["fabric"] == {}, "an evaluation would listen there"
    assert (found["logger"], found["python_path"], found["init_from"]) == ({}, [], None)


OPENED = {
    "eval": ["eval", "run"],
    "predict": ["predict", "run", "."],
    "export": ["export", "run", "--format", "onnx"],
    "inspect": ["inspect", "run", "--out", "pictures"],
    "a teacher": [*TINY, "task=distillation", "task.teacher=run"],
}


@as_root
@pytest.mark.parametrize("name", OPENED)
def test_whatever_builds_a_strangers_network_asks_for_trust(
    run: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edited(run, model={"_target_": "evil.Net"}, python_path=[str(run)])
    (run / "evil.py").write_text("raise SystemExit('imported')\n")
    given_away(run)
    before = contents(tmp_path)
    assert main(OPENED[name]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "model._target_" in error
    assert "--trust" in error
    assert contents(tmp_path) == before


@as_root
@pytest.mark.parametrize("verb", ["compare", "status"])
def test_what_only_reads_a_strangers_run_builds_nothing_of_it(run: Path, tmp_path: Path, verb: str) -> None:
    edited(run, model={"_target_": "evil.Net"}, python_path=[str(run)])
    (run / "evil.py").write_text("raise SystemExit('imported')\n")
    given_away(run)
    before = contents(tmp_path)
    assert main([verb, "run"]) == 0
    assert contents(tmp_path) == before


def contents(run_dir: Path) -> dict[str, Any]:
    """Names, kinds, sizes, times and bytes of a whole folder."""
    paths = sorted([run_dir, *run_dir.rglob("*")])
    return {
        str(path): (
            (found := path.lstat()).st_mode, found.st_size * path.is_file(), found.st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in paths
    }  # fmt: skip


def damage(run_dir: Path) -> None:
    newest = checkpoints.saved_checkpoints(run_dir)[0]
    (run_dir / "checkpoints" / "last.ckpt").unlink()
    newest.write_bytes(newest.read_bytes()[:-9])


def break_task(run_dir: Path) -> None:
    edited(run_dir, task={"_target_": "trainer_key_examples.FailsInValidation"}, python_path=[str(MODULES)])


def profile(run_dir: Path) -> None:
    edited(run_dir, trainer={**read_values(run_dir)["trainer"], "profiler": {"first_step": 1, "steps": 1}})


@pytest.mark.parametrize(
    ("change", "codes"),
    [
        (lambda run_dir: None, (0,)),
        (damage, (0,)),
        (break_task, (1, 2)),
        (
            lambda run_dir: edited(run_dir, trainer={**read_values(run_dir)["trainer"], "profiler": {"steps": 1}}),
            (0,),
        ),
    ],
    ids=["whole", "a damaged checkpoint", "an error", "a profiler"],
)
def test_an_evaluation_writes_nothing_into_the_run(
    run: Path, change: Callable[[Path], None], codes: tuple[int, ...]
) -> None:
    change(run)
    before = contents(run)
    assert main(["eval", "run"]) in codes
    assert contents(run) == before


CALLBACKS = "leyden.trainer.components.callbacks"
WRITERS = {
    "a range test": {
        "_target_": f"{CALLBACKS}.lr_range_test.LRRangeTest", "low": 1e-4, "high": 1.0, "steps": 20, "smoothing": 0.9,
        "monitor": "train/loss"},
    "a pruned trial": {
        "_target_": f"{CALLBACKS}.optuna_pruning.OptunaPruning", "journal": "../study.journal", "trial": 0,
        "monitor": "val/loss", "pruner": {"_target_": "optuna.pruners.NopPruner"}},
}  # fmt: skip


@pytest.mark.parametrize("case", WRITERS)
def test_callbacks_that_write_do_nothing_in_an_evaluation(run: Path, case: str) -> None:
    edited(run, callbacks={**read_values(run)["callbacks"], "mine": WRITERS[case]})
    (run.parent / "study.journal").mkdir()  # nor is it read: it may be a FIFO
    before = contents(run)
    assert main(["eval", "run"]) == 0
    assert contents(run) == before


HANGS = ["+callbacks.hang._target_=hang_examples.HangsInEvaluation", HERE, "trainer.hang_timeout=3"]
TWO = ["strategy=ddp", "topology.devices_per_node=2"]
RECORDED = ["strategy=asgd", "strategy.execution.servers=1", "strategy.execution.record=true"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "code", "says"),
    [
        (TWO, 0, "test/loss"),
        pytest.param(RECORDED, 0, "test/loss", marks=pytest.mark.campaign),
        (HANGS, 1, "the stacks of all processes are in"),
        pytest.param([*TWO, *HANGS], 1, "the stacks of all processes are in", marks=pytest.mark.campaign),
    ],
    ids=["two workers", "a server that records", "a hang", "a hang of two workers"],
)
def test_the_processes_of_an_evaluation_write_nothing_into_the_run(
    freeze: Freeze, processes: Processes, whole: Path, overrides: list[str], code: int, says: str
) -> None:
    run_dir = freeze("run", *TINY, *overrides)
    shutil.copytree(whole / "checkpoints", run_dir / "checkpoints")
    before = contents(run_dir)
    found, output = processes.run(run_dir, "eval")
    assert (found, contents(run_dir) == before) == (code, True), output
    assert says in output


def test_an_evaluation_by_slurm_has_its_log_in_the_current_folder(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    topology = read_values(run)["topology"]
    edited(run, topology={**topology, "launcher": "slurm", "device": {**topology["device"], "kind": "cpu"}})
    called: list[tuple[str, ...]] = []
    scripts: list[str] = []

    def command(*words: str, timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
        if words[0] == "sbatch":
            called.append(words)
            scripts.append(Path(words[-1]).read_text())
        return subprocess.CompletedProcess(words, 0, "7\n", "")

    for module in (slurm, submit):
        monkeypatch.setattr(module, "run_command", command)
    before = contents(run)
    assert main(["eval", "run"]) == 0
    assert contents(run) == before
    (words,), (script,) = called, scripts
    assert f"#SBATCH --output={tmp_path}/leyden-eval-%j.log" in script
    assert f"--comment=leyden:{run}" in words
    assert not Path(words[-1]).exists()
    assert "tail -F leyden-eval-7.log" in capsys.readouterr().out


def test_the_nodes_of_an_evaluation_by_slurm_meet_outside_of_the_run(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = {**read_values(run)["topology"], "launcher": "slurm", "nodes": 2, "fabric": {"interface": "lo"}}
    edited(run, topology=topology, strategy={"_target_": "leyden.trainer.strategies.ddp.DDP"})
    for name, value in {"NODEID": "0", "JOB_ID": "7", "SUBMIT_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    shared, found = tmp_path / "leyden-eval-7", list[str]()

    def stop_while_it_waits() -> None:
        try:
            wait_until((shared / "secret").exists)
            found.extend(sorted(path.name for path in shared.rglob("*")))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    before = contents(run)
    stopping = threading.Thread(target=stop_while_it_waits)
    stopping.start()
    code = slurm_agent.main([str(run), "eval", ""])
    stopping.join()
    assert (code, found) == (143, ["node0-7-0", "secret", "slurm"])
    assert contents(run) == before
    assert not shared.exists()


def test_what_was_opened_is_what_is_read(run: Path, tmp_path: Path) -> None:
    """A link that is turned meanwhile changes neither values nor owners."""
    (other := tmp_path / "other").mkdir()
    (other / "config.yaml").write_text("seed: 1\n")
    (link := tmp_path / "link").symlink_to(run)
    with OpenedRun(link) as opened:
        link.unlink()
        link.symlink_to(other)
        assert opened.values()["batch_size"]
        assert opened.owners == {os.geteuid()}


@as_root
def test_a_link_that_is_turned_lends_no_owner(run: Path, tmp_path: Path) -> None:
    stranger = shutil.copytree(run, tmp_path / "stranger")
    edited(stranger, model={"_target_": "evil.Net"})
    given_away(stranger)
    (link := tmp_path / "link").symlink_to(stranger)
    with OpenedRun(link) as opened:
        link.unlink()
        link.symlink_to(run)
        with pytest.raises(ConfigError, match="--trust"):
            restrict_values(opened.values(), link, opened.owners)


@as_root
@pytest.mark.parametrize("above", [False, True], ids=["the folder", "a folder above it"])
def test_a_link_of_a_stranger_to_ones_own_run_is_his(run: Path, tmp_path: Path, above: bool) -> None:
    """He could turn it to his own folder once the owner has been looked at."""
    (link := tmp_path / "link").symlink_to(tmp_path if above else run)
    named = link / "run" if above else link
    with OpenedRun(named) as opened:
        assert opened.owners == {0}
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    with OpenedRun(named) as opened:
        assert opened.values()
    assert opened.owners == {0, STRANGER}
    before = contents(run)
    assert main(["resume", str(named), "trainer.max_epochs=3"]) == 2
    assert contents(run) == before


def test_links_of_themselves_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("a")
    (tmp_path / "up").symlink_to("../" + tmp_path.name)
    with pytest.raises(OSError, match="symbolic links"):
        OpenedRun(tmp_path / "a")
    with OpenedRun(tmp_path / "up") as opened:
        assert os.fstat(opened._folder).st_ino == tmp_path.stat().st_ino  # pyright: ignore[reportPrivateUsage]


@as_root
@pytest.mark.slow
def test_a_run_whose_owner_changes_while_workers_start_is_one_sentence(
    freeze: Freeze, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run_dir = freeze("run", *TINY, *TWO, HERE, "+callbacks.mine._target_=hang_examples.HangsInEvaluation")
    begin = WorkerGroup.start

    def start_later(group: WorkerGroup) -> None:
        os.chown(run_dir / "config.yaml", STRANGER, STRANGER)
        begin(group)

    monkeypatch.setattr(WorkerGroup, "start", start_later)
    with pytest.raises(ValueError, match=rf"This run belongs to an unknown user \(uid {STRANGER}\)"):
        start(run_dir)
    assert "Traceback" not in "".join(capfd.readouterr())


def test_code_in_the_run_folder_is_on_no_path(run: Path, tmp_path: Path) -> None:
    (outside := tmp_path / "outside").symlink_to(run)
    within = [".", str(run), str(run / "code"), "../run", str(outside)]
    edited(run, python_path=[*within, str(tmp_path / "mine")])
    assert load(run).python_path == [str(tmp_path / "mine")]


def test_a_run_without_a_checkpoint_is_not_evaluated(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "checkpoints")
    before = contents(run)
    assert main(["eval", "run"]) == 2
    assert "has no checkpoint to evaluate" in " ".join(capsys.readouterr().err.split())
    assert contents(run) == before


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"doctor": {"write": "/nowhere/x"}}, "measures hardware"),
        (
            {"pipeline": {"scheduler": "ring", "hops": "memory", "early_stopping": "none", "eta": 2, "min_epochs": 1,
                          "trials": ["../run"]}},
            "trains the models of other runs",
        ),
    ],
    ids=["doctor", "pipeline"],
)  # fmt: skip
def test_an_evaluation_does_nothing_else(
    run: Path, changes: dict[str, Any], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edited(run, **changes)
    before = contents(run)
    assert main(["eval", "run"]) == 2
    assert says in " ".join(capsys.readouterr().err.split())
    with pytest.raises(ConfigError, match="evaluate"):
        start(run, "eval")
    assert contents(run) == before


@as_root
@pytest.mark.parametrize(
    "words",
    [("resume", "run", "trainer.max_epochs=3"), ("stop", "run"), ("node", "--rendezvous", "127.0.0.1:0", "run"),
     ("inspect", "run")],
    ids=lambda words: words[0],
)  # fmt: skip
def test_verbs_that_write_into_a_strangers_folder_ask_for_trust(
    run: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    given_away(run)
    before = contents(run)
    assert main(words) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert f"uid {STRANGER}" in error or "another user" in error
    assert ("--out" if words[0] == "inspect" else "--trust") in error
    assert "copy" not in error
    assert contents(run) == before


@pytest.mark.parametrize(
    "case", ["its own", "elsewhere", "of no pipeline", pytest.param("a stranger's", marks=as_root)]
)
def test_a_pipeline_trains_its_own_trials_alone(run: Path, tmp_path: Path, case: str) -> None:
    pipeline = tmp_path / "sweep" / "pipeline"
    pipeline.mkdir(parents=True)
    (pipeline / "config.yaml").write_text("seed: 1\n")
    # hydra.sweep.subdir may have several parts
    trial = shutil.copytree(run, tmp_path / ("own" if case == "elsewhere" else "sweep") / "job" / "0")
    if case != "of no pipeline":
        record_pipeline(trial, pipeline)
    if case == "a stranger's":
        given_away(trial)
    if case == "its own":
        refuse_other_trials(pipeline, [trial])
    else:
        with pytest.raises(ConfigError, match="trial"):
            refuse_other_trials(pipeline, [trial])


def test_a_temporary_file_follows_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim, file = tmp_path / "victim", tmp_path / "summary.json"
    victim.write_text("mine")
    (tmp_path / f".summary.json.{os.getpid()}").symlink_to(victim)
    write_atomically(file, "new")  # a file left under the old name stops nothing
    monkeypatch.setattr("secrets.token_hex", lambda bytes_: "guessed")
    (tmp_path / ".summary.json.guessed").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_atomically(file, "newer")
    assert (victim.read_text(), file.read_text()) == ("mine", "new")


@pytest.mark.parametrize("kind", ["a link", "a FIFO"])
def test_the_log_of_a_run_is_a_file_of_its_folder(tmp_path: Path, kind: str) -> None:
    (victim := tmp_path / "victim").write_text("mine")
    if kind == "a link":
        (tmp_path / "run.log").symlink_to(victim)
    else:
        os.mkfifo(tmp_path / "run.log")
    try:
        with pytest.raises(NotRegularFile):
            open_log(tmp_path, 0, 1)
    finally:
        close_log()
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("name", ["run.log", "metrics.csv", "events.out.tfevents.1"])
def test_a_fifo_in_place_of_a_log_is_one_sentence(run: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    assert main(["resume", "run", "trainer.max_epochs=3"]) == 2
    printed = "".join(capfd.readouterr())
    assert f"{name} is not a regular file: remove it" in " ".join(printed.split())
    assert "Traceback" not in printed


@as_root
@pytest.mark.parametrize("owner", [0, STRANGER])
def test_a_link_to_checkpoints_is_followed_if_it_is_ones_own(run: Path, tmp_path: Path, owner: int) -> None:
    (scratch := tmp_path / "scratch").mkdir()
    (run / "checkpoints").rename(scratch / "checkpoints")
    (run / "checkpoints").symlink_to(scratch / "checkpoints")
    os.chown(run / "checkpoints", owner, owner, follow_symlinks=False)
    before = contents(scratch)
    assert main(["resume", "run", "trainer.max_epochs=3"]) == (0 if owner == 0 else 1)
    assert (contents(scratch) == before) == (owner != 0)


@pytest.mark.parametrize(
    ("shown", "own"),
    [
        ("JobId=7 Command=(null) WorkDir=/home/x", False),
        ("JobId=7 Command=(null) Comment=leyden:{} WorkDir=/home/x", True),
        ("JobId=7 Comment=leyden:{}\n", True),
        ("JobId=7 Comment=leyden:/other/run Command=/other/run/slurm/job.sh WorkDir=/", False),
        ("JobId=7 Command={}/slurm/job.sh WorkDir=/", True),
        ("", False),
    ],
)
def test_only_a_job_that_is_known_to_be_the_runs_is_cancelled(
    run: Path, monkeypatch: pytest.MonkeyPatch, shown: str, own: bool
) -> None:
    called: list[str] = []

    def command(*words: str, timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
        called.append(words[0])
        return subprocess.CompletedProcess(words, 0, shown.format(run), "")

    monkeypatch.setattr(slurm, "run_command", command)
    job = SlurmJob("7", "RUNNING", "")
    if own:
        assert stop._stop_job(run, job) == 0  # pyright: ignore[reportPrivateUsage]
    else:
        with pytest.raises(ConfigError, match="scancel 7"):
            stop._stop_job(run, job)  # pyright: ignore[reportPrivateUsage]
    assert ("scancel" in called) == own
