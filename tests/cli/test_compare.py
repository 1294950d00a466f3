"""`leyden compare`: differences, ranks, damaged runs, files; fast, and without torch."""

import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import yaml
from PIL import Image
from runs import Freeze

from leyden.trainer.cli.main import main
from leyden.trainer.runs import comparison
from leyden.trainer.runs.comparison import compare_runs
from leyden.trainer.runs.frozen import read_values

WITHOUT_TORCH = """
import sys
from leyden.trainer.cli.main import main
code = main(sys.argv[1:])
assert not {"torch", "lightning", "hydra"} & set(sys.modules)
sys.exit(code)
"""
CONFIG = {
    "seed": 0,
    "tags": ["a", "b: c"],
    "model": {"_target_": "leyden.models.mlp.MLP", "hidden": [256, 128], "empty": {}},
    "optimizer": {"lr": 0.1, "nested": {"x": None, "y": "two\nlines"}},
    "callbacks": {"checkpoint": {"monitor": "val/acc", "mode": "max"}},
    "composition": {"overrides": ["seed=1"]},
}


def made(folder: Path, metrics: dict[str, float] | None, best: float | None = None, **changed: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({**CONFIG, **changed}, sort_keys=False))
    if metrics is not None:
        ranked = [] if best is None else [{"value": best, "checkpoint": "checkpoints/step=00000001.ckpt"}]
        summary = {"status": "done", "metrics": metrics, "best": ranked, "steps": 5, "samples_per_second": 100.0,
                   "last_checkpoint": "checkpoints/step=00000001.ckpt",
                   "communication": {"bytes_a_step_and_worker": 8}}  # fmt: skip
        (folder / "summary.json").write_text(json.dumps(summary))
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints" / "step=00000001.ckpt").write_bytes(b"x" * 77)
    return folder


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "S" / "0", {"val/acc": 0.5, "val/loss": 2.0}, best=0.9, optimizer={"lr": 0.3})
    made(tmp_path / "S" / "1", {"val/acc": 0.7, "val/loss": 1.0}, best=0.7)
    made(tmp_path / "S" / "2", {"val/acc": 0.8, "val/loss": 3.0}, best=0.8, seed=1)
    made(tmp_path / "S" / "3", None)
    damaged = made(tmp_path / "S" / "4", {"val/acc": 1.0})
    (damaged / "summary.json").write_text("{")
    (made(tmp_path / "S" / "5", {"val/acc": 1.0}) / "config.yaml").write_text("seed: [")
    return tmp_path / "S"


def test_runs_are_ranked_by_their_monitor_and_damaged_ones_are_listed(sweep: Path) -> None:
    found = compare_runs([sweep / str(number) for number in range(6)])
    assert (found.metric, found.mode) == ("val/acc", "max")
    # the first by its best checkpoint, though the last value is less
    assert [Path(run.run).name for run in found.runs] == ["0", "2", "1", "3", "4", "5"]
    assert [run.state for run in found.runs] == ["done", "done", "done", "not started", "damaged", "damaged"]
    assert found.runs[4].why.startswith("summary.json: it is not JSON")
    assert found.runs[5].why.startswith("config.yaml: it is not YAML")
    assert list(found.keys) == ["seed", "optimizer.lr", "optimizer.nested.x", "optimizer.nested.y"]
    assert (found.runs[0].checkpoint_bytes, found.runs[0].bytes_a_step) == (77, 8.0)
    by_loss = compare_runs([sweep / str(number) for number in range(3)], "val/loss")
    assert (by_loss.mode, [Path(run.run).name for run in by_loss.runs]) == ("min", ["1", "0", "2"])


def test_a_damaged_run_has_no_config_that_is_the_same(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "S/1", "S/4"]) == 0
    assert "configs are the same" not in capsys.readouterr().out
    made(sweep / "6", {"val/acc": 0.7})
    assert main(["compare", "S/1", "S/6", "S/4"]) == 0
    assert "configs are the same" in capsys.readouterr().out


def test_true_and_one_are_different_settings(tmp_path: Path) -> None:
    runs = [made(tmp_path / str(n), None, trainer={"x": v, "y": w}) for n, (v, w) in enumerate([(True, 1), (1, 1.0)])]
    assert list(compare_runs(runs).keys) == ["trainer.x"]


@pytest.mark.parametrize("number", range(4))
def test_a_config_read_by_its_parts_is_the_whole_one(number: int, tmp_path: Path, freeze: Freeze) -> None:
    run = freeze("run", "model=resnet20", "callbacks=[default,ema]") if number == 3 else made(tmp_path / "run", None)
    file = run / "config.yaml"
    if number == 1:  # an alias, which no part can be read without
        file.write_text("a: &x [1, 2]\nb: *x\n# a comment\nc: {d: 'e\n\n  f'}\n")
    if number == 2:
        (run / "resume.yaml").write_text(yaml.safe_dump([{"changed": {"optimizer.lr": 9.0}}]))
    blocks = comparison._blocks(run)
    expected = {k: v for k, v in read_values(run).items() if k not in comparison._NOT_COMPARED}
    assert {key for block in blocks.values() for key in block} == {key for key, _ in comparison._flat("", expected)}
    assert {k: v for b in blocks.values() for k, v in b.items()} == dict(comparison._flat("", expected))


def test_every_file_has_all_runs_and_no_markup_of_theirs(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "</script><script>alert(1)</script>"
    made(sweep / "6", {"val/acc": 0.1, "[red]x": 1.0}, tags=[evil], seed=f"\x1b[31m[bold]{evil}")
    assert main(["compare", "S", "--out", "result"]) == 0
    said = capsys.readouterr().out
    assert "\x1b[31m" not in said
    assert "[bold]" in said
    with open("result.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["run"] for row in rows] == ["S/0", "S/2", "S/1", "S/6", "S/3", "S/4", "S/5"]
    assert (rows[0]["val/acc"], rows[0]["optimizer.lr"], rows[1]["seed"], rows[0]["rank"]) == ("0.9", "0.3", "1", "1")
    page = Path("result.html").read_text()
    assert page.count("<script") == page.count("</script>") == 1, "what a run says ends no script"
    assert "http" not in page.replace("http-equiv", "")
    data = page.partition("const rows = ")[2].partition(", numeric")[0]
    assert [row[1] for row in json.loads(data)] == [row["run"] for row in rows]
    with Image.open("result.png") as picture:
        assert picture.size[0] > 500


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["nowhere"], "there is no such folder"),
        (["S", "--by", "val/f1"], "no run has logged it; logged: val/acc, val/loss"),
        (["S", "--out", "x.pdf"], "must be a .csv, .png or .html file"),
        (["S", "--mode", "most"], "--mode"),
        (["S/0/checkpoints"], "there are no runs"),
    ],
)
def test_mistakes_are_named(sweep: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str) -> None:
    assert main(["compare", *words]) == 2
    assert text in capsys.readouterr().err
    assert [path.name for path in sweep.parent.iterdir()] == ["S"]


def count_calls(folders: Sequence[Path]) -> int:
    """Calls of functions that a comparison makes."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    profile = sys.getprofile()
    sys.setprofile(count)
    try:
        found = compare_runs(folders)
    finally:
        sys.setprofile(profile)
    assert list(found.keys) == ["seed", "optimizer.lr"]
    return calls


@pytest.mark.slow
def test_hundreds_of_runs_are_compared_with_few_calls_and_no_torch(tmp_path: Path, freeze: Freeze) -> None:
    """The seconds of 2,000 are measured by benchmarks/command_speed.py; here their calls of functions are counted."""
    text = (freeze("one", "model=mlp") / "config.yaml").read_text()
    for number in range(240):
        made(tmp_path / "many" / str(number), {"val/acc": number / 240, "val/loss": 1.0})
        varied = text.replace("lr: 0.02", f"lr: {number}").replace("seed: 0", f"seed: {number % 7}")
        (tmp_path / "many" / str(number) / "config.yaml").write_text(varied)
    command = [sys.executable, "-c", WITHOUT_TORCH, "compare", "many"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    folders = [tmp_path / "many" / str(number) for number in range(240)]
    compare_runs(folders[:40])  # what all runs share is parsed
    few, many = count_calls(folders[40:100]), count_calls(folders[100:220])
    assert many < 2.1 * few
    assert few < 60 * 1500, "1,155 a run"
