"""Checkpoints that are well-formed and wrong: named, passed over, never called a good one."""

import errno
import json
import os
import pickle
import re
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import TINY, Freeze, states, weights
from wrong_checkpoints import OPCODES, WRONG, Change, Evil, at, container, of_group, other_shape, without

from leyden.trainer.cli.main import main
from leyden.trainer.core.checkpoints import checkpoint_io, optimizer_trial
from leyden.trainer.core.checkpoints.checkpoint_content import not_finite
from leyden.trainer.engine.checkpoints import restored_parts
from leyden.trainer.entrypoints.start import start
from leyden.trainer.runs import checkpoints
from leyden.trainer.runs.summary import last_good_checkpoint


def spoiled(whole: Path, to: Path, change: Change, every: bool = False) -> Path:
    """A copy whose newest checkpoint, or every one, is well-formed and wrong."""
    shutil.copytree(whole, to)
    (to / "checkpoints" / "last.ckpt").unlink()
    (to / "summary.json").unlink()
    for path in checkpoints.saved_checkpoints(to)[: None if every else 1]:
        content = torch.load(path, weights_only=True)
        change(content)
        torch.save(content, path)
    return to


@pytest.mark.thinned(4, 4)
@pytest.mark.parametrize("name", WRONG)
def test_it_is_named_and_the_one_before_is_used(
    whole: Path, tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    change, says = WRONG[name]
    run_dir = spoiled(whole, tmp_path / "run", change)
    newest, before = checkpoints.saved_checkpoints(run_dir)
    assert start(run_dir, "resume") == 0
    printed = "".join(capfd.readouterr())
    assert f"{newest} " in printed
    assert says in printed
    assert f"goes on from {before}" in printed
    assert all(torch.equal(value, weights(whole)[key]) for key, value in weights(run_dir).items())


def average_of(change: Callable[[torch.Tensor], Any]) -> Change:
    return lambda content: content["callbacks"]["ema"].update(
        average={name: change(value) for name, value in content["callbacks"]["ema"]["average"].items()}
    )


AVERAGES: dict[str, Change] = {
    "other shapes": average_of(lambda value: torch.zeros(2)),
    "texts": average_of(lambda value: "x"),
    "NaN": average_of(lambda value: value * torch.nan),
    "no names": at("callbacks", "ema", "average", value={"x": torch.zeros(2)}),
    "nothing": without("callbacks", "ema", "average"),
    "a text of updates": at("callbacks", "ema", "updates", value="x"),
}


def test_an_average_that_is_wrong_is_named_too(freeze: Freeze, tmp_path: Path) -> None:
    run_dir = freeze("run", *TINY, "callbacks=[default,ema]", "callbacks.checkpoint.every_n_steps=10")
    assert start(run_dir) == 0
    for name, change in AVERAGES.items():
        copy = spoiled(run_dir, tmp_path / name, change)
        newest, before, *_ = checkpoints.saved_checkpoints(copy)
        assert start(copy, "resume") == 0, name
        assert f"{newest} is damaged: its `callbacks.ema` cannot be restored" in (copy / "run.log").read_text(), name
        assert f"goes on from {before}" in (copy / "run.log").read_text()


def test_weights_of_a_byte_are_looked_at() -> None:
    values = torch.ones(3).to(torch.float8_e4m3fn)
    assert not_finite({"a": values}) is None
    assert not_finite({"a": torch.full((3,), torch.nan).to(torch.float8_e4m3fn)}) == "a"


def test_the_wrong_one_is_never_called_good(whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_dir = spoiled(whole, tmp_path / "run", WRONG["NaN"][0])
    newest, before = checkpoints.saved_checkpoints(run_dir)
    assert checkpoint_io.newest(run_dir, to_evaluate=False)
    assert str(before) in last_good_checkpoint(run_dir)
    assert states(capfd, run_dir)["run"]["checkpoint"] == f"checkpoints/{before.name}"  # pyright: ignore[reportArgumentType]
    assert start(run_dir, "resume") == 0, "written again, it is good again"
    assert str(newest) in last_good_checkpoint(run_dir)


def test_a_second_moment_below_zero_is_named_before_the_first_step() -> None:
    """Of a parameter whose like is whole: each one is tried."""
    layers = [torch.nn.Linear(2, 2) for _ in range(2)]
    network = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(network.parameters())
    network(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    own = restored_parts.settings_of(optimizer)
    optimizer_trial.refuse_useless_state(optimizer, own)
    optimizer.state[layers[1].weight]["exp_avg_sq"].neg_()
    with pytest.raises(ValueError, match="a step with it gives weights that are NaN or infinite"):
        optimizer_trial.refuse_useless_state(optimizer, own)


def test_a_damaged_one_does_not_displace_a_good_one(freeze: Freeze) -> None:
    run_dir = freeze("run", *TINY, "callbacks.checkpoint.every_n_steps=10")
    assert start(run_dir) == 0
    (run_dir / "checkpoints" / "last.ckpt").unlink()
    newest, before = checkpoints.saved_checkpoints(run_dir)
    assert (checkpoints.step_of(newest), checkpoints.step_of(before)) == (36, 30)
    newest.write_bytes(b"nothing")
    (run_dir / "resume.yaml").write_text("- changed: {trainer.max_steps: 32}\n")
    (run_dir / "summary.json").unlink()
    assert start(run_dir, "resume") == 0
    assert [checkpoints.step_of(path) for path in checkpoints.intact(run_dir)] == [32, 30]


@pytest.mark.parametrize("every", [False, True])
def test_eval_of_weights_that_are_not_finite_exits_1(
    whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], every: bool
) -> None:
    run_dir = spoiled(whole, tmp_path / "run", WRONG["NaN"][0], every)
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file() and path.name != "run.log"}
    newest = checkpoints.saved_checkpoints(run_dir)[0]
    for named in (run_dir, newest):
        assert main(["eval", str(named)]) == 1
        printed = "".join(capfd.readouterr())
        assert "Traceback" not in printed
        assert f"{newest} is damaged: " in printed
        assert "has NaN or infinite values" in printed
        assert "last good" not in printed
    assert {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file() and p.name != "run.log"} == before


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda state: state.pop("values"), "its `values` are no vector"),
        (lambda state: state.update(values=torch.full((9,), torch.nan)), "its `values` are NaN or infinite"),
        (lambda state: state["optimizer"][0][1].fill_(torch.inf), "its `optimizer` is none of a server"),
        (lambda state: state.update(version="one"), "its `version` is one"),
        (lambda state: state.update(optimizer=[["momentum_buffer"]]), "its `optimizer` is none of a server"),
        (lambda state: None, ""),
    ],
    ids=["no values", "NaN", "an infinite momentum", "version", "optimizer", "whole"],
)
def test_a_file_of_a_server_is_checked_too(
    whole: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    """A server that cannot read its file ends the run: the checkpoint before is to be used."""
    run_dir = spoiled(whole, tmp_path / "run", at("servers", value=1))
    newest, before = checkpoints.saved_checkpoints(run_dir)
    optimizer = [["momentum_buffer", torch.ones(9)], ["step", torch.tensor(4.0)], ["count", 4]]
    state = {"format": 1, "values": torch.ones(9), "version": 4, "optimizer": optimizer}
    change(state)
    torch.save(state, checkpoints.server_path(newest, 0))
    found = checkpoint_io.newest(run_dir)
    assert found is not None
    assert found[0] == (before if says else newest)
    if says:
        with pytest.raises(checkpoint_io.DamagedCheckpoint, match=says):
            checkpoint_io.read_to_resume(newest)


def test_a_state_that_no_server_can_step_with_is_named_before_it_gets_it(
    freeze: Freeze, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_dir = freeze("run", *TINY, "strategy=asgd", "strategy.execution.simulate=true", "optimizer=adamw",
                     "callbacks.checkpoint.every_n_steps=10")  # fmt: skip
    assert start(run_dir) == 0
    for change, says in (
        (lambda state: dict(state["optimizer"])["exp_avg_sq"].neg_(), "a step with it gives weights that are NaN"),
        (lambda state: state.update(values=torch.ones(9)), "the servers' files hold 9 values in place of"),
    ):
        copy = spoiled(run_dir, tmp_path / says[:9], lambda content: None)
        newest, before, *_ = checkpoints.saved_checkpoints(copy)
        file = checkpoints.server_path(newest, 0)
        state = torch.load(file, weights_only=True)
        change(state)
        torch.save(state, file)
        capfd.readouterr()
        assert start(copy, "resume") == 0
        printed = "".join(capfd.readouterr())
        assert f"{newest} is damaged: its `optimizer` cannot be restored" in printed
        assert says in printed
        assert f"goes on from {before}" in printed


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=["descriptors", "memory", "allocator"],
)
def test_what_the_host_lacks_is_no_damage(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A run would go on from an older checkpoint, and note the newest as damaged for good."""
    run_dir = shutil.copytree(whole, tmp_path / "run")

    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(type(error)) as raised:
        checkpoint_io.newest(run_dir)
    assert raised.value is error
    assert not (run_dir / "checkpoints" / "damaged.json").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_file_that_may_not_be_read_is_passed_over_unnoted(whole: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its permissions may be corrected: it is then the newest again."""
    with tempfile.TemporaryDirectory() as place:
        run_dir = shutil.copytree(whole, Path(place) / "run")
        for path in (Path(place), run_dir, checkpoints.folder(run_dir)):
            path.chmod(0o777)
        (checkpoints.folder(run_dir) / checkpoints.LAST).unlink()
        newest, before = checkpoints.saved_checkpoints(run_dir)[:2]
        newest.chmod(0o600)
        before.chmod(0o644)
        os.seteuid(65534)
        try:
            found = checkpoint_io.newest(run_dir)
        finally:
            os.seteuid(0)
        assert found is not None
        assert found[0].samefile(before)
        assert f"{newest} cannot be read: Permission denied; trying the one before" in caplog.text
        assert not (checkpoints.folder(run_dir) / "damaged.json").exists()
        assert checkpoints.intact(run_dir)[0] == newest


def tree(run_dir: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["NaN", "no model"])
def test_the_folder_of_another_run_is_not_written(whole: Path, freeze: Freeze, tmp_path: Path, name: str) -> None:
    """The weights before the damaged ones are taken, and nothing is noted in a folder that this run does not lead."""
    donor = spoiled(whole, tmp_path / "donor", WRONG[name][0])
    before = tree(donor)
    assert start(freeze("heir", *TINY, "trainer.max_steps=1", f"init_from={donor}")) == 0
    assert tree(donor) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_an_evaluation_writes_nothing_into_the_folder_of_another_user(whole: Path, tmp_path: Path) -> None:
    run_dir = shutil.copytree(whole, tmp_path / "run")
    for path in (run_dir, *run_dir.rglob("*")):
        os.chown(path, 12345, 12345)
    before = tree(run_dir)
    assert main(["eval", str(run_dir)]) == 0
    assert tree(run_dir) == before


def test_if_none_is_left_it_is_one_error(whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_dir = spoiled(whole, tmp_path / "run", other_shape, every=True)
    for verb in ("resume", "eval"):
        assert main([verb, str(run_dir)]) == 2
        printed = " ".join("".join(capfd.readouterr()).split())
        assert "none of the 2 checkpoints" in printed
        assert "has shape (3, 5)" in printed
        assert "Traceback" not in printed
        assert "last good" not in printed
    assert main(["resume", str(checkpoints.saved_checkpoints(run_dir)[0])]) == 2


def test_an_evaluation_takes_the_one_before_too(whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_dir = spoiled(whole, tmp_path / "run", of_group("lr", "fast"))
    assert main(["eval", str(run_dir)]) == 0
    assert "its `optimizer` cannot be restored" in "".join(capfd.readouterr())


def texts_for_weights(content: dict[str, Any]) -> None:
    content["model"] = dict.fromkeys(content["model"], "x")


EXPORTED: dict[str, tuple[Change, str, tuple[str, ...]]] = {
    "other shapes": (other_shape, "its `model` cannot be restored", ()),
    "texts": (texts_for_weights, "its `model` cannot be restored", ()),
    "no average": (at("callbacks", "ema", value=5), "its `callbacks.ema` cannot be restored", ()),
    "an average of NaN": (AVERAGES["NaN"], "its `callbacks.ema` cannot be restored", ()),
    "the best of nothing": (at("callbacks", "checkpoint", value=5), "its `callbacks.checkpoint`", ("--best",)),
    "the best is a text": (
        at("callbacks", "checkpoint", "best", value=[[0.0, "x"]]),
        "`callbacks.checkpoint`",
        ("--best",),
    ),
}


def test_an_export_names_it_too(
    freeze: Freeze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run_dir = freeze("run", *TINY, "trainer.max_steps=2", "callbacks=[default,ema]")
    assert start(run_dir) == 0
    monkeypatch.chdir(tmp_path)
    for name, (change, says, flags) in EXPORTED.items():
        copy = spoiled(run_dir, tmp_path / name, change, every=True)
        capfd.readouterr()
        assert main(["export", str(copy), *flags, "--format", "safetensors"]) == 2, name
        assert says in " ".join("".join(capfd.readouterr()).split()), name
        assert not (tmp_path / "network.safetensors").exists()


INDEXES = {
    "deep": "[" * 100_000,
    "a list": '{"workers": 1, "tensors": []}',
    "no entry": '{"workers": 1, "tensors": {"model/a": 1}}',
    "a name that is no dtype": '{"workers": 1, "tensors": {"model/a": {"dtype": "load", "shape": [1], "pieces": []}}}',
    "a worker outside": '{"workers": 1, "tensors": {"model/a": {"dtype": "int8", "shape": [1], "pieces": '
    '[{"worker": "../x", "offset": [0], "shape": [1]}]}}}',
    "a parameter that is none": '{"workers": 1, "tensors": {"optimizer/x/y": {"dtype": "int8", "shape": [], '
    '"pieces": []}}}',
}


@pytest.mark.parametrize("name", INDEXES)
def test_an_index_that_lies_is_named(whole: Path, tmp_path: Path, name: str) -> None:
    run_dir = spoiled(whole, tmp_path / "run", at("shards", value=1))
    newest = checkpoints.saved_checkpoints(run_dir)[0]
    checkpoints.index_path(newest).write_text(INDEXES[name])
    with pytest.raises(checkpoint_io.DamagedCheckpoint, match=r"index\.json is (missing or )?damaged"):
        checkpoint_io.read_to_resume(newest)


@pytest.mark.parametrize("code", [True, False])
def test_a_workers_file_is_checked_as_the_checkpoint_is(whole: Path, tmp_path: Path, code: bool) -> None:
    run_dir, canary = spoiled(whole, tmp_path / "run", at("shards", value=1)), tmp_path / "executed"
    newest = checkpoints.saved_checkpoints(run_dir)[0]
    entry = {"dtype": "float32", "shape": [1], "pieces": [{"worker": 0, "offset": [0], "shape": [1]}]}
    checkpoints.index_path(newest).write_text(json.dumps({"workers": 1, "tensors": {"model/a": entry}}))
    torch.save(Evil(canary) if code else [1], checkpoints.shard_path(newest, 0))
    with pytest.raises(checkpoint_io.DamagedCheckpoint, match="posix.system" if code else "holds no slices"):
        checkpoint_io.read_to_resume(newest)
    assert not canary.exists()


@pytest.mark.parametrize("hidden", [False, True], ids=["declared", "behind a second end record"])
def test_a_list_of_a_million_entries_is_not_read(tmp_path: Path, hidden: bool) -> None:
    path = tmp_path / "many.ckpt"
    torch.save({"format": 1, "model": {}}, path)
    data = path.read_bytes()
    first = data.find(b"PK\x01\x02")
    entry = data[first : data.find(b"PK\x01\x02", first + 4)]
    offset = int.from_bytes(b"PK\x05\x06", "little") if hidden else first
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, len(entry) * 300_000, offset, 0)
    path.write_bytes(data[:first] + entry * 300_000 + end)
    with pytest.raises(checkpoint_io.DamagedCheckpoint, match="its list of entries has"):
        checkpoint_io.read(path)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_code_is_named_and_refused(tmp_path: Path, protocol: int) -> None:
    canary, path = tmp_path / "executed", tmp_path / "step=00000001.ckpt"
    torch.save({"format": 1, "model": Evil(canary)}, path, pickle_protocol=protocol)
    with pytest.raises(checkpoint_io.DamagedCheckpoint) as error:
        checkpoint_io.read(path)
    assert str(error.value) == f"{path} contains code (`posix.system`): refused"
    path.write_bytes(pickle.dumps(Evil(canary), protocol=protocol))
    with pytest.raises(checkpoint_io.DamagedCheckpoint, match="is no checkpoint: not a zip file"):
        checkpoint_io.read(path)
    assert not canary.exists()


def test_names_that_are_put_together_are_found(tmp_path: Path) -> None:
    inst = b"(S'touch x'\nios\nsystem\n."
    memoized = b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94h\x00h\x01\x93\x8c\x01x\x85R."
    for opcodes, name in ((inst, "os.system"), (memoized, "posix.system")):
        with pytest.raises(checkpoint_io.DamagedCheckpoint, match=f"contains code .`{name}`.: refused"):
            checkpoint_io.read(container(tmp_path / "x.ckpt", opcodes))


@pytest.mark.parametrize("name", OPCODES)
def test_bombs_of_opcodes_are_refused_before_they_are_loaded(tmp_path: Path, name: str) -> None:
    opcodes, says = OPCODES[name]
    with pytest.raises(checkpoint_io.DamagedCheckpoint, match=re.escape(says)):
        checkpoint_io.read(container(tmp_path / "x.ckpt", b"\x80\x02" + opcodes))


def test_a_container_is_as_torch_writes_it(tmp_path: Path) -> None:
    """zipfile verifies a list of entries, torch loads from one: they must be the same."""
    path = tmp_path / "x.ckpt"
    torch.save({"format": 1, "model": {}}, path)
    whole, inner = path.read_bytes(), container(tmp_path / "inner", b"N.").read_bytes()
    for data, says in (
        (whole[:-1], "its end is not a checkpoint's"),
        (whole + b"x", "its end is not a checkpoint's"),
        (inner + whole, "its end is not"),
    ):
        path.write_bytes(data)
        with pytest.raises(checkpoint_io.DamagedCheckpoint, match=says):
            checkpoint_io.read(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", b"N.")
        archive.writestr("x/DATA.pkl", b"N.")
    with pytest.raises(checkpoint_io.DamagedCheckpoint, match="a name twice"):
        checkpoint_io.read(path)
