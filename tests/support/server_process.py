"""A parameter server's process, without the workers of a run: a test sends the requests."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leyden.trainer.base.handshake import SECRET, new_secret
from leyden.trainer.launch.child import AGENT
from leyden.trainer.launch.error_files import ERROR_FILES
from leyden.trainer.launch.store import AgentStore


@contextmanager
def server_process(run_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """Server 0 of a frozen run, killed at the end; its error file is in the run folder. Clients of this process find
    the same store."""
    store = AgentStore()
    store.open()
    variables = {
        AGENT: str(os.getpid()), ERROR_FILES: str(run_dir), "LEYDEN_SERVER": "0", "LEYDEN_SERVERS": "1",
        "MASTER_ADDR": store.host, "MASTER_PORT": str(store.port), SECRET: new_secret().hex(),
    }  # fmt: skip
    command = [sys.executable, "-m", "leyden.trainer.entrypoints.server", str(run_dir)]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MASTER_ADDR", "MASTER_PORT", SECRET):
            patch.setenv(name, variables[name])
        server = subprocess.Popen(command, env={**os.environ, **variables}, stderr=subprocess.PIPE, text=True)
        try:
            yield server
        finally:
            server.kill()
            server.communicate()
            store.close()
