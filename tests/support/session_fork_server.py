"""The test session's fork server: python -P session_fork_server.py DESCRIPTOR CLIENT_PID.

As Leyden's own; its processes may import from another PYTHONPATH than it has, may be a script, and may be on another
host, which is a network namespace.
"""

import ctypes
import os
import runpy
import sys
from importlib import import_module
from pathlib import Path

from leyden.trainer.entrypoints.fork_server import run_forked, serve

NAMESPACE = "LEYDEN_TEST_NAMESPACE"
"""Environment variable: name of the network namespace to enter."""
_IMPORTED = (
    "torch._dynamo.utils",  # of tests that compile, shard or check a network on the meta device
    "leyden.trainer.api.training",
    "leyden.trainer.cli.train_verbs",
    "leyden.trainer.components.callbacks.checkpoint",
    "leyden.trainer.components.callbacks.confusion_matrix",
    "leyden.trainer.components.callbacks.progress",
    "leyden.trainer.components.callbacks.train_images",
    "leyden.trainer.components.loggers.csv",
    "leyden.trainer.components.loggers.hparams",
    "leyden.trainer.components.loggers.tensorboard",
    "leyden.trainer.components.tasks.classification",
    "leyden.trainer.sweep.results",
)
"""What else most commands import: once for all of them."""
_CLONE_NEWNET, _CLONE_NEWNS = 0x40000000, 0x20000  # sched.h
_MS_SLAVE, _MS_REC, _MNT_DETACH = 1 << 19, 1 << 14, 2  # sys/mount.h


def import_ahead() -> None:
    """Import what most commands need."""
    for module in _IMPORTED:
        import_module(module)


def main() -> None:
    import_ahead()
    own = _folders()
    started = serve(int(sys.argv[1]), int(sys.argv[2]))
    if _folders() != own:
        sys.path[:] = [*_folders(), *(folder for folder in sys.path if folder not in own)]
    namespace = os.environ.pop(NAMESPACE, None)
    if namespace is not None:
        _enter(namespace)
    run_forked(lambda: _run(started))


def _run(started: str) -> None:
    if started.endswith(".py"):
        sys.argv[0] = started
        sys.path.insert(0, str(Path(started).parent))
        runpy.run_path(started, run_name="__main__")
    else:
        if started == "pytest":
            sys.path.insert(0, os.getcwd())
        runpy.run_module(started, run_name="__main__", alter_sys=True)


def _enter(namespace: str) -> None:
    """As `ip netns exec` does: /sys shows the cards of the namespace, too."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/var/run/netns/{namespace}") as file:
        done = [libc.setns(file.fileno(), _CLONE_NEWNET), libc.unshare(_CLONE_NEWNS)]
    done += [
        libc.mount(b"", b"/", b"none", _MS_SLAVE | _MS_REC, None),
        libc.umount2(b"/sys", _MNT_DETACH),
        libc.mount(namespace.encode(), b"/sys", b"sysfs", 0, None),
    ]
    assert not any(done), os.strerror(ctypes.get_errno())


def _folders() -> list[str]:
    return [os.path.abspath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]


if __name__ == "__main__":
    main()
