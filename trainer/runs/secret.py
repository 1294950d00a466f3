"""The secret of a run on several nodes: a file in its folder, which only its owner can read.

On one node there is no such file: the agent draws a secret at each start and gives it to its own processes.
"""

import hashlib
import os
import secrets
import time
from contextlib import suppress
from pathlib import Path

from ..base.errors import ConfigError, refuse
from ..base.handshake import SECRET, SECRET_BYTES, new_secret
from ..base.paths import shorten_path
from ..base.regular_file import NotRegularFile, open_regular

FILE = "secret"
GIVE_SECRET = f"{SECRET}=$(openssl rand -hex {SECRET_BYTES}), the same in the environment of all ranks"
_VISIBLE_S = 5.0
"""Time for a network file system to show what another node has written."""


def shared_secret(run_dir: Path) -> bytes:
    """The secret of a run; created by the first of its nodes that asks.

    Raises:
        ConfigError: the file cannot be written or read, is damaged, or others may read it.
    """
    path = run_dir / FILE
    try:
        if not os.path.lexists(path):
            _create(path)
        return _read(path)
    except OSError as error:
        raise _refuse_secret(path, f"the run's secret cannot be kept here: {error.strerror or error}") from None


def folder_mark(run_dir: Path) -> str:
    """A text that no other run folder has, from which the secret cannot be computed. Raises as `shared_secret`."""
    return hashlib.sha256(b"leyden/folder\0" + shared_secret(run_dir)).hexdigest()


def has_mark(run_dir: Path, mark: str) -> bool:
    """Whether this is the folder of that mark. Raises as `shared_secret`."""
    return os.path.lexists(run_dir / FILE) and folder_mark(run_dir) == mark


def given_secret() -> bytes | None:
    """The secret that all processes of a run were given in LEYDEN_SECRET by what has started them; None: there is none.

    Raises:
        ConfigError: it is no secret.
    """
    text = os.environ.get(SECRET)
    if not text:
        return None
    try:
        secret = bytes.fromhex(text)
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise refuse(SECRET, f"must be {2 * SECRET_BYTES} hexadecimal digits", remedy=GIVE_SECRET)
    return secret


def _create(path: Path) -> None:
    """Write a new secret, unless there is one by now."""
    # complete before it has its name: another node may read it at once
    temporary = path.with_name(f".{FILE}-{secrets.token_hex(8)}")
    _write(temporary)
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        with suppress(FileExistsError):
            _write(path)
    finally:
        temporary.unlink()


def _write(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w") as file:
        file.write(new_secret().hex() + "\n")
        file.flush()
        os.fsync(descriptor)


def _read(path: Path) -> bytes:
    end = time.monotonic() + _VISIBLE_S
    while True:
        secret = _content(path)
        if secret is not None:
            return secret
        if time.monotonic() > end:
            raise _refuse_secret(path, "the run's secret is damaged")
        time.sleep(0.05)


def _content(path: Path) -> bytes | None:
    """The secret in the file; None where it is incomplete or not visible yet."""
    try:
        with open_regular(path, follow_links=False) as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(2 * SECRET_BYTES + 2)
    except FileNotFoundError:
        return None
    except NotRegularFile:
        raise _refuse_secret(path, "the run's secret is no regular file") from None
    if mode & 0o077:
        raise _refuse_secret(path, f"others may read the run's secret (mode {mode & 0o777:04o})")
    if len(text) != 2 * SECRET_BYTES + 1:
        return None
    try:
        return bytes.fromhex(text.decode().strip())
    except ValueError:
        return None


def _refuse_secret(path: Path, text: str) -> ConfigError:
    remedy = "remove the file, and start all nodes again; a run on several nodes needs a folder with file modes"
    return refuse("RUN", text, shorten_path(path), remedy)
