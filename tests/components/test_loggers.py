"""Loggers beside Leyden's own: their errors, and that a resumed run goes on in what they have begun."""

import csv
import importlib
import json
import logging
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from logger_examples import Foreign, Keeps
from PIL import Image
from remedied import shown, works
from runs import HERE, TINY, Freeze, rows, summary, wait_until
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from leyden.trainer.cli.main import main
from leyden.trainer.compose.rules.hook_names import misspelt_hooks
from leyden.trainer.config.schema import load
from leyden.trainer.core.loggers.calls import recorded_argument
from leyden.trainer.core.state import RunState
from leyden.trainer.entrypoints.start import start
from leyden.trainer.runs import checkpoints

EVERY = "trainer.log_every_n_steps=6"
RAISES = ["+callbacks.fails._target_=hopping_examples.Fails", HERE]
"""In step 15, where the seed is 2."""


def resumed(run_dir: Path) -> None:
    """Go on from the checkpoint of step 18, although 36 steps were trained and logged."""
    checkpoints.path_of(run_dir, 36).unlink()
    (run_dir / "checkpoints" / "last.ckpt").unlink()
    assert start(run_dir, "resume") == 0
    assert summary(run_dir)["steps"] == 36


@pytest.mark.parametrize("kind", ["lightning.pytorch.loggers", "lightning.fabric.loggers"])
def test_lightnings_csv_logger_goes_on_in_its_version(kind: str, freeze: Freeze) -> None:
    run_dir = freeze("run", *TINY, EVERY, f"+logger.own._target_={kind}.CSVLogger")
    assert start(run_dir) == 0
    file = next(run_dir.glob("**/version_0/metrics.csv"))
    before = table(file)
    resumed(run_dir)
    assert json.loads((run_dir / "loggers.json").read_text()) == {"own": 0}
    assert list(run_dir.glob("**/version_*")) == [file.parent]
    after = table(file)
    assert [row["step"] for row in after] == [row["step"] for row in before]
    assert [row["train/loss"] for row in after] == [row["train/loss"] for row in before]
    assert not list(file.parent.glob("*.kept"))


def table(file: Path) -> list[dict[str, str]]:
    with open(file, newline="") as stream:
        return list(csv.DictReader(stream))


def test_lightnings_tensorboard_logger_goes_on_in_its_version(freeze: Freeze) -> None:
    run_dir = freeze("run", *TINY, EVERY, "+logger.own._target_=lightning.pytorch.loggers.TensorBoardLogger")
    assert start(run_dir) == 0
    resumed(run_dir)
    (folder,) = run_dir.glob("**/version_*")
    events = EventAccumulator(str(folder))
    events.Reload()
    assert [event.step for event in events.Scalars("lr")] == [6, 12, 18, 24, 30, 36]


def test_an_error_of_a_logger_is_said_once_and_ends_nothing(freeze: Freeze, caplog: pytest.LogCaptureFixture) -> None:
    run_dir = freeze("run", *TINY, EVERY, "+logger.own._target_=logger_examples.Failing", HERE)
    with caplog.at_level(logging.WARNING, "leyden"):
        assert start(run_dir) == 0
    said = [record.getMessage() for record in caplog.records if "Failing" in record.getMessage()]
    said = said or [line for line in (run_dir / "run.log").read_text().splitlines() if "Failing" in line]
    assert len(said) == 1
    assert "logger Failing has failed, and the run goes on (said once): RuntimeError: no such service" in said[0]
    assert [row["step"] for row in rows(run_dir)] == ["6", "12", "18", "24", "30", "36"]


def test_the_loggers_of_a_run_that_raises_are_closed_as_failed(freeze: Freeze) -> None:
    for seed, code, status in ((1, 0, "success"), (2, 1, "failed")):
        own = "+logger.own._target_=logger_examples.NotesStatus"
        run_dir = freeze(status, *TINY, own, f"seed={seed}", *RAISES)
        assert start(run_dir) == code
        assert (run_dir / "status").read_text() == status
    assert not [thread for thread in threading.enumerate() if "tensorboard" in type(thread).__module__]


def test_only_loggers_with_the_contract_get_what_is_not_lightnings(tmp_path: Path) -> None:
    keeps = Keeps(str(tmp_path))
    state: Any = SimpleNamespace(fabric=SimpleNamespace(loggers=[Foreign(), keeps]), step=3)
    RunState.report_image(state, "images/train", Image.new("L", (2, 2)))
    RunState.report_histograms(state, {"staleness": {0: 1}})
    assert keeps.images == [("images/train", 3)]


NEARLY = {
    "Misspelt": "Misspelt defines log_images, which nothing calls; the hook of LoggerContract is log_image",
    "Plain": "Plain defines cut_after, a hook of Leyden's LoggerContract, and does not inherit it",
}


@pytest.mark.parametrize("name", ["Misspelt", "Plain", "Foreign", "Keeps"])
def test_a_method_that_nothing_would_call_is_found(name: str, freeze: Freeze) -> None:
    config = load(freeze("run", *TINY, f"+logger.own._target_=logger_examples.{name}", HERE))
    assert [problem.text for problem in misspelt_hooks(config)] == ([NEARLY[name]] if name in NEARLY else [])


def test_a_misspelt_method_is_refused_before_the_start(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "+logger.own._target_=logger_examples.Misspelt"]) == 2
    assert NEARLY["Misspelt"] in capsys.readouterr().err
    assert not (here / "outputs").exists()


@pytest.mark.parametrize("recorded", ["../..", "", "a/b", {}, True, "-x", None])
def test_what_is_no_id_is_not_taken(recorded: Any, tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger

    (tmp_path / "loggers.json").write_text(json.dumps({"own": recorded}))
    assert recorded_argument(tmp_path, "own", CSVLogger) == {}
    (tmp_path / "loggers.json").write_text(json.dumps({"own": 3}))
    assert recorded_argument(tmp_path, "own", CSVLogger) == {"version": 3}
    (tmp_path / "loggers.json").write_text("{")
    assert recorded_argument(tmp_path, "own", CSVLogger) == {}


# services


@pytest.mark.slow
def test_a_run_at_wandb_goes_on(freeze: Freeze, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run_dir = freeze("run", *TINY, EVERY, "logger=[default,wandb]")
    assert start(run_dir) == 0
    resumed(run_dir)
    recorded = json.loads((run_dir / "loggers.json").read_text())
    begun = [folder.name.rpartition("-")[2] for folder in (run_dir / "wandb").glob("offline-run-*")]
    assert begun == [recorded["wandb"]] * 2
    wait_until(lambda: steps_at_wandb(run_dir) == [6, 12, 18, 24, 30, 36, 24, 30, 36])
    assert any(key.startswith("images/train") for row in history(run_dir) for key in row)
    assert rows(run_dir), "beside metrics.csv"


def steps_at_wandb(run_dir: Path) -> list[int]:
    """Steps of the history so far: W&B's own process may write on after the run's end."""
    with suppress(Exception):  # of a record that is half written
        return [row["trainer/global_step"] for row in history(run_dir) if "lr" in row]
    return []


def history(run_dir: Path) -> list[dict[str, Any]]:
    """Rows of metrics in W&B's files."""
    logged = [record.history.item for record in records(run_dir) if record.WhichOneof("record_type") == "history"]
    return [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row} for row in logged]


def records(run_dir: Path) -> Iterator[Any]:
    """What W&B's files would send, in their order."""
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")  # its names are made when it is imported
    for file in sorted(run_dir.glob("wandb/offline-run-*/*.wandb")):
        yield from map(messages.Record.FromString, leveldb_records(file.read_bytes()))


def leveldb_records(content: bytes) -> Iterator[bytes]:
    """Records of a log in LevelDB's format (checksum, length, kind: 1 whole, 4 last), after 7 bytes of W&B's."""
    place, parts = 7, b""
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        length, kind = struct.unpack_from("<HB", content, place + 4)
        if left < 7 or kind == 0:
            place += left
            continue
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({}, "no API key (WANDB_API_KEY, or wandb login)"),
        ({"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9"}, "127.0.0.1 cannot be reached"),
    ],
    ids=["no key", "no connection"],
)
def test_wandb_is_offline_where_nothing_can_be_sent(
    environment: dict[str, str], reason: str, freeze: Freeze, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pytest.importorskip("wandb")
    for name, value in {"HOME": str(tmp_path), "WANDB_SILENT": "true", **environment}.items():
        monkeypatch.setenv(name, value)
    for name in {"WANDB_MODE", "WANDB_API_KEY"} - set(environment):
        monkeypatch.delenv(name, raising=False)
    run_dir = freeze("run", *TINY, "logger=[default,wandb]")
    assert start(run_dir) == 0
    said = capfd.readouterr().out
    assert f"W&B: {reason}" in said
    assert ": offline; later: wandb sync" in said
    assert len(list(run_dir.glob("wandb/offline-run-*"))) == 1


@pytest.mark.slow
def test_a_run_in_mlflow_goes_on(freeze: Freeze, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run_dir = freeze("run", *TINY, EVERY, "logger=[default,mlflow]")
    assert start(run_dir) == 0
    resumed(run_dir)
    client = mlflow.MlflowClient(f"file:{run_dir / 'mlruns'}")
    (experiment,) = [each for each in client.search_experiments() if each.name == "leyden"]
    (run,) = client.search_runs([experiment.experiment_id])
    assert json.loads((run_dir / "loggers.json").read_text()) == {"mlflow": run.info.run_id}
    assert run.info.status == "FINISHED"
    assert run.data.params["optimizer.lr"] == "0.02"
    steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "lr")]
    assert sorted(steps) == sorted([6, 12, 18, 24, 30, 36, 24, 30, 36])


@pytest.mark.slow
def test_a_run_in_mlflow_that_raises_has_failed(freeze: Freeze, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run_dir = freeze("run", *TINY, EVERY, "logger=[default,mlflow]", "seed=2", *RAISES)
    assert start(run_dir) == 1
    client = mlflow.MlflowClient(f"file:{run_dir / 'mlruns'}")
    run_id = json.loads((run_dir / "loggers.json").read_text())["mlflow"]
    assert client.get_run(run_id).info.status == "FAILED"


@pytest.mark.slow
def test_a_run_at_wandb_that_raises_has_failed_and_the_next_is_its_own(
    freeze: Freeze, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    ids = set[str]()
    for seed, code in ((2, 1), (1, 0)):
        run_dir = freeze(str(seed), *TINY, EVERY, "logger=[default,wandb]", f"seed={seed}", *RAISES)
        assert start(run_dir) == code
        ids.add(json.loads((run_dir / "loggers.json").read_text())["wandb"])
        wait_until(lambda folder=run_dir, code=code: exit_codes_at_wandb(folder) == [code])
    assert len(ids) == 2


def exit_codes_at_wandb(run_dir: Path) -> list[int]:
    """Of each of its runs that W&B's own process has ended."""
    with suppress(Exception):  # of a record that is half written
        return [record.exit.exit_code for record in records(run_dir) if record.WhichOneof("record_type") == "exit"]
    return []


@pytest.mark.slow
def test_a_run_in_trackio_goes_on(freeze: Freeze, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason="needs an older Pillow than the one tested here")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    run_dir = freeze("run", *TINY, EVERY, "logger=[default,trackio]")
    assert start(run_dir) == 0
    resumed(run_dir)
    assert list(json.loads((run_dir / "loggers.json").read_text())) == ["trackio"]
    from trackio.sqlite_storage import SQLiteStorage  # pyright: ignore[reportMissingImports]

    (name,) = SQLiteStorage.get_runs("leyden")
    steps = [row["step"] for row in SQLiteStorage.get_logs("leyden", name) if "lr" in row]
    assert sorted(steps) == sorted([6, 12, 18, 24, 30, 36, 24, 30, 36])


@pytest.mark.slow
def test_of_two_workers_the_first_logs(freeze: Freeze, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run_dir = freeze("run", *TINY, "logger=[default,wandb]", "strategy=ddp", "topology.devices_per_node=2")
    assert start(run_dir) == 0
    assert len(list(run_dir.glob("wandb/offline-run-*"))) == 1


MISTAKES = {
    "logger=wandbb": "try: logger=wandb",
    "logger.wandb.projekt=x": "projekt",
    "logger.wandb.offline=7": "offline",
}


@pytest.mark.parametrize("word", MISTAKES)
def test_mistakes(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    others = [] if word.startswith("logger=") else ["logger=[default,wandb]"]
    assert main([*others, word]) == 2
    error = capsys.readouterr().err
    assert MISTAKES[word] in error
    assert not list(tmp_path.iterdir())
    assert all(works(remedy, [*others, word]) for remedy in shown(error))
