"""NCCL's flight recorder as far as there need be no NCCL: its variables, its folder, and the agent's request."""

import os
import threading
import time
from pathlib import Path

import pytest
from machines import topology_config

from leyden.trainer.launch.error_files import ErrorFiles
from leyden.trainer.launch.hangs.flight_recorder import recorder_environment, request_dump
from leyden.trainer.launch.roles import LocalNode, Role
from leyden.trainer.launch.worker_group import WorkerGroup, WorkerSpec

RUN, GROUP = Path("/run"), Path("/tmp/group")


def test_dumps_go_to_the_given_folder() -> None:
    assert recorder_environment(RUN, GROUP, {}) == {
        "TORCH_FR_DUMP_TEMP_FILE": "/run/nccl_rank_", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/tmp/group/nccl-",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("TORCH_FR_DUMP_TEMP_FILE", {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE"}),
        ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE"}),
        ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", {"TORCH_FR_DUMP_TEMP_FILE"}),
    ],
)
def test_what_the_user_has_set_wins(name: str, ours: set[str]) -> None:
    assert set(recorder_environment(RUN, GROUP, {name: "/mine"})) == ours


class NoStore:
    host, port = "127.0.0.1", 1

    def open(self) -> None: ...

    def close(self) -> None: ...


def group(tmp_path: Path, kind: str, verb: str = "train") -> WorkerGroup:
    config = topology_config("strategy=ddp", "topology.devices_per_node=2", f"topology.device.kind={kind}")
    job = WorkerSpec(config, tmp_path, verb, None)
    return WorkerGroup(job, 0, LocalNode(0, 1, None), NoStore(), None, None)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_workers_of_gpus_have_a_recorder_and_leave_no_empty_folder(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = group(tmp_path, kind)
    monkeypatch.setattr(made, "start_process", lambda role: pytest.fail("no process"), raising=True)
    monkeypatch.setattr("leyden.trainer.launch.worker_group.local_workers", lambda *_: [])
    variables = made._rendezvous(Role("worker", 1))
    assert ("TORCH_FR_DUMP_TEMP_FILE" in variables) == (kind == "cuda")
    made.start()
    assert (tmp_path / "hang").exists() == (kind == "cuda")
    made._shut_down()
    assert not (tmp_path / "hang").exists()


def test_an_evaluation_has_its_recorder_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = group(tmp_path, "cuda", "eval")
    monkeypatch.setattr("leyden.trainer.launch.worker_group.local_workers", lambda *_: [])
    made.start()
    folder = Path(made._rendezvous(Role("worker", 1))["TORCH_FR_DUMP_TEMP_FILE"]).parent
    assert folder.is_dir()
    made._shut_down()
    assert not folder.exists()
    assert not list(tmp_path.iterdir())


def test_a_dump_stays_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = group(tmp_path, "cuda")
    monkeypatch.setattr("leyden.trainer.launch.worker_group.local_workers", lambda *_: [])
    made.start()
    (tmp_path / "hang" / "nccl_rank_0").write_text("collectives")
    made._shut_down()
    assert (tmp_path / "hang" / "nccl_rank_0").exists()


def test_a_request_reaches_the_reader_of_the_pipe_and_waits_for_none(tmp_path: Path) -> None:
    folder = ErrorFiles(tmp_path).folder
    began = time.monotonic()
    request_dump(folder, 0)
    pipe = folder / "nccl-1.pipe"
    os.mkfifo(pipe)
    request_dump(folder, 1)  # nobody reads
    assert time.monotonic() - began < 1.0
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # as torch's watchdog opens it
    asking = threading.Thread(target=request_dump, args=(folder, 1))
    asking.start()
    asking.join(5)
    assert os.read(reader, 16)
    os.close(reader)
