"""Faults of the campaign: how each is injected into a run that is held in a phase, and lifted again."""

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from disk_examples import BALLAST, fill
from fault_gate import ALLOCATE
from fault_run import FaultRun

STOPPED_S = 20.0
CLOCK_STEP_S = 3600
CGROUPS = Path("/sys/fs/cgroup/memory")
_F_ADD_SEALS, _F_SEAL_FUTURE_WRITE = 1033, 0x10


class Fault:
    """A fault, and what a run that it hits says.

    Attributes:
        says: pattern of the sentence; "" where the run goes on, or nobody is left to say anything.
        codes: exit codes of the command.
    """

    says = ""
    codes: tuple[int, ...] = (1,)

    def __init__(self, scratch: Path):
        self.scratch = scratch
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.folders = ExitStack()

    def place(self) -> Path:
        """Where the run folder is to be made."""
        return self.scratch

    def equip(self, run: FaultRun, phase: str) -> None:
        """Before the start of a run: a prefix of its command, or its environment."""

    def inject(self, run: FaultRun, held: int) -> None:
        """
        Args:
            held: the process that the gate holds.
        """
        raise NotImplementedError

    def lift(self, run: FaultRun) -> None:
        """After the run has ended."""

    def close(self) -> None:
        self.folders.close()


class Kill(Fault):
    """SIGKILL of one of the run's processes."""

    def __init__(self, scratch: Path, role: str):
        super().__init__(scratch)
        self.role = role

    def inject(self, run: FaultRun, held: int) -> None:
        victim = self._victim(run, held)
        alone = victim == run.process.pid
        self.codes = (-signal.SIGKILL,) if alone else (1,)
        self.says = "" if alone or self.role == "coordinator" else r"failed: killed by SIGKILL"
        os.kill(victim, signal.SIGKILL)

    def _victim(self, run: FaultRun, held: int) -> int:
        if self.role == "worker":
            return held
        if self.role == "server":
            (server,) = (p.pid for p in run.processes() if p.name().startswith("leyden-server"))
            return server
        if self.role == "coordinator":
            return psutil.Process(held).ppid()
        return run.process.pid


class Signal(Fault):
    """A signal that asks the whole run to end, as `leyden stop` or Ctrl-C do."""

    def __init__(self, scratch: Path, number: signal.Signals):
        super().__init__(scratch)
        self.number = number
        # 0: it was past its last step already
        self.codes = (75, 0) if number == signal.SIGTERM else (130, 0)

    def inject(self, run: FaultRun, held: int) -> None:
        if self.number == signal.SIGINT:
            os.killpg(run.process.pid, self.number)  # a terminal's
        else:
            run.process.send_signal(self.number)
        time.sleep(0.5)  # forwarded by the agent meanwhile


class Stop(Fault):
    """SIGSTOP of a worker, for a while."""

    codes = (0,)

    def inject(self, run: FaultRun, held: int) -> None:
        run.open_gate()
        os.kill(held, signal.SIGSTOP)
        time.sleep(STOPPED_S)
        os.kill(held, signal.SIGCONT)


class FullDisk(Fault):
    """ENOSPC: the run folder's file system is full."""

    says = "the disk is full at"
    codes = (1, 0)

    def place(self) -> Path:
        self.disk = self.folders.enter_context(mounted(self.scratch / "disk", "-t", "tmpfs", "-o", "size=12m", "tmpfs"))
        return self.disk

    def inject(self, run: FaultRun, held: int) -> None:
        fill(self.disk)

    def lift(self, run: FaultRun) -> None:
        (self.disk / BALLAST).unlink()


class ReadOnly(Fault):
    """EACCES: the run's folders lose their write permission, for a user whom permissions bind."""

    says = "cannot be written: "
    codes = (1, 0)

    def equip(self, run: FaultRun, phase: str) -> None:
        if os.geteuid() == 0:
            if shutil.which("setpriv") is None:
                pytest.skip("root ignores permissions, and there is no setpriv")
            run.prefix = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]

    def inject(self, run: FaultRun, held: int) -> None:
        self.locked = [run.folder, *(path for path in run.folder.rglob("*") if path.is_dir())]
        for folder in self.locked:
            folder.chmod(stat.S_IRUSR | stat.S_IXUSR)

    def lift(self, run: FaultRun) -> None:
        for folder in self.locked:
            if folder.exists():
                folder.chmod(stat.S_IRWXU)


class BadDisk(Fault):
    """EIO: a block device that can be read and no longer written, a loop device in memory that is sealed."""

    says = "has an error: "
    codes = (1, 0)

    def place(self) -> Path:
        self.disk = self.scratch / "disk"
        self._device = self.folders.enter_context(ExitStack())
        self._attach(b"")
        return self.disk

    def _attach(self, content: bytes) -> None:
        """Make the device, with what it held before, and mount it."""
        self._memory = os.memfd_create("disk", os.MFD_ALLOW_SEALING)
        self._device.callback(os.close, self._memory)
        os.truncate(self._memory, 16 << 20)
        os.pwrite(self._memory, content, 0)
        file = f"/proc/{os.getpid()}/fd/{self._memory}"
        # without a journal: with one the file system turns read-only at the first error
        check = ["e2fsck", "-fy", file] if content else ["mkfs.ext4", "-q", "-O", "^has_journal", file]
        subprocess.run(check, check=False, capture_output=True)
        made = subprocess.run(["losetup", "--find", "--show", file], check=False, capture_output=True, text=True)
        if made.returncode:
            pytest.skip("no loop device can be had here")
        loop = made.stdout.strip()
        self._device.callback(subprocess.run, ["losetup", "--detach", loop], check=True)
        self._device.enter_context(mounted(self.disk, loop))

    def inject(self, run: FaultRun, held: int) -> None:
        os.sync()
        fcntl.fcntl(self._memory, _F_ADD_SEALS, _F_SEAL_FUTURE_WRITE)

    def lift(self, run: FaultRun) -> None:
        content = os.pread(self._memory, 16 << 20, 0)
        self._device.close()
        self._attach(content)


class DataRemoved(Fault):
    """An image of each split is removed while the run trains on them."""

    says = r"\.png"
    codes = (1, 0)
    images: Path

    def inject(self, run: FaultRun, held: int) -> None:
        self.aside = self.scratch / "aside"
        self.removed = [next(iter(sorted((self.images / split).rglob("*.png")))) for split in ("train", "val", "test")]
        for path in self.removed:
            to = self.aside / path.relative_to(self.images)
            to.parent.mkdir(parents=True)
            path.rename(to)

    def lift(self, run: FaultRun) -> None:
        for path in self.removed:
            (self.aside / path.relative_to(self.images)).rename(path)


class ClockStep(Fault):
    """The clock of the host steps by an hour; CLOCK_MONOTONIC goes on as ever."""

    codes = (0,)

    def __init__(self, scratch: Path, seconds: int):
        super().__init__(scratch)
        self.seconds = seconds
        self._clock = scratch / "clock"

    def equip(self, run: FaultRun, phase: str) -> None:
        library, source = self.scratch / "clock_step.so", Path(__file__).with_name("clock_step.c")
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler")
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
        self._set(0)
        run.environment |= {"LD_PRELOAD": str(library), "LEYDEN_CLOCK": str(self._clock)}

    def _set(self, seconds: int) -> None:
        self._clock.touch()
        with open(self._clock, "r+b") as file:  # it is mapped
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))

    def inject(self, run: FaultRun, held: int) -> None:
        self._set(self.seconds)

    def lift(self, run: FaultRun) -> None:
        run.environment.clear()


class Descriptors(Fault):
    """No process of the run may have more than 64 open files; those that have fewer get no more."""

    says = "too many open files"
    codes = (1, 0)

    def equip(self, run: FaultRun, phase: str) -> None:
        if phase == "start":
            run.prefix = ["prlimit", "--nofile=64:64"]

    def inject(self, run: FaultRun, held: int) -> None:
        for process in run.processes():
            limit = min(64, max(int(path.name) for path in Path(f"/proc/{process.pid}/fd").iterdir()) + 1)
            _, most = process.rlimit(psutil.RLIMIT_NOFILE)
            process.rlimit(psutil.RLIMIT_NOFILE, (limit, most))

    def lift(self, run: FaultRun) -> None:
        run.prefix = []


class MemoryLimit(Fault):
    """The run's control group has no more memory, and the kernel kills the largest process in it."""

    says = r"failed: killed by SIGKILL by the kernel: out of memory"

    def equip(self, run: FaultRun, phase: str) -> None:
        self.group = CGROUPS / f"leyden-{uuid4().hex}"
        try:
            self.group.mkdir()
        except OSError:
            pytest.skip("no control group of the memory controller (version 1) can be made here")
        self.folders.callback(self._remove)
        run.prefix = ["sh", "-c", f'echo $$ > {self.group}/cgroup.procs && exec "$@"', "sh"]

    def inject(self, run: FaultRun, held: int) -> None:
        used = int((self.group / "memory.usage_in_bytes").read_text())
        (run.gate / ALLOCATE).write_text("512")
        (self.group / "memory.limit_in_bytes").write_text(str(used + (64 << 20)))
        # with the rest of the group as large the kernel's choice would be open
        Path(f"/proc/{held}/oom_score_adj").write_text("500")
        if held == run.process.pid:
            self.says, self.codes = "", (-signal.SIGKILL,)

    def lift(self, run: FaultRun) -> None:
        run.prefix = []

    def _remove(self) -> None:
        end = time.monotonic() + 10
        while True:
            try:
                return self.group.rmdir()
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)


@contextmanager
def mounted(folder: Path, *arguments: str) -> Iterator[Path]:
    """A file system, as long as the context lasts."""
    folder.mkdir(exist_ok=True)
    if subprocess.run(["mount", *arguments, folder], check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", *(["--lazy"] if "tmpfs" in arguments else []), folder], check=True)


def fault_named(name: str, scratch: Path, number: int) -> Fault:
    """
    Args:
        number: of the cell, by which clocks step forward or back.
    """
    kind, _, role = name.partition(" ")
    if kind == "kill":
        return Kill(scratch, role)
    if name in ("SIGTERM", "SIGINT"):
        return Signal(scratch, signal.Signals[name])
    if name == "clock step":
        return ClockStep(scratch, CLOCK_STEP_S if number % 2 else -CLOCK_STEP_S)
    kinds: dict[str, type[Fault]] = {
        "SIGSTOP": Stop, "ENOSPC": FullDisk, "EACCES": ReadOnly, "EIO": BadDisk, "data removed": DataRemoved,
        "descriptors": Descriptors, "memory limit": MemoryLimit,
    }  # fmt: skip
    return kinds[name](scratch)
