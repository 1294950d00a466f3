"""YAML bombs: refused by name, within a second and little memory, before anything is started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from yaml_bombs import BOMBS

from leyden.trainer.base import limited_yaml
from leyden.trainer.cli.main import main


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_it_is_built(name: str) -> None:
    text, reason = BOMBS[name]
    before = os.times()
    for parse in (limited_yaml.load, limited_yaml.compose):
        with pytest.raises(limited_yaml.YAMLTooLarge) as caught:
            parse(text)
        assert reason in str(caught.value)
    after = os.times()
    assert after.user + after.system - before.user - before.system < 10


def test_what_people_write_is_read() -> None:
    text = "base: &base {lr: 0.1, sizes: [1, 2]}\nsmall:\n  <<: *base\n  lr: 0.2\nlarge: *base\n"
    assert limited_yaml.load(text) == yaml.safe_load(text)
    numbered = {f"key{i}": list(range(9)) for i in range(1800)}
    assert limited_yaml.load(yaml.safe_dump(numbered)) == numbered
    deep = "[" * 64 + "]" * 64
    assert limited_yaml.load(deep) == yaml.safe_load(deep)
    assert limited_yaml.load("") is None
    assert limited_yaml.load("text: " + "1:1 " * 1000)["text"].startswith("1:1 1:1")


@pytest.mark.parametrize(
    "text", ["a: 2001-99-99", "a: !!bool x", f'!!float "1{":1" * 400}"', "a: !!int x", "[", "a: *b"]
)
def test_whatever_is_wrong_is_an_error_of_yaml(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        limited_yaml.load(text)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.yaml")
    with pytest.raises(OSError, match=r"fifo\.yaml is not a regular file"):
        limited_yaml.read(tmp_path / "fifo.yaml")


@pytest.mark.parametrize("name", ["aliases", "flow", "directives"])
def test_a_bomb_in_the_users_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (tmp_path / "model").mkdir()
    bomb = tmp_path / "model" / "bomb.yaml"
    bomb.write_text(BOMBS[name][0])
    for arguments in (["model=bomb"], ["help", "model=bomb"]):
        assert main(["--config-dir", str(tmp_path), *arguments]) == 2
        error = capsys.readouterr().err
        assert "bomb.yaml" in error
        assert BOMBS[name][1] in error


@pytest.mark.parametrize("file", ["config.yaml", "resume.yaml"])
def test_a_bomb_in_a_run_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str) -> None:
    (tmp_path / "config.yaml").write_text("model: {_target_: a.b}\n")
    for name in ("aliases", "block", "cyclic"):
        (tmp_path / file).write_text(BOMBS[name][0])
        assert main(["eval", str(tmp_path)]) == 2
        error = capsys.readouterr().err
        assert file in error
        assert BOMBS[name][1] in error


@pytest.mark.slow
def test_the_command_stays_small(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()

    def used(text: str) -> tuple[float, int]:
        """CPU seconds and kilobytes of `leyden model=given`."""
        (tmp_path / "model" / "given.yaml").write_text(text)
        command = [sys.executable, "-m", "leyden", "--config-dir", str(tmp_path), "model=given", "seed=x"]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 2
        return usage.ru_utime + usage.ru_stime, usage.ru_maxrss

    harmless = used("_target_: leyden.models.mlp.MLP\n")
    for text, _ in (BOMBS["aliases"], BOMBS["flow"], BOMBS["items"]):
        seconds, kilobytes = used(text)
        assert seconds < harmless[0] + 5
        assert kilobytes < harmless[1] + 512 * 1024
