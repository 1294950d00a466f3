"""Commands of Leyden's that tests start, forked by a fork server instead of started in interpreters of their own.

They are processes of their own all the same: arguments, environment, descriptors, working directory, signals and exit
codes are those that `subprocess` was asked for. So are the workers of pools. What cannot be forked is started as ever:
other programs, also as a prefix except `ip netns exec`, other values of variables that libraries read when they are
loaded.
"""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from session_fork_server import NAMESPACE

from leyden.trainer.launch.child_process import ProcessSpec
from leyden.trainer.launch.fork_server import ForkServer

COLD = "LEYDEN_TEST_COLD"
"""Environment variable of a command that is to start in an interpreter of its own."""
_HERE = Path(__file__).parent
_SCRIPT = str(_HERE / "pool_worker.py")
_READ_WHEN_LOADED = re.compile(
    f"(PYTHON(?!PATH$)|LD_|MALLOC_|GLIBC_|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|TORCH(?!ELASTIC)|LC_|LANG|TZ|TMPDIR|{COLD})"
)


_started = vars(ForkServer)["start_server"].__func__


def start_server(environment: Mapping[str, str], kind: type[ForkServer] = ForkServer) -> ForkServer:
    """A fork server of the caller's own."""
    return _started(kind, environment)


class SessionServer(ForkServer):
    """Fork server of the test session, which outlasts what uses it."""

    program: ClassVar[Sequence[str]] = (str(_HERE / "session_fork_server.py"),)

    def close(self) -> None:
        if ForkServer.prepared is self:  # by a sweep in this process: the next run may have another environment
            ForkServer.prepared = None

    def kill(self) -> None:
        """Nothing: it outlasts the worker group that ends."""

    def end(self) -> None:
        super().close()


class ForkedCommand(subprocess.Popen[Any]):
    """`subprocess.Popen` that has the fork server of the session start what it can start."""

    server: SessionServer | None = None
    environment: Mapping[str, str] = {}
    """The session's own: in that of a test the server would end with what is found by the test's variables."""
    _lock = threading.Lock()

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any,
                       env: Any, startupinfo: Any, creationflags: Any, shell: Any, *rest: Any) -> None:  # fmt: skip
        streams, (_, gid, gids, uid, umask, session, *_) = rest[:6], rest[6:]
        environment = dict(os.environ) if env is None else dict(env)
        plain = not (executable or preexec_fn or pass_fds or shell or gid or gids or uid) and umask == -1
        namespace, command = _in_namespace(args)
        named = _module(command) if plain and _same_when_loaded(environment) else None
        if named is None:
            super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo,  # pyright: ignore
                                   creationflags, shell, *rest)  # fmt: skip
            return
        stdin, _, _, stdout, _, errors = streams
        ours = [number if own == -1 else own for number, own in enumerate((stdin, stdout, errors))]
        spec = ProcessSpec(*named, {**environment, **namespace}, new_session=bool(session))
        with self._lock:
            self.pid = session_server().fork_with(spec, ours, str(cwd or ".")).pid
        self._child_created = True
        self._close_pipe_fds(*streams)  # pyright: ignore


def session_server() -> SessionServer:
    """The session's fork server, started where it is first needed."""
    if ForkedCommand.server is None:
        server = start_server(ForkedCommand.environment, SessionServer)
        assert isinstance(server, SessionServer)
        ForkedCommand.server = server
    return ForkedCommand.server


def _in_namespace(command: Any) -> tuple[dict[str, str], Any]:
    """The variable and the command of `ip netns exec NAME COMMAND`; of another command none and itself."""
    if isinstance(command, Sequence) and list(command[:3]) == ["ip", "netns", "exec"]:
        return {NAMESPACE: command[3]}, command[4:]
    return {}, command


def _module(command: Any) -> tuple[str, Sequence[str]] | None:
    """Module and arguments of `python [-P] -m leyden...`, `python -m pytest`, or a pool's script; None for another
    command."""
    if not isinstance(command, Sequence) or isinstance(command, str):
        return None
    words = [os.fspath(word) for word in command]
    if words[:2] == [sys.executable, _SCRIPT]:
        return _SCRIPT, words[2:]
    flags = words[1 : words.index("-m")] if "-m" in words else ["?"]
    if words[0] != sys.executable or flags not in ([], ["-P"]):
        return None
    name, *arguments = words[words.index("-m") + 1 :]
    if name.split(".")[0] not in ("leyden", "pytest"):
        return None
    return ("leyden.__main__" if name == "leyden" else name), arguments


def _same_when_loaded(environment: Mapping[str, str]) -> bool:
    folders = [folder for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder]
    if any(Path(folder, f"{name}customize.py").exists() for folder in folders for name in ("site", "user")):
        return False

    def read(variables: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in variables.items() if _READ_WHEN_LOADED.match(name)}

    return read(environment) == read(ForkedCommand.environment)


@contextmanager
def forked_commands() -> Iterator[None]:
    """Context in which one fork server forks commands of Leyden's, and the workers of runs in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForkedCommand, "environment", dict(os.environ))
        patch.setattr(subprocess, "Popen", ForkedCommand)
        patch.setattr(ForkServer, "start_server", lambda environment: session_server())
        try:
            yield
        finally:
            if ForkedCommand.server is not None:
                ForkedCommand.server.end()
                ForkedCommand.server = None
