"""`leyden export`: what other programs compute from the files is what the run computes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from runs import metrics
from safetensors import safe_open

from leyden.datasets.digits import Digits
from leyden.trainer.api.run import Run
from leyden.trainer.base.errors import ConfigError
from leyden.trainer.cli.main import main
from leyden.trainer.engine.inference import export

QUIET = ["trainer.enable_progress_bar=false"]
SMALL = ["model=mlp", "model.hidden=[64]", "dataset.image_size=8", "trainer.max_epochs=8", "augment=none"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """With an average of the weights."""
    folder = tmp_path_factory.mktemp("exported") / "RUN"
    assert main([*SMALL, *QUIET, "callbacks=[default,ema]", f"hydra.run.dir={folder}"]) == 0
    return Run(folder)


@pytest.fixture(scope="module")
def digits() -> Digits:
    return Digits("test", image_size=8)


def test_pt2_is_the_run_for_any_number_of_images(run: Run, digits: Digits, tmp_path: Path) -> None:
    file = run.export("pt2", tmp_path / "n.pt2")
    files = {"leyden.json": ""}
    network = torch.export.load(file, extra_files=files).module()
    assert json.loads(files["leyden.json"])["classes"] == [str(digit) for digit in range(10)]
    for count in (1, 7, 360):
        torch.testing.assert_close(network(digits.images[:count]), run.predictor.scores(digits.images[:count]))
    right = (network(digits.images).argmax(1) == torch.tensor(digits.labels)).double().mean()
    assert float(right) == pytest.approx(run.metrics["test/acc"], abs=1e-12)


def test_safetensors_are_the_evaluated_weights(run: Run, tmp_path: Path) -> None:
    file = run.export("safetensors", tmp_path / "n.safetensors")
    with safe_open(file, "pt") as opened:
        about = json.loads(opened.metadata()["leyden"])
        found = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # no mapping
    own = run.predictor.task.get_submodule("model").state_dict()
    assert found.keys() == own.keys()
    assert all(torch.equal(found[name], own[name]) for name in own)
    assert (about["image_shape"], about["resize"], about["step"]) == ([1, 8, 8], 8, run.predictor.step)


@pytest.mark.slow
def test_onnx_is_the_run_and_int8_nearly(run: Run, digits: Digits, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    images, wanted = digits.images.numpy(), run.predictor.scores(digits.images).numpy()
    session = onnxruntime.InferenceSession(run.export("onnx", tmp_path / "n.onnx"))
    scores = session.run(["scores"], {"images": images})[0]
    assert np.abs(scores - wanted).max() < 1e-4
    assert json.loads(session.get_modelmeta().custom_metadata_map["leyden"])["image_shape"] == [1, 8, 8]
    small = run.export("int8", tmp_path / "n.int8.onnx")
    scores = onnxruntime.InferenceSession(small).run(None, {"images": images})[0]
    accuracy = float((scores.argmax(1) == np.array(digits.labels)).mean())
    assert accuracy >= run.metrics["test/acc"] - 0.01
    assert np.abs(scores - wanted).max() > 1e-4, "it is quantized"


def test_what_int8_may_lose_is_counted_by_the_class_or_by_pairs_of_image_and_class() -> None:
    scores = torch.tensor([[2.0, -1.0], [0.5, 3.0], [1.0, -2.0]])
    assert export.count_right(scores, torch.tensor([0, 0, 0])) == 2
    assert export.count_right(scores, torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])) == 2


def test_what_differs_is_not_written(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        export.ScoresOfImages, "forward", lambda self, images: 1.01 * self.network(images.float() / 255)
    )
    with pytest.raises(ConfigError, match="its exported scores differ by"):
        run.export("safetensors", tmp_path / "n.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "needs the folder of a run"),
        (["RUN"], "must be named: safetensors, pt2"),
        (["RUN", "--format", "pickle"], "must be safetensors, pt2, onnx, int8"),
        (["RUN", "--format", "pt2", "--out", "no/where.pt2"], "must be a file in a folder that exists"),
        (["RUN", "--format", "pt2", "model=mlp"], "a network is used as it was trained"),
    ],
)
def test_mistakes_are_named(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "RUN").symlink_to(run.folder)
    assert main(["export", *words]) == 2
    assert text in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["RUN"]


def test_the_run_learns(run: Run) -> None:
    """Else agreement in accuracy would say little."""
    assert metrics(run.folder)["test/acc"] > 0.3
