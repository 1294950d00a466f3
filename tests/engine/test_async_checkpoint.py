"""trainer.async_checkpoint: checkpoints that are written while the training goes on."""

import os
import signal
from collections import OrderedDict
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from runs import HERE, TINY, Freeze, Processes, summary, wait_until, weights

from leyden.trainer.core.checkpoints import checkpoint_io
from leyden.trainer.core.checkpoints.background_writer import Abandoned, BackgroundWriter, write_part
from leyden.trainer.core.checkpoints.host_snapshot import HostSnapshot
from leyden.trainer.engine.checkpoints import checkpoint_files
from leyden.trainer.entrypoints.start import start
from leyden.trainer.runs import checkpoints

EVERY_STEP = [*TINY, "callbacks.checkpoint.every_n_steps=1", "callbacks.checkpoint.keep_last=100",
              "trainer.enable_progress_bar=false", "model.dropout=0.3"]  # fmt: skip


def test_a_snapshot_is_what_it_was_when_it_was_taken() -> None:
    tensor, tied = torch.arange(6.0), torch.ones(3)
    content: dict[str, Any] = {"model": OrderedDict(a=tensor[:4], b=tied, c=tied), "list": [1, (tensor, "x")]}
    snapshot = HostSnapshot()
    taken = snapshot.take(content)
    tensor += 1
    tied += 1
    content["list"].append(2)
    assert type(taken["model"]) is OrderedDict
    assert taken["model"]["a"].tolist() == [0, 1, 2, 3]
    assert taken["model"]["b"] is taken["model"]["c"]
    assert taken["list"][1][0].tolist() == [0, 1, 2, 3, 4, 5]
    assert len(taken["list"]) == 2
    assert snapshot.bytes == 4 * (4 + 3 + 6)

    again = snapshot.take(content)
    assert again["model"]["a"].data_ptr() == taken["model"]["a"].data_ptr()
    assert again["model"]["a"].tolist() == [1, 2, 3, 4]
    assert snapshot.take({"model": {"a": torch.zeros(2, dtype=torch.int64)}})["model"]["a"].dtype == torch.int64


def test_one_checkpoint_at_a_time_and_its_error() -> None:
    writer, order, go = BackgroundWriter(), [], Event()

    def fails() -> None:
        go.wait()
        order.append("written")
        raise OSError("disk")

    writer.defer(lambda: order.append("removed"))
    writer.start(fails)
    assert not writer.failed
    with pytest.raises(AssertionError, match="two checkpoints"):
        writer.start(fails)
    go.set()
    wait_until(lambda: writer.failed)
    with pytest.raises(OSError, match="disk"):
        writer.wait()
    assert order == ["removed", "written"]
    writer.wait()


def test_the_first_worker_waits_for_the_files_of_all() -> None:
    store, writer = torch.distributed.HashStore(), BackgroundWriter()
    write_part(store, "0", lambda: None)
    done: list[str] = []
    writer.start(lambda: (writer.wait_for_parts(store, ["0", "1"]), done.append("main"))[0])
    write_part(store, "1", lambda: None)
    writer.wait()
    assert done == ["main"]

    def broken() -> None:
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        write_part(store, "2", broken)
    with pytest.raises(Abandoned):
        writer.wait_for_parts(store, ["0", "2"])
    writer.start(lambda: writer.wait_for_parts(store, ["never"]))
    writer.finish()  # ends by another error
    assert not writer.failed


def saved(run_dir: Path) -> dict[int, dict[str, Any]]:
    return {checkpoints.step_of(path): checkpoint_io.read(path) for path in checkpoints.saved_checkpoints(run_dir)}


def assert_same(one: Any, other: Any) -> None:
    if isinstance(other, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(other, dict):
        assert one.keys() == other.keys()
        assert_same(list(one.values()), list(other.values()))
    elif isinstance(other, list | tuple):
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    else:
        assert one == other


def test_every_checkpoint_is_the_one_that_the_training_waits_for(
    freeze: Freeze, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the weights change many times before they are written."""
    epoch = [*EVERY_STEP, "trainer.max_epochs=1"]
    waited = freeze("waited", *epoch, "trainer.async_checkpoint=false")
    assert start(waited) == 0
    write = checkpoint_files._write_main

    def slowly(content: dict[str, Any], path: Path) -> None:
        Event().wait(0.01)
        write(content, path)

    monkeypatch.setattr(checkpoint_files, "_write_main", slowly)
    run_dir = freeze("run", *epoch)
    assert start(run_dir) == 0
    ours, theirs = saved(run_dir), saved(waited)
    assert ours.keys() == theirs.keys() == set(range(1, 19))
    for step, content in theirs.items():
        for part in ("model", "optimizer", "random", "position", "schedules", "epoch_metrics"):
            assert_same(ours[step][part], content[part])
    assert (run_dir / "checkpoints/last.ckpt").samefile(checkpoints.path_of(run_dir, 18))
    assert summary(run_dir)["last_checkpoint"] == "checkpoints/step=00000018.ckpt"


def test_the_newest_and_the_best_are_kept(freeze: Freeze) -> None:
    steps: list[list[int]] = []
    for name, how in (("waited", "false"), ("run", "true")):
        run_dir = freeze(name, *TINY, "trainer.max_epochs=8", "callbacks.checkpoint.keep_last=1",
                         "callbacks.checkpoint.save_top_k=2", f"trainer.async_checkpoint={how}")  # fmt: skip
        assert start(run_dir) == 0
        steps.append([checkpoints.step_of(path) for path in checkpoints.saved_checkpoints(run_dir)])
    assert steps[0] == steps[1]


def test_without_memory_for_a_copy_the_training_waits(
    freeze: Freeze, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checkpoint_files, "free_bytes", lambda: 10)
    run_dir = freeze("run", *TINY)
    assert start(run_dir) == 0
    assert "while the training waits: a copy in host memory takes" in "".join(capsys.readouterr())
    assert len(checkpoints.saved_checkpoints(run_dir)) == 2


def test_one_worker_with_a_file_of_its_own_needs_no_store(freeze: Freeze, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single process may have MASTER_PORT from whatever ran before; the workers of easgd are simulated in it."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    run_dir = freeze("run", *TINY, "strategy=easgd", "strategy.execution.simulate=true",
                     "topology.devices_per_node=2")  # fmt: skip
    assert start(run_dir) == 0
    assert checkpoint_io.read(checkpoints.saved_checkpoints(run_dir)[-1])["shards"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param([], id="single"),
        pytest.param(["strategy=fsdp", "topology.devices_per_node=2"], id="fsdp", marks=pytest.mark.campaign),
    ],
)
def test_a_kill_while_the_thread_writes_loses_at_most_that_checkpoint(
    freeze: Freeze, processes: Processes, strategy: list[str]
) -> None:
    words = [*EVERY_STEP, *strategy, "topology=cpu", HERE]
    stuck = "+callbacks.stuck={_target_: async_examples.WritesFor, step: 30}"
    whole, run_dir = freeze("whole", *words), freeze("run", *words, stuck)
    process = processes.start(run_dir)
    wait_until((run_dir / "writes").exists)
    process.send_signal(signal.SIGKILL)
    process.wait()
    pid = int((run_dir / "writes").read_text())
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or "State:\tZ" in Path(f"/proc/{pid}/status").read_text())
    newest = checkpoints.step_of(checkpoints.intact(run_dir)[0])
    assert newest == 29
    assert checkpoint_io.read(checkpoints.path_of(run_dir, 29))["position"]["step"] == 29
    os.environ["LEYDEN_TEST_FREED"] = "1"
    try:
        assert processes.run(run_dir, "resume")[0] == 0
    finally:
        del os.environ["LEYDEN_TEST_FREED"]
    assert start(whole) == 0
    ours, theirs = weights(run_dir), weights(whole)
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())
