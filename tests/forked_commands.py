"""Commands of Leyden's that tests start, forked by a fork server instead of started in interpreters of their own.

They are processes of their own all the same: arguments, environment, descriptors, working directory, signals and exit
codes are those that `subprocess` was asked for. What cannot be forked is started as ever: other programs, a prefix such
as `ip netns exec`, other values of variables that libraries read when they are loaded.
"""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from leyden.trainer.launch.child_process import ProcessSpec
from leyden.trainer.launch.fork_server import ForkServer

COLD = "LEYDEN_TEST_COLD"
"""Environment variable of a command that is to start in an interpreter of its own."""
_READ_WHEN_LOADED = re.compile(
    f"(PYTHON|LD_|MALLOC_|GLIBC_|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|TORCH|LC_|LANG|TZ|TMPDIR|{COLD})"
)


_started = vars(ForkServer)["started"].__func__


def start_server(environment: Mapping[str, str], kind: type[ForkServer] = ForkServer) -> ForkServer:
    """A fork server of the caller's own."""
    return _started(kind, environment)


class SessionServer(ForkServer):
    """Fork server of the test session, which outlasts what uses it."""

    def close(self) -> None:
        if ForkServer.prepared is self:  # by a sweep in this process: the next run may have another environment
            ForkServer.prepared = None

    def end(self) -> None:
        super().close()


class ForkedCommand(subprocess.Popen[Any]):
    """`subprocess.Popen` that has the fork server of the session start what it can start."""

    server: SessionServer | None = None
    _lock = threading.Lock()

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any,
                       env: Any, startupinfo: Any, creationflags: Any, shell: Any, *rest: Any) -> None:  # fmt: skip
        streams, (_, gid, gids, uid, umask, session, *_) = rest[:6], rest[6:]
        environment = dict(os.environ) if env is None else dict(env)
        plain = not (executable or preexec_fn or pass_fds or shell or gid or gids or uid) and umask == -1
        named = _module(args) if plain and _same_when_loaded(environment) else None
        if named is None:
            super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo,  # pyright: ignore
                                   creationflags, shell, *rest)  # fmt: skip
            return
        stdin, _, _, stdout, _, errors = streams
        ours = [number if own == -1 else own for number, own in enumerate((stdin, stdout, errors))]
        spec = ProcessSpec(*named, environment, new_session=bool(session))
        with self._lock:
            self.pid = session_server().fork_with(spec, ours, str(cwd or ".")).pid
        self._child_created = True
        self._close_pipe_fds(*streams)  # pyright: ignore


def session_server() -> SessionServer:
    """The session's fork server, started where it is first needed."""
    if ForkedCommand.server is None:
        server = start_server(os.environ, SessionServer)
        assert isinstance(server, SessionServer)
        ForkedCommand.server = server
    return ForkedCommand.server


def _module(command: Any) -> tuple[str, Sequence[str]] | None:
    """Module and arguments of `python [-P] -m leyden...`; None for another command."""
    if not isinstance(command, Sequence) or isinstance(command, str):
        return None
    words = [os.fspath(word) for word in command]
    flags = words[1 : words.index("-m")] if "-m" in words else ["?"]
    if words[0] != sys.executable or flags not in ([], ["-P"]):
        return None
    name, *arguments = words[words.index("-m") + 1 :]
    if name.split(".")[0] != "leyden":
        return None
    return ("leyden.__main__" if name == "leyden" else name), arguments


def _same_when_loaded(environment: Mapping[str, str]) -> bool:
    def read(variables: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in variables.items() if _READ_WHEN_LOADED.match(name)}

    return read(environment) == read(os.environ if ForkedCommand.server is None else ForkedCommand.server.environment)


def _server_for(environment: Mapping[str, str]) -> ForkServer:
    """The session's fork server, for the workers of a run in this process; one of their own where they import from
    other folders than it does."""
    server = session_server()
    same = environment.get("PYTHONPATH") == server.environment.get("PYTHONPATH")
    return server if same else start_server(environment)


@contextmanager
def forked_commands() -> Iterator[None]:
    """Context in which one fork server forks commands of Leyden's, and the workers of runs in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", ForkedCommand)
        patch.setattr(ForkServer, "started", _server_for)
        try:
            yield
        finally:
            if ForkedCommand.server is not None:
                ForkedCommand.server.end()
                ForkedCommand.server = None
