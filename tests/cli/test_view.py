# pyright: reportAttributeAccessIssue=false
# (names of protobuf modules are created at import)
"""`leyden view`: names of trials, the page that opens first, and a row in HPARAMS also for a trial that failed."""

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import pytest
import yaml
from runs import TINY, Freeze
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import api_pb2, metadata

from leyden.trainer.cli.main import main
from leyden.trainer.cli.view.links import EventLinks
from leyden.trainer.cli.view.start_page import StartPage, name_folders
from leyden.trainer.config.hyperparameters import short_title
from leyden.trainer.config.schema import Composition
from leyden.trainer.entrypoints.start import start
from leyden.trainer.runs.summary import write_summary

QUICK = [*TINY, "trainer.max_epochs=1", "trainer.enable_progress_bar=false", "logger=default"]


def trial(freeze: Freeze, name: str, swept: list[str], *overrides: str) -> Path:
    """The folder of a trial that has not begun."""
    run = freeze(name, *QUICK, *overrides)
    values = yaml.safe_load((run / "config.yaml").read_text())
    values["composition"] = {"swept": swept, "overrides": [*QUICK, *overrides]}
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    return run


@pytest.fixture
def sweep(here: Path, freeze: Freeze) -> Path:
    """Two trials by their files: one that was trained, one that failed before it wrote an event."""
    folder = here / "sweep"
    folder.mkdir()
    for number, rate in enumerate((0.1, 0.01)):
        trial(freeze, f"sweep/{number}", ["optimizer.lr"], f"optimizer.lr={rate}")
    assert start(folder / "0") == 0
    write_summary(folder / "1", {"status": "failed", "error": "the loss is nan at step 3", "failed_rank": 0})
    return folder


def records(folder: Path) -> dict[str, bytes]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return events.PluginTagToContent("hparams")


def test_a_sweep_has_names_and_a_row_for_each_trial(sweep: Path, tmp_path: Path) -> None:
    place = tmp_path / "links"
    links = EventLinks(place, {"": sweep})
    links.refresh()
    links.refresh()
    assert sorted(each.name for each in place.iterdir()) == ["0 lr=0.1", "1 lr=0.01"]
    assert links.pinned == ["val/acc", "train/acc", "val/loss", "train/loss"]
    for name, status in (("0 lr=0.1", api_pb2.STATUS_SUCCESS), ("1 lr=0.01", api_pb2.STATUS_FAILURE)):
        found = records(place / name)
        experiment = metadata.parse_experiment_plugin_data(found[metadata.EXPERIMENT_TAG])
        assert [info.name for info in experiment.hparam_infos] == ["optimizer.lr"], "constant keys are no columns"
        assert next(info.name.tag for info in experiment.metric_infos) == "val/acc"
        assert metadata.parse_session_start_info_plugin_data(found[metadata.SESSION_START_INFO_TAG]).group_name == name
        assert metadata.parse_session_end_info_plugin_data(found[metadata.SESSION_END_INFO_TAG]).status == status
    scalars = EventAccumulator(str(place / "0 lr=0.1"))
    scalars.Reload()
    assert "val/acc" in scalars.Tags()["scalars"]


def test_a_trial_that_begins_later_and_fails_is_added(sweep: Path, tmp_path: Path) -> None:
    last = sweep / "1"
    last.rename(tmp_path / "later")
    links = EventLinks(tmp_path / "links", {"": sweep})
    links.refresh()
    (tmp_path / "later").rename(last)
    (last / "summary.json").unlink()
    links.refresh()
    assert metadata.SESSION_END_INFO_TAG not in records(tmp_path / "links" / "1 lr=0.01")
    write_summary(last, {"status": "failed", "error": "nan", "failed_rank": 0})
    links.refresh()
    assert metadata.SESSION_END_INFO_TAG in records(tmp_path / "links" / "1 lr=0.01")


def test_folders_and_other_event_files_have_their_names(sweep: Path, tmp_path: Path) -> None:
    (tmp_path / "a" / "runs").mkdir(parents=True)
    (tmp_path / "b" / "runs" / "of-others").mkdir(parents=True)
    (tmp_path / "b" / "runs" / "of-others" / "events.out.tfevents.1.host").touch()
    (sweep / "1" / "summary.json").unlink()
    (sweep / "1" / "config.yaml").write_text("not: [a, config")
    folders = name_folders([sweep, tmp_path / "a" / "runs", tmp_path / "b" / "runs"])
    assert list(folders) == ["sweep", "a/runs", "b/runs"]
    EventLinks(tmp_path / "links", folders).refresh()
    shown = sorted(str(path.parent.relative_to(tmp_path / "links")) for path in (tmp_path / "links").rglob("events*"))
    assert shown == ["b/runs/of-others", "sweep/0 lr=0.1", "sweep/0 lr=0.1"]
    EventLinks(tmp_path / "one", {"": sweep / "0"}).refresh()
    assert [each.name for each in (tmp_path / "one").iterdir()] == ["0 lr=0.1"]


def test_the_first_page_pins_the_metrics() -> None:
    answers: list[tuple[str, dict[str, str]]] = []

    def start_response(status: str, headers: list[tuple[str, str]]) -> None:
        answers.append((status, dict(headers)))

    page = StartPage(lambda environ, start: [b"TensorBoard"], lambda: ["val/acc", "val/loss"])
    assert page({"PATH_INFO": "/"}, start_response) == []
    ((status, headers),) = answers
    assert status.startswith("302")
    address = urlparse(headers["Location"])
    cards = json.loads(parse_qs(address.query)["pinnedCards"][0])
    assert [(card["plugin"], card["tag"]) for card in cards] == [("scalars", "val/acc"), ("scalars", "val/loss")]
    assert page({"PATH_INFO": "/", "QUERY_STRING": address.query}, start_response) == [b"TensorBoard"]
    assert page({"PATH_INFO": "/data/logdir"}, start_response) == [b"TensorBoard"]
    assert len(answers) == 1


def test_keys_are_short_where_that_is_clear() -> None:
    swept = ["optimizer.lr", "model.a.width", "model.b.width", "data"]
    words = ["optimizer.lr=0.1", "model.a.width=3", "model.b.width=4", "data=digits", "trainer.max_epochs=2"]
    assert short_title(Composition(swept=swept, overrides=words), Path("sweep/7")) == (
        "7 lr=0.1 model.a.width=3 model.b.width=4 dataset=digits"
    )


def test_a_value_with_a_slash_makes_one_folder(here: Path, freeze: Freeze) -> None:
    (here / "sweep").mkdir()
    trial(freeze, "sweep/0", ["tags"], "tags=[a/b]")
    EventLinks(here / "links", {"": here / "sweep"}).refresh()
    assert [each.name for each in (here / "links").iterdir()] == ["0 tags=[a_b]"]


def test_view_names_a_folder_that_is_not_there(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", "missing"]) == 2
    assert "there is no such folder" in capsys.readouterr().err


SIGNALED = """
import os, signal, socketserver, sys
from leyden.trainer.cli.view import server

class Signals:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):  # in which Python handles it
            pass

once = [Signals()]
socketserver.BaseServer.service_actions = lambda _: once.clear()
sys.exit(server.main("0", "."))
"""


@pytest.mark.slow
def test_a_signal_ends_it_at_any_moment(here: Path) -> None:
    """In a finalizer, too, where Python ignores what is raised."""
    done = subprocess.run([sys.executable, "-c", SIGNALED], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "http://localhost" in done.stderr
