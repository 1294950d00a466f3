"""Fork server: its processes are as new as spawned ones, and there are no more imports than it promises."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from folders import MODULES
from forked_commands import ForkedCommand, session_server, start_server
from interpreters import Interpreters
from runs import TINY, Freeze, weights

from leyden.trainer.cli.main import main
from leyden.trainer.entrypoints.start import start
from leyden.trainer.launch.child_process import Child, ChildProcess, ProcessSpec, spawn
from leyden.trainer.launch.error_files import ErrorFiles
from leyden.trainer.launch.fork_server import NAME, NUMBER, ForkServer
from leyden.trainer.launch.process import Process
from leyden.trainer.launch.roles import Role

WORKERS = ["strategy=ddp", "topology.devices_per_node=2"]


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    started = start_server({**os.environ, "PYTHONPATH": str(MODULES), "OMP_NUM_THREADS": "2"})
    yield started
    started.close()


def spec(what: str, new_session: bool = True) -> ProcessSpec:
    environment = {**os.environ, "PYTHONPATH": str(MODULES), "OMP_NUM_THREADS": "1", "RANK": "3", "NEW": "ä\udcff"}
    return ProcessSpec("fork_examples", [what, "a b"], environment, new_session)


def printed(capfd: pytest.CaptureFixture[str], child: Child) -> Any:
    assert child.wait() == 0, capfd.readouterr().err
    return json.loads(capfd.readouterr().out)


@pytest.mark.slow
def test_a_forked_process_is_as_new_as_a_spawned_one(
    server: ForkServer, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o027)
    try:
        states = [printed(capfd, begin(spec("state"))) for begin in (spawn, server.fork, server.fork)]
        states.append(printed(capfd, server.fork(spec("state", new_session=False))))
    finally:
        os.umask(before)
    drawn = [draw for state in states for draw in state.pop("own draws")]
    assert len(set(drawn)) == len(drawn), "each process draws its own random numbers"
    assert states[0] == states[1] == states[2]
    assert states[3] == {**states[0], "leads a session": False}
    assert states[0]["leads a session"]
    assert states[0]["leads a group"]
    assert states[0]["rank"] == 3
    assert states[0]["torch threads"] == 1
    assert states[0]["child of"] == os.getpid()
    assert states[0]["descriptors"] == [0, 1, 2]


@pytest.mark.slow
def test_ends_of_forked_processes(server: ForkServer, capfd: pytest.CaptureFixture[str]) -> None:
    assert server.fork(spec("exit")).wait() == 3
    assert server.fork(spec("raise")).wait() == 1
    assert "RuntimeError: on purpose" in capfd.readouterr().err
    sleeps = server.fork(spec("sleep"))
    assert sleeps.pid
    assert sleeps.poll() is None
    sleeps.send_signal(signal.SIGTERM)
    assert sleeps.wait() == -signal.SIGTERM
    assert sleeps.poll() == -signal.SIGTERM
    sleeps.kill()  # it has ended: nothing else gets the signal


@pytest.mark.slow
def test_a_forked_process_ends_as_a_spawned_one(
    server: ForkServer, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for begin in (spawn, server.fork):
        assert begin(spec("leave")).wait() == 3
        assert capfd.readouterr() == ("thread\nexit handler\n", "")
        for kept in map(Path, ("kept", "kept by C")):
            assert kept.read_text() == "text"
            kept.unlink()
    with open("/dev/full", "w") as full:
        leave, environment = [sys.executable, "-m", "fork_examples", "leave"], spec("leave").environment
        spawned = subprocess.run(leave, stdout=full, env=environment).returncode
        assert server.fork_with(spec("leave"), [0, full.fileno(), 2], ".").wait() == spawned
    assert capfd.readouterr().err.count("No space left on device") >= 2


@pytest.mark.slow
def test_a_handler_that_asks_while_the_process_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal is forwarded at the moment in which the process ends."""
    pid, wait = os.fork(), os.waitpid
    if pid == 0:
        os._exit(3)
    process = ChildProcess(pid)

    def interrupted(pid: int, options: int) -> tuple[int, int]:
        while options == 0 and process.poll() is None:
            pass
        return wait(pid, options)

    monkeypatch.setattr(os, "waitpid", interrupted)
    assert process.wait() == 3


@pytest.fixture
def importing() -> Iterator[tuple[ForkServer, socket.socket]]:
    """A fork server that still imports, and the end of its connection at which it will answer."""
    ours, theirs = socket.socketpair()
    ours.settimeout(1)  # a read that waits is an error
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    server = ForkServer(ours, process, {})
    with theirs:
        yield server, theirs
    server.close()


def test_a_process_is_polled_while_its_fork_server_imports(importing: tuple[ForkServer, socket.socket]) -> None:
    server, connection = importing
    child = server.fork(spec("state"))
    assert (child.poll(), child.has_begun) == (None, False)
    pid = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", "pass"])
    connection.sendall(NUMBER.pack(pid))
    assert child.wait() == 0
    assert (child.pid, child.has_begun) == (pid, True)


def test_a_signal_that_arrives_while_the_fork_server_imports(
    importing: tuple[ForkServer, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a sweep's first trial is waited for: the handler forwards it."""
    server, connection = importing
    child = server.fork(spec("state"))
    pid = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"])
    read_answers = server.read_answers

    def interrupted(waits: bool = True) -> None:
        monkeypatch.setattr(server, "read_answers", read_answers)
        child.send_signal(signal.SIGTERM)
        connection.sendall(NUMBER.pack(pid))
        read_answers(waits)

    monkeypatch.setattr(server, "read_answers", interrupted)
    assert child.wait() == -signal.SIGKILL


def test_processes_are_killed_while_their_fork_server_imports(importing: tuple[ForkServer, socket.socket]) -> None:
    """One of them has just been forked."""
    server, connection = importing
    files = ErrorFiles()
    processes = [Process(Role("worker", number), [], {}, files, server) for number in range(3)]
    for process in processes:
        process.kill()
    pid = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"])
    connection.sendall(NUMBER.pack(pid))
    server.kill()
    connection.close()  # as the kernel does
    ends = [process.wait() for process in processes]
    assert [(end.code, end.killed_by_agent) for end in ends] == [(-signal.SIGKILL, True)] * 3
    files.remove()


def test_a_fork_server_that_dies_ends_what_it_was_to_fork() -> None:
    server = start_server(dict(os.environ))
    server.process.kill()
    child = server.fork(spec("state"))
    assert child.wait() == -signal.SIGKILL
    child.kill()
    with pytest.raises(AssertionError):  # not 0, which as the process of a signal is each of this one's group
        _ = child.pid
    server.close()


@pytest.mark.slow
def test_with_threads_at_the_import_processes_are_spawned(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A debugger or a tracer in sitecustomize.py starts one in each interpreter."""
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=[600], daemon=True).start()\n"
    )
    (tmp_path / "parent.py").write_text("import os\nprint(os.getppid())\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    server = start_server(environment)
    assert printed(capfd, server.fork(ProcessSpec("parent", [], environment, True))) == os.getpid()
    server.close()
    assert "a library that it loads has started threads" in caplog.text


def run(*overrides: str, folder: Path) -> Interpreters:
    """A run by a real command, into a folder. Returns the interpreters that it has started."""
    interpreters = Interpreters(folder.with_name(f"{folder.name}-interpreters"))
    (interpreters.folder / "marked.py").write_text(MARKED)
    command = [sys.executable, "-m", "leyden", *TINY, *overrides]
    before = adopted()
    done = subprocess.run(
        command, env={**os.environ, **interpreters.environment}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert adopted() <= before, "a command ends its fork server before itself"
    return interpreters


MARKED = """
import os

import torch

with open(os.environ["STARTED"], "a") as f:
    f.write("m")

class Marked:
    def on_fit_start(self, state):
        pass
"""
"""Module of a callback, which marks that its process has imported torch."""


def adopted() -> set[int]:
    """Fork servers whose command has ended: this process adopts them."""
    return {child.pid for child in psutil.Process().children() if child.name() == NAME}


@pytest.mark.slow
def test_workers_of_a_node_share_one_import_and_compute_as_spawned_ones(
    tmp_path: Path, freeze: Freeze, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those whose threads OpenMP places are spawned: it does so when it is loaded, before a worker that was forked has
    its cores."""
    forked, spawned = tmp_path / "forked", freeze("spawned", *TINY, *WORKERS)
    assert run(*WORKERS, f"hydra.run.dir={forked}", folder=forked).count == 1
    interpreters = Interpreters(tmp_path / "spawned-interpreters")
    for name, value in {**interpreters.environment, "OMP_PROC_BIND": "true"}.items():
        monkeypatch.setenv(name, value)
    assert start(spawned) == 0
    assert interpreters.count == 2
    one, other = weights(forked), weights(spawned)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_trials_of_a_sweep_share_one_import(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    marked = "+callbacks.marked._target_=marked.Marked"
    interpreters = run("-m", "seed=1,2", *WORKERS, marked, f"hydra.sweep.dir={folder}", folder=folder)
    # the second interpreter imports while the first does, which validates the trials; the workers of each are two
    assert interpreters.marks == "..mmmmm"
    assert len(list(folder.glob("*/summary.json"))) == 2


@pytest.mark.slow
def test_what_a_run_imports_leaves_cuda_alone_and_is_frozen_for_the_garbage_collector() -> None:
    """A process that was forked after the driver's initialization cannot use a GPU. Frozen is also what a run in the
    command's own process imports, which forks none."""
    code = (
        "import gc, sys\n"
        "import torch\n"
        "def touched(*_): raise AssertionError('CUDA')\n"
        "for name in ('init', '_lazy_init', 'device_count', 'is_available', 'current_device', 'mem_get_info'):\n"
        "    setattr(torch.cuda, name, touched)\n"
        "from leyden.trainer.compose.composer import Composer\n"
        "from leyden.trainer.entrypoints.fork_server import prepare\n"
        "from leyden.trainer.launch.fork_server import ForkServer\n"
        "ForkServer.forked_this_process = True  # else one that has torch prepares nothing\n"
        "def check(config):\n"
        "    prepare(config)\n"
        "    assert gc.isenabled()\n"
        "    assert gc.get_freeze_count() > 100_000, gc.get_freeze_count()\n"
        "    assert 'leyden.trainer.engine.train' in sys.modules\n"
        "Composer().run(['model=mlp'], check)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_a_sweep_in_this_process_leaves_no_fork_server_to_the_next_run(tmp_path: Path) -> None:
    """Its environment is that of the sweep."""
    assert main(["-m", *TINY, "seed=1,2", "trainer.max_steps=1", f"hydra.sweep.dir={tmp_path / 'sweep'}"]) == 0
    assert ForkServer.prepared is None


def test_the_server_of_the_tests_has_nothing_of_the_test_that_first_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test's cluster ends the processes with its SLURM_CONF."""
    monkeypatch.setattr(ForkedCommand, "server", None)
    monkeypatch.setenv("SLURM_CONF", "slurm.conf")
    started = session_server()
    try:
        assert "SLURM_CONF" not in psutil.Process(started.process.pid).environ()
    finally:
        started.end()
