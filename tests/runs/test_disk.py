"""Full disks, and run folders that are renamed, removed or locked: one sentence, and nothing is lost."""

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from threading import Timer

import pytest
import torch
from disk_examples import BALLAST, FREED, free
from runs import HERE, PATIENCE_S, TINY, Freeze, Processes, rows, states, summary, weights
from typing_extensions import Buffer

from leyden.trainer.base.atomic_file import atomic_file
from leyden.trainer.base.errors import SystemFailure
from leyden.trainer.base.storage import StorageError, current_place, describe_failure, hold
from leyden.trainer.base.system_errors import system_errors
from leyden.trainer.core.checkpoints import checkpoint_io
from leyden.trainer.entrypoints.start import start
from leyden.trainer.launch.error_files import ErrorRecord
from leyden.trainer.runs import checkpoints

DDP = ["strategy=ddp", "topology.devices_per_node=2"]
WORKERS = [pytest.param([], id="one worker"), pytest.param(DDP, id="two workers", marks=pytest.mark.campaign)]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")


def disturbed(how: str, step: int) -> list[str]:
    return [*TINY, "trainer.log_every_n_steps=1", HERE, "+callbacks.disturb._target_=disk_examples.Disturb",
            f"+callbacks.disturb.how={how}", f"+callbacks.disturb.step={step}"]  # fmt: skip


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def moved_to(disk: Path, frozen: Path) -> Path:
    run_dir = disk / frozen.name
    run_dir.mkdir()
    (run_dir / "config.yaml").write_bytes((frozen / "config.yaml").read_bytes())
    return run_dir


def undisturbed(freeze: Freeze, tmp_path: Path, *options: str) -> Path:
    (tmp_path / FREED).touch()
    whole = freeze("whole", *options)
    assert start(whole) == 0
    (tmp_path / FREED).unlink()
    return whole


def assert_equal(one: Path, other: Path) -> None:
    mine, theirs = weights(one), weights(other)
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@needs_root
@pytest.mark.parametrize(
    ("step", "kept", "says"),
    [
        (17, None, "checkpoints/step=00000018.ckpt takes about"),
        (20, "step=00000018.ckpt", "checkpoints/step=00000036.ckpt takes about"),
        (-1, "step=00000036.ckpt", "summary.json could not be written"),
    ],
    ids=["first save", "log and save", "end"],
)
def test_a_full_disk_is_one_sentence_and_the_run_goes_on_bit_equal(
    freeze: Freeze, tmp_path: Path, disk: Path, capfd: pytest.CaptureFixture[str],
    step: int, kept: str | None, says: str,
) -> None:  # fmt: skip
    options = disturbed("fill", step)
    whole = undisturbed(freeze, tmp_path, *options)
    run_dir = moved_to(disk, freeze("run", *options))
    capfd.readouterr()
    assert start(run_dir) == 1
    printed = "".join(capfd.readouterr())
    assert printed.count("Traceback") == 0, printed
    assert printed.count(f"the disk is full at {run_dir}: {says}") == 1, printed
    assert (f"last good checkpoint: {run_dir}/checkpoints/{kept}" if kept else "no checkpoint") in printed
    found = summary(run_dir)
    assert found["status"] == "failed"
    assert says in found["error"]
    free(disk)
    assert start(run_dir, "resume") == 0
    assert summary(run_dir)["status"] == "done"
    assert_equal(run_dir, whole)


@needs_root
def test_logs_lose_lines_and_the_run_nothing(
    freeze: Freeze, tmp_path: Path, disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = [*disturbed("fill_for_a_while", 55), "trainer.max_epochs=6", "callbacks.checkpoint.every_n_epochs=3"]
    whole = undisturbed(freeze, tmp_path, *options)
    run_dir = moved_to(disk, freeze("run", *options))
    assert start(run_dir) == 0
    printed = "".join(capfd.readouterr())
    assert "Traceback" not in printed
    assert printed.count("metrics.csv: the disk is full") == 1
    assert printed.count("events.out.tfevents: the disk is full") == 1
    assert_equal(run_dir, whole)
    mine, theirs = rows(run_dir), {row["step"]: row for row in rows(whole)}
    logged = [row["step"] for row in mine]
    assert logged == [step for step in theirs if step in logged]
    assert {"54", "96", "108"} <= set(logged), "lines before and after"
    assert "94" not in logged
    assert all(row["train/loss"] == theirs[row["step"]]["train/loss"] for row in mine), "no row was glued to another"


@needs_root
@pytest.mark.slow
@pytest.mark.parametrize("step", [pytest.param(20, id="save"), pytest.param(-1, id="end", marks=pytest.mark.campaign)])
def test_a_full_disk_of_two_workers(
    freeze: Freeze, processes: Processes, tmp_path: Path, disk: Path, step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = moved_to(disk, freeze("run", *disturbed("fill", step), *DDP))
    code, printed = processes.run(run_dir)
    assert code == 1
    assert "Traceback" not in printed
    assert printed.count("the disk is full at") == 1, printed
    assert "last good checkpoint: " in printed
    assert summary(run_dir)["status"] == "failed"
    assert states(capsys, run_dir)["run"]["state"] == "failed"
    before = weights(run_dir)
    free(disk)
    code, printed = processes.run(run_dir, "resume")
    assert code == 0, printed
    if step == -1:
        assert all(torch.equal(value, before[name]) for name, value in weights(run_dir).items())
    else:
        whole = moved_to(disk, freeze("whole", *disturbed("fill", step), *DDP))
        assert processes.run(whole)[0] == 0
        assert_equal(run_dir, whole)


@needs_root
def test_a_full_disk_where_the_summary_cannot_grow(tmp_path: Path, disk: Path) -> None:
    from disk_examples import fill

    from leyden.trainer.runs.summary import mark_failed, read_summary, write_summary

    sessions = [{"started_at": f"2026-01-01T00:00:0{n}", "steps": 1, "note": "x" * 400} for n in range(9)]
    write_summary(disk, {"status": "running", "sessions": sessions})
    size = (disk / "summary.json").stat().st_size
    fill(disk)
    mark_failed(disk, "e" * 50_000, 0)
    assert read_summary(disk)["status"] == "failed"
    assert (disk / "summary.json").stat().st_size == size
    assert (disk / BALLAST).exists()


@pytest.mark.parametrize("how", ["rename", "remove"])
def test_a_lost_folder_is_one_sentence_and_is_not_created_again(
    freeze: Freeze, tmp_path: Path, capfd: pytest.CaptureFixture[str], how: str
) -> None:
    options = [*disturbed(how, 20), "logger=none"]
    whole = undisturbed(freeze, tmp_path, *options)
    run_dir = freeze("run", *options)
    capfd.readouterr()
    assert start(run_dir) == 1
    printed = "".join(capfd.readouterr())
    assert "Traceback" not in printed
    assert printed.count(f"the run folder {run_dir} was {how}d") == 1, printed
    assert not run_dir.exists()
    if how == "rename":
        place = tmp_path / "renamed"
        assert f"renamed to {place}" in printed
        assert f"leyden resume {place}" in printed
        assert summary(place)["status"] == "failed"
        (tmp_path / FREED).touch()
        assert start(place, "resume") == 0
        assert_equal(place, whole)


@pytest.mark.slow
@pytest.mark.parametrize("logger", ["none", "default"])
def test_a_renamed_folder_of_two_workers(freeze: Freeze, processes: Processes, tmp_path: Path, logger: str) -> None:
    options = [*disturbed("rename", 20), *DDP, "trainer.log_every_n_steps=50"]
    run_dir = freeze("run", *options, *(["logger=none"] if logger == "none" else []))
    code, printed = processes.run(run_dir)
    assert code == 1
    assert "Traceback" not in printed, printed
    assert f"was renamed to {tmp_path / 'renamed'}" in printed
    assert f"last good checkpoint: {tmp_path / 'renamed'}/checkpoints/step=00000018.ckpt" in printed
    assert not run_dir.exists()
    assert summary(tmp_path / "renamed")["status"] == "failed"


@needs_root
def test_a_locked_folder_is_one_sentence(freeze: Freeze, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    probe = tmp_path / "probe"
    probe.mkdir()
    if subprocess.run(["chattr", "+i", probe], check=False, capture_output=True).returncode:
        pytest.skip("this file system has no immutable folders")
    subprocess.run(["chattr", "-i", probe], check=True)
    run_dir = freeze("run", *disturbed("lock", 20))
    try:
        assert start(run_dir) == 1
    finally:
        subprocess.run(["chattr", "-i", run_dir, run_dir / "checkpoints"], check=True)
    printed = "".join(capfd.readouterr())
    assert "Traceback" not in printed, printed
    assert printed.count(f"the run folder {run_dir} cannot be written: ") == 1, printed
    assert summary(run_dir)["status"] == "failed", "the file itself can be written"


@needs_root
@pytest.mark.slow
def test_a_run_is_not_restarted_into_a_full_disk(freeze: Freeze, processes: Processes, disk: Path) -> None:
    run_dir = moved_to(disk, freeze("run", *disturbed("fill", 20), "topology.max_restarts=3"))
    code, printed = processes.run(run_dir)
    assert code == 1
    assert "; restart " not in printed
    assert printed.count("the disk is full at") == 1, printed
    assert "step=00000018.ckpt\ncontinue with: leyden resume" in printed
    free(disk)
    code, printed = processes.run(run_dir, "resume")
    assert code == 0, printed


def test_a_process_that_leads_many_runs_keeps_few_folders_open(tmp_path: Path) -> None:
    runs = [tmp_path / str(number) for number in range(30)]
    for run_dir in runs:
        run_dir.mkdir()
        hold(run_dir)
        hold(runs[0])  # it is led all the while, beside the others
    opened = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    ]
    assert len([path for path in opened if path.startswith(str(tmp_path))]) < 10
    for run_dir in (runs[0], runs[-1]):
        run_dir.rename(tmp_path / f"renamed-{run_dir.name}")
        assert current_place(run_dir) == tmp_path / f"renamed-{run_dir.name}"


def test_which_errors_of_the_storage_last(tmp_path: Path) -> None:
    """Of the others, such as those of a file server, a restart may meet nothing."""
    found = []
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOENT, errno.EIO, errno.ETIMEDOUT):
        (tmp_path / "run").mkdir(exist_ok=True)
        try:
            with system_errors(tmp_path / "run"):
                if number == errno.ENOENT:
                    (tmp_path / "run").rmdir()
                raise OSError(number, os.strerror(number), str(tmp_path / "run" / "file"))
        except StorageError as error:
            found.append(ErrorRecord.of(error).lasting)
    assert found == [True, True, True, True, False, False]


@pytest.mark.parametrize("of_a_folder", [False, True], ids=["of a file", "of a folder"])
def test_a_fault_of_a_disk_that_only_a_flush_shows_is_one_sentence(
    of_a_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's error of a flush names no file: it was a traceback where the flush was that of the folder."""

    def failing(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) == of_a_folder:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", failing)
    folder = tmp_path / "checkpoints"
    with pytest.raises(StorageError) as raised, system_errors(tmp_path):
        checkpoint_io.write({"model": {"weight": torch.zeros(1)}}, folder / "step=00000001.ckpt")
    file = folder if of_a_folder else folder / "step=00000001.ckpt"
    says = f"the disk of the run folder {tmp_path} has an error: {file.relative_to(tmp_path)}: Input/output error"
    assert str(raised.value) == says


@pytest.mark.parametrize(
    ("number", "needed", "says"),
    [
        (errno.ENOSPC, 0, "the disk takes no more at {run}: file could not be written, although 900 MB are free by"),
        (errno.ENOSPC, 5_000_000, "the disk takes no more at {run}: file takes about 5 MB, although 900 MB are free"),
        (errno.EDQUOT, 5_000_000, "the disk quota is used up at {run}: file takes about 5 MB; remove files that count"),
    ],
)
def test_space_that_the_file_system_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, needed: int, says: str
) -> None:
    """Of a thin-provisioned disk, or of a quota: how much is missing is not known, and not said."""
    monkeypatch.setattr("leyden.trainer.base.storage.free_bytes", lambda folder: 900_000_000)
    said = describe_failure(OSError(number, os.strerror(number), str(tmp_path / "file")), tmp_path, needed)
    assert said is not None
    assert said.startswith(says.format(run=tmp_path))
    assert "missing" not in said


@needs_root
def test_a_disk_that_is_thinly_provisioned(tmp_path: Path, disk: Path) -> None:
    """An image of 64 MB on a disk of 4 MB: its file system does not know that there is no space under it."""
    image, folder = disk / "image", tmp_path / "thin"
    folder.mkdir()
    image.write_bytes(b"")
    os.truncate(image, 64 << 20)
    for command in (["mkfs.ext2", "-q", image], ["mount", "-o", "loop", image, folder]):
        if subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("no file system of a file can be mounted here")
    try:
        with pytest.raises(StorageError) as raised, system_errors(folder), atomic_file(folder / "file", "wb") as file:
            file.write(bytes(8 << 20))
        assert "the disk takes no more" in str(raised.value)
        assert "MB are free by its file system" in str(raised.value)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize(("name", "says"), [("step=1.ckpt", " for {file}"), (None, "")], ids=["open", "fork"])
def test_memory_that_a_system_call_does_not_get_is_one_sentence(tmp_path: Path, name: str | None, says: str) -> None:
    file = None if name is None else str(tmp_path / name)
    with pytest.raises(SystemFailure) as raised, system_errors(tmp_path):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), file)
    assert f"has no memory left{says.format(file=file)}: Cannot allocate memory" in str(raised.value)


class FailingFile(BytesIO):
    """A file of which the second write fails, as the zip writer's."""

    def __init__(self, error: Exception):
        super().__init__()
        self.error = error

    def write(self, data: Buffer) -> int:
        if self.tell():
            raise self.error
        return super().write(data)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
    ids=["system call", "Python", "PyTorch"],
)
def test_a_checkpoint_for_which_there_is_no_memory_fails_by_that_error(error: Exception) -> None:
    """PyTorch's zip writer raises another one, which was told as an error of the disk."""
    with pytest.raises(type(error)) as raised:
        checkpoint_io._save({"model": torch.zeros(100_000)}, FailingFile(error))
    assert raised.value is error


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")],
    ids=["Python", "PyTorch"],
)
def test_a_checkpoint_for_which_there_is_no_memory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """No step is out of memory, and no smaller batch would help."""

    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(torch, "save", fail)
    path = tmp_path / "checkpoints" / "step=00000001.ckpt"
    with pytest.raises(SystemFailure) as raised, system_errors(tmp_path):
        checkpoint_io.write({"model": {}}, path)
    assert f"has no memory left for {path}" in str(raised.value)


@pytest.fixture
def freezable(tmp_path: Path) -> Iterator[Path]:
    """A file system that `fsfreeze` can stall."""
    image, folder = tmp_path / "image", tmp_path / "stalled"
    folder.mkdir()
    image.write_bytes(b"")
    os.truncate(image, 16 << 20)
    for command in (["mkfs.ext4", "-q", image], ["mount", "-o", "loop", image, folder]):
        if subprocess.run(command, check=False, capture_output=True).returncode:
            pytest.skip("no file system of a file can be mounted here")
    yield folder
    unfreeze(folder)
    subprocess.run(["umount", "--lazy", folder], check=True)


def unfreeze(folder: Path) -> None:
    subprocess.run(["fsfreeze", "--unfreeze", folder], check=False, capture_output=True)


def said_while_frozen(process: "subprocess.Popen[str]", folder: Path, text: str) -> list[str]:
    """Lines of a process, up to the one with a text; all of them where it is not said while the disk is frozen."""
    late = Timer(60.0, unfreeze, [folder])
    late.start()
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            break
    late.cancel()
    return lines


@needs_root
@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
def test_a_file_system_that_does_not_answer(
    freeze: Freeze, processes: Processes, freezable: Path, workers: list[str]
) -> None:
    options = [*disturbed("freeze", 20), *workers, "trainer.hang_timeout=3"]
    run_dir = moved_to(freezable, freeze("run", *options))
    process = processes.start(run_dir)
    lines = said_while_frozen(process, freezable, "no progress for 3 s (trainer.hang_timeout)")
    unfreeze(freezable)
    rest, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, rest
    printed = "".join(lines)
    assert f"is in callbacks and logging, after step 21, and the file system of {run_dir} does not answer" in printed
    assert "no progress for 3 s (trainer.hang_timeout)" in lines[-1]
    assert "Traceback" not in printed + rest
    assert summary(run_dir)["status"] == "failed"
    assert (run_dir / "hang" / "rank-0.txt").exists()


@needs_root
@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
def test_a_file_system_that_does_not_answer_for_a_while(
    freeze: Freeze, processes: Processes, tmp_path: Path, freezable: Path, workers: list[str]
) -> None:
    """It is said within 15 s, long before trainer.hang_timeout, and the run goes on."""
    options = [*disturbed("freeze", 20), *workers, "trainer.max_epochs=30"]
    run_dir = moved_to(freezable, freeze("run", *options))
    process = processes.start(run_dir)
    lines = said_while_frozen(process, freezable, "does not answer")
    unfreeze(freezable)
    rest, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, rest
    assert f"the file system of {run_dir} does not answer" in lines[-1], lines
    assert f"rank 0 on {os.uname().nodename} is in callbacks and logging, after step 21" in lines[-1]
    assert int(lines[-1].split("no progress for ")[1].split()[0]) < 15
    assert rest.count("the run goes on") == 1


def test_files_of_a_run_are_as_open_as_the_umask_says(freeze: Freeze) -> None:
    for mask, name in ((0o077, "closed"), (0o027, "group")):
        before = os.umask(mask)
        try:
            run_dir = freeze(name, *TINY, "trainer.max_epochs=1")
            assert start(run_dir) == 0
        finally:
            os.umask(before)
        made = [run_dir, *run_dir.rglob("*")]
        assert checkpoints.saved_checkpoints(run_dir)
        open_ones = [path for path in made if stat.S_IMODE(path.stat().st_mode) & mask]
        assert not open_ones


SECRETS = {
    "HF_TOKEN": "hf_leak0", "AWS_SECRET_ACCESS_KEY": "leak1key", "WANDB_API_KEY": "leak2key",
    "DB_PASSWORD": "leak3word", "MY_SECRET": "leak4secret", "NCCL_NET_AUTH_TOKEN": "leak5token",
    "NCCL_PROXY": "http://user:leak6word@proxy:80", "GLOO_STORE_PASSWORD": "leak7word",
    "https_proxy": "http://user:leak8word@proxy:80", "TORCH_NCCL_KEY": "leak9key",
}  # fmt: skip


def test_no_file_of_a_run_holds_secrets_of_the_environment(
    freeze: Freeze, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from leyden.trainer.config.schema import load
    from leyden.trainer.hardware.comm_env import apply

    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    run_dir = freeze("run", *TINY, "trainer.max_epochs=1")
    apply(load(run_dir).topology, run_dir)
    assert start(run_dir) == 0
    written = (run_dir / "environment.txt").read_text()
    assert "NCCL_DEBUG=WARN" in written
    assert "NCCL_PROXY" in written
    found = b"".join(path.read_bytes() for path in run_dir.rglob("*") if path.is_file())
    printed = "".join(capfd.readouterr())
    assert not [value for value in SECRETS.values() if value.encode() in found or value in printed]
    assert b"leak6" not in found
