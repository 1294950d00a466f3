"""Weights of a hub: fetched once from a server, pinned by path and SHA-256, checked by workers, offline afterwards."""

import hashlib
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import public_weights as public
import pytest
import torch
import yaml
from runs import weights
from safetensors.torch import save, save_file

from leyden.trainer.cli.main import main
from leyden.trainer.config import hub_weights

pytest.importorskip("huggingface_hub")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "resnet18.a1_in1k"
SHORT = ["model=resnet18", "dataset=synthetic", "dataset.image_shape=[3,32,32]", "dataset.samples=64", "batch_size=16",
         "trainer.max_steps=1", "optimizer.lr=1e-30", "trainer.enable_progress_bar=false", "logger=none",
         "callbacks.train_images=null", "trainer.limit_val_batches=1", "trainer.limit_test_batches=0"]  # fmt: skip


class Hub(ThreadingHTTPServer):
    """A server on loopback that answers as huggingface.co does for one file."""

    def __init__(self, file: bytes):
        self.file = file
        self.asked: list[tuple[str, str]] = []
        super().__init__(("127.0.0.1", 0), _Handler)
        Thread(target=self.serve_forever, daemon=True).start()

    @property
    def files(self) -> list[str]:
        """Methods of the requests for a file."""
        return [method for method, path in self.asked if "/resolve/" in path]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self._answer(with_file=False)

    def do_GET(self) -> None:
        self._answer(with_file=True)

    def _answer(self, with_file: bool) -> None:
        hub = self.server
        assert isinstance(hub, Hub)
        hub.asked.append((self.command, self.path))
        repo, _, file = self.path.partition("/resolve/")
        if repo != f"/timm/{NAME}":
            self._refuse("RepoNotFound")
        elif not file.endswith("/model.safetensors"):
            self._refuse("EntryNotFound")
        else:
            self.send_response(200)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hashlib.sha256(hub.file).hexdigest()}"')
            self.send_header("Content-Length", str(len(hub.file)))
            self.end_headers()
            if with_file:
                self.wfile.write(hub.file)

    def _refuse(self, code: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        if code == "EntryNotFound":
            self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        return


STATE = public.resnet(18)


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    server = Hub(save(STATE))
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: Hub) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEYDEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    hub.asked.clear()
    hub_weights._pin_name.cache_clear()


@pytest.mark.slow
def test_fetched_once_pinned_and_trained_from(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    words = [*SHORT, f"model.pretrained=timm:{NAME}"]
    records = "+callbacks.records={_target_:hopping_examples.RecordsEnvironment,name:HF_HUB_OFFLINE}"
    assert main([*words, records, "hydra.run.dir=run"]) == 0
    assert (tmp_path / "run" / "environment").read_text() == "1", "a worker asks no hub"
    assert "HF_HUB_OFFLINE" not in os.environ, "what comes next in a notebook may"
    assert "the output layer starts fresh" in capsys.readouterr().out
    pinned = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["model"]["pretrained"]
    assert pinned["source"] == f"timm:{NAME}"
    assert pinned["sha256"] == hashlib.sha256(hub.file).hexdigest()
    assert Path(pinned["path"]).is_relative_to(tmp_path / "cache")
    assert COMMIT in pinned["path"]
    assert torch.equal(weights(tmp_path / "run")["model.stem.0.weight"], STATE["conv1.weight"])
    assert hub.files == ["HEAD", "GET"]
    # a sweep asks once for all of its trials, and without the hub the cache serves
    hub_weights._pin_name.cache_clear()
    hub.asked.clear()
    assert main(["-m", *words, "seed=1,2", "hydra.sweep.dir=sweep"]) == 0
    assert hub.files == ["HEAD"]
    frozen = yaml.safe_load((tmp_path / "sweep" / "1" / "config.yaml").read_text())
    assert frozen["model"]["pretrained"] == pinned


def test_a_file_that_has_changed_or_is_gone_is_refused(
    hub: Hub, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*SHORT, f"model.pretrained=timm:{NAME}", "hydra.run.dir=run", "trainer.max_epochs=2",
                 "topology.launcher=node", "topology.nodes=2", "strategy=ddp"]) == 0  # fmt: skip
    values = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    values["topology"].update(launcher="local", nodes=1)
    values["strategy"] = {"_target_": "leyden.trainer.strategies.single.Single"}
    values.pop("processes")
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(values))
    file = Path(values["model"]["pretrained"]["path"]).resolve()
    save_file({**STATE, "bn1.bias": torch.ones(64)}, file)
    assert main(["resume", "run"]) == 2
    assert "has changed since the run was frozen" in " ".join(capfd.readouterr().err.split())
    file.unlink()
    assert main(["resume", "run"]) == 2
    assert "is not there" in " ".join(capfd.readouterr().err.split())


@pytest.mark.parametrize(
    ("source", "text", "remedy"),
    [
        ("timm:resnet18", "there is no timm/resnet18 on the hub", "timm:resnet50.a1_in1k"),
        (f"hub:timm/{NAME}/pytorch.safetensors", "has no file pytorch.safetensors", "FILE.safetensors"),
    ],
)
def test_what_the_hub_does_not_have(
    source: str, text: str, remedy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["hydra.run.dir=run"], ["-m", "seed=1,2", "hydra.sweep.dir=run"]):
        assert main([*words, *SHORT, f"model.pretrained={source}"]) == 2
        error = " ".join(capsys.readouterr().err.split())
        assert text in error
        assert remedy in error
        assert not (tmp_path / "run").exists()


def test_without_the_hub_and_the_cache(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert main([*SHORT, f"model.pretrained=timm:{NAME}", "hydra.run.dir=run"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "it is not in the cache, and the hub cannot be reached" in error
    assert f"LEYDEN_CACHE={tmp_path}/cache" in error
    assert not (tmp_path / "run").exists()
    assert not hub.asked
