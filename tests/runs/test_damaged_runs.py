"""Garbage in run folders: that run is listed as damaged, with the file; eval and resume are one clear error."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from damaged_run_files import CONFIGS, SUMMARIES
from runs import PATIENCE_S, TINY, Freeze, states

from leyden.trainer.base.untrusted_file import DamagedFile
from leyden.trainer.cli.main import main
from leyden.trainer.runs.untrusted_yaml import read_yaml


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_is_refused_before_it_is_loaded(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, reason = CONFIGS[name]
    file = tmp_path / "config.yaml"
    file.write_text(text)
    code = (
        "import sys; from leyden.trainer.cli.main import main; from pathlib import Path\n"
        f"sys.exit(main(['eval', {str(tmp_path)!r}]))"
    )
    # a process of its own: the defect was a segmentation fault
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == 2, ended
    assert "Traceback" not in ended.stderr
    assert reason in " ".join(ended.stderr.split())
    assert "config.yaml" in ended.stderr


def test_what_a_frozen_config_holds_is_read(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("a: &a {b: [1, 2]}\nc: *a\nd: {<<: *a, e: 1}\n")
    assert read_yaml(file) == {"a": {"b": [1, 2]}, "c": {"b": [1, 2]}, "d": {"b": [1, 2], "e": 1}}
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(DamagedFile, match="no regular file"):
        read_yaml(tmp_path / "fifo")


def healthy(folder: Path) -> None:
    folder.mkdir()
    (folder / "config.yaml").write_text("a: 1\n")
    (folder / "summary.json").write_text('{"status": "done", "steps": 3, "samples_per_second": 5.5}')


def test_one_damaged_run_is_listed_and_the_others_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged: dict[str, str] = {}
    for number, text in enumerate(SUMMARIES.values()):
        healthy(tmp_path / f"s{number}")
        (tmp_path / f"s{number}" / "summary.json").write_text(text)
        damaged[f"s{number}"] = "summary.json: "
    for name in ("deep", "cycle", "bomb", "deep block"):
        healthy(tmp_path / name)
        (tmp_path / name / "config.yaml").write_text(CONFIGS[name][0])
        damaged[name] = "config.yaml: "
    for name, text in {"r0": "a: 1\n", "r1": "- changed: [1]\n", "r2": "[" * 200_000, "r3": "- x\n"}.items():
        healthy(tmp_path / name)
        (tmp_path / name / "resume.yaml").write_text(text)
        damaged[name] = "resume.yaml: "
    healthy(tmp_path / "pipe")
    (tmp_path / "pipe" / "summary.json").unlink()
    os.mkfifo(tmp_path / "pipe" / "summary.json")
    damaged["pipe"] = "summary.json: "
    whole = tmp_path / "[bold]whole[bold]"
    healthy(whole)
    for name in ("agent.json", "slurm.json"):
        (whole / name).write_text("[" * 100_000)
    (whole / "progress.json").write_text('{"step": "x"}')
    found = states(capsys, tmp_path)
    assert [run["state"] for name, run in found.items() if name not in damaged] == ["done"]
    for name, why in damaged.items():
        assert found[name]["state"] == "damaged", name
        assert found[name]["why"].startswith(why), (name, found[name]["why"])
    assert main(["status", str(tmp_path)]) == 0
    assert "[bold]whole[bold]" in capsys.readouterr().out


def test_no_code_for_the_terminal_comes_from_a_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    healthy(tmp_path / "run")
    (tmp_path / "run" / "summary.json").write_text(json.dumps({"status": "failed", "error": "\x1b]0;owned\x07[/red]"}))
    assert main(["status", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "owned" in printed


@pytest.mark.parametrize("verb", ["eval", "resume"])
@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("resume.yaml", "a: 1\n"),
        ("resume.yaml", "- changed: {trainer.max_epochs.x: 3}\n"),
        ("resume.yaml", "- changed: {1: 3}\n"),
        ("config.yaml", "- a\n"),
        ("config.yaml", "a: &a {b: *a}\n"),
    ],
)
def test_eval_and_resume_name_the_file(
    freeze: Freeze, capsys: pytest.CaptureFixture[str], verb: str, file: str, text: str
) -> None:
    run_dir = freeze("run", *TINY)
    (run_dir / file).write_text(text)
    before = sorted(run_dir.rglob("*"))
    assert main([verb, str(run_dir)]) == 2
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    assert file in printed.err
    assert sorted(run_dir.rglob("*")) == before


@pytest.mark.parametrize(
    ("key", "old", "words"),
    [
        (
            "    log_grad_norm: false\n",
            "",
            "trainer.log_grad_norm config.yaml is of another version of Leyden: is missing",
        ),
        (
            "log_grad_norm:",
            "grad_norm:",
            "trainer.grad_norm = false config.yaml is of another version of Leyden: ",
        ),
        ("components.tasks.classification.", "task.", "module leyden.trainer has no 'task'"),
    ],
    ids=["key", "name", "class"],
)
def test_a_run_of_another_version(
    freeze: Freeze, capsys: pytest.CaptureFixture[str], key: str, old: str, words: str
) -> None:
    run_dir = freeze("run", *TINY)
    text = (run_dir / "config.yaml").read_text()
    key = key.replace("    ", text.partition("trainer:\n")[2].partition("max_epochs")[0])
    assert text.count(key) == 1
    (run_dir / "config.yaml").write_text(text.replace(key, old))
    for verb in ("eval", "resume"):
        assert main([verb, str(run_dir)]) == 2
        assert words in " ".join(capsys.readouterr().err.split())


def test_resume_names_a_damaged_summary(freeze: Freeze, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = freeze("run", *TINY)
    (run_dir / "summary.json").write_text('{"status": "done", "steps": "many"}')
    assert main(["resume", str(run_dir)]) == 2
    assert "steps must be an integer, not 'many'" in " ".join(capsys.readouterr().err.split())
