"""Modules' worth of work for processes that a fork server forks: `python -m fork_examples WHAT`."""

import atexit
import ctypes
import gc
import json
import os
import random
import signal
import sys
import threading
import time

import numpy as np
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only


def state() -> dict[str, object]:
    """What a process has from its parent, and what of it differs between two processes."""
    umask = os.umask(0)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    return {
        "arguments": sys.argv[1:],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "umask": umask,
        "leads a session": os.getsid(0) == os.getpid(),
        "leads a group": os.getpgid(0) == os.getpid(),
        "child of": os.getppid(),
        "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],
        "input": os.readlink("/proc/self/fd/0"),
        "python threads": threading.active_count(),
        "handlers": {number.name: str(handler) for number, handler in handlers.items()},
        "rank": rank_zero_only.rank,  # pyright: ignore[reportFunctionMemberAccess]
        "torch threads": torch.get_num_threads(),
        "collects": gc.isenabled(),
        "path": sys.path,
        "main": sys.modules["__main__"].__name__,
        "own draws": [random.random(), float(np.random.rand()), float(torch.rand(()))],
    }


def leave() -> None:
    """Leave to the end of the process a thread at work, an exit handler, and text that is in no file yet: Python's, and
    a C library's."""
    global kept
    kept = open("kept", "w")  # noqa: SIM115
    kept.write("text")
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    libc.fputs(b"text", ctypes.c_void_p(libc.fopen(b"kept by C", b"w")))
    atexit.register(lambda: print("exit handler"))
    threading.Thread(target=lambda: (time.sleep(0.5), print("thread"))).start()


if __name__ == "__main__":
    match sys.argv[1]:
        case "state":
            print(json.dumps(state()), flush=True)
        case "exit":
            sys.exit(3)
        case "leave":
            leave()
            sys.exit(3)
        case "raise":
            raise RuntimeError("on purpose")
        case "sleep":
            threading.Event().wait()
