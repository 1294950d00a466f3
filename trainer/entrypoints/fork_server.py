"""Fork server: leyden.trainer.entrypoints.fork_server DESCRIPTOR CLIENT_PID, or forked by its client. See
launch/fork_server.py for its use."""

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from ..base.process import end_process, end_with_parent, frozen_imports, set_name
from ..base.signals import interrupts_deferred
from ..config.schema import Config
from ..launch.child_process import ChildProcess
from ..launch.fork_server import HAS_THREADS, NAME, NUMBER, ForkServer, can_fork
from ..launch.roles import is_alone

_PRELOADED = (
    "leyden.trainer.engine.train",
    "leyden.trainer.entrypoints.server",
    "leyden.trainer.entrypoints.trial",
    "leyden.trainer.entrypoints.worker",
    "torch.utils.tensorboard",
)


def main() -> None:
    module = serve(int(sys.argv[1]), int(sys.argv[2]))
    run_forked(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))


def run_forked(work: Callable[[], object]) -> NoReturn:
    """Run a forked process's work, and end with the exit code that it would have in an interpreter of its own."""
    code = 0
    try:
        work()
    except SystemExit as stop:
        if not isinstance(stop.code, int | None):
            raise
        code = stop.code or 0
    end_process(code)


def serve(descriptor: int, client: int) -> str:
    """Import what the forked processes need, and fork them. Returns in each of them the module to run."""
    connection = socket.socket(fileno=descriptor)
    if not end_with_parent(client, signal.SIGKILL):
        sys.exit(1)
    by_imports = _preload()
    if _has_threads():
        sys.exit(HAS_THREADS)
    return _serve(connection, by_imports)


def prepare(config: Config) -> None:
    """Prepare like `prepare_agent`, for a run whose agent will be this process, if any is."""
    if config.launcher == "local":
        prepare_agent(config)


def prepare_agent(config: Config) -> None:
    """Import what a run on this machine needs, and fork a fork server from this process for the run's processes, unless
    this is the only one.

    To be called before this process has used torch, imported the user's code, started threads or drawn random numbers:
    they begin as it is now. A process that is more than that starts a fork server in an interpreter of its own.
    """
    if config.processes is None or ForkServer.prepared is not None:
        return
    alone = is_alone(config) and config.topology.max_restarts == 0
    wanted = alone or config.topology.start_method == "forkserver"
    if not wanted or ("torch" in sys.modules and not ForkServer.forked_this_process):
        return
    by_imports = _preload()
    if alone or not can_fork(os.environ) or _has_threads():
        return
    ours, theirs = socket.socketpair()
    client = os.getpid()
    pid = os.fork()
    if pid:
        theirs.close()
        ForkServer.prepared = ForkServer(ours, ChildProcess(pid), os.environ)
        atexit.register(ForkServer.prepared.close)
        return
    os.setpgid(0, 0)
    ours.close()
    if not sys.flags.safe_path:
        del sys.path[0]  # the command's folder, as `python -P`
    if end_with_parent(client, signal.SIGKILL):
        # both end by os._exit: what called this function is not to be returned to
        runpy.run_module(_serve(theirs, by_imports), run_name="__main__", alter_sys=True)
    os._exit(1)


def _preload() -> dict[str, str]:
    """Import what the run's processes need. Returns the environment variables that libraries have set meanwhile."""
    before = dict(os.environ)
    with interrupts_deferred(), frozen_imports():
        for module in _PRELOADED:
            importlib.import_module(module)
    return {name: value for name, value in os.environ.items() if name not in before}


def _has_threads() -> bool:
    # OpenBLAS ends its own before a fork, and starts them again when it needs them
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return len(os.listdir("/proc/self/task")) > 1


def _serve(connection: socket.socket, by_imports: Mapping[str, str]) -> str:
    """Fork a process for each request, until the connection is closed. Returns as `serve` does."""
    # a collection in a forked process would write to every object, and so copy every page
    set_name(NAME)
    gc.collect()
    gc.disable()
    gc.freeze()
    while True:
        request, descriptors = _receive(connection)
        if request is None:
            os._exit(0)
        if _fork(connection):
            connection.close()
            _become({**request, "environment": {**by_imports, **request["environment"]}}, descriptors)
            return request["module"]
        for descriptor in descriptors:
            os.close(descriptor)


def _receive(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The next request and its descriptors; None at the end."""
    head, descriptors, _, _ = socket.recv_fds(connection, NUMBER.size, 4, socket.MSG_WAITALL)
    if len(head) < NUMBER.size:
        return None, []
    message = connection.recv(NUMBER.unpack(head)[0], socket.MSG_WAITALL)
    return json.loads(message), descriptors


def _fork(connection: socket.socket) -> bool:
    """Fork twice: what the process in the middle leaves behind becomes the client's child. True in that child."""
    import torch

    assert not torch.cuda.is_initialized(), "CUDA does not work in a process forked after it was initialized"
    read, write = os.pipe()
    middle = os.fork()
    if middle == 0:
        middle = os.getpid()
        pid = os.fork()
        if pid:
            os.write(write, NUMBER.pack(pid))
            os._exit(0)
        while os.getppid() == middle:
            time.sleep(0.0005)
        os.close(read)
        os.close(write)
        return True
    os.waitpid(middle, 0)
    connection.sendall(os.read(read, NUMBER.size))
    os.close(read)
    os.close(write)
    return False


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Give this process what a new interpreter would have inherited from the client, and no more."""
    import numpy as np
    import torch

    from ..core.lightning_compat import read_rank_again

    # not a name of this module, which is __main__ where the server has an interpreter of its own
    ForkServer.forked_this_process = True
    set_name("python")
    if request["new_session"]:
        os.setsid()
    else:
        os.setpgid(0, 0)
    *streams, folder = descriptors
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.fchdir(folder)
    for descriptor in descriptors:
        os.close(descriptor)
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as Python itself does when it starts
        signal.signal(signal.SIGINT, signal.default_int_handler)
    read_rank_again()
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if threads.isdigit() and int(threads):
        torch.set_num_threads(int(threads))
    # random does so by itself; else all processes would draw the same
    np.random.seed()
    torch.default_generator.seed()
    sys.modules.pop(request["module"], None)  # imported above; it is to run as the main module
    gc.enable()


if __name__ == "__main__":
    main()
