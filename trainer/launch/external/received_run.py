"""The run that rank 0 has announced, as another rank receives it: in the folder that both see, or with its config."""

import os
from dataclasses import dataclass
from pathlib import Path

from ...base.atomic_file import write_atomically
from ...base.errors import refuse
from ...base.handshake import SECRET
from ...base.paths import shorten_path
from ...runs.folder import CHANGES, FROZEN, Claim
from ...runs.secret import GIVE_SECRET, given_secret, has_mark, shared_secret
from .announcement import ON_ALL_HOSTS, Announcement

_KEY = "hydra.run.dir"


@dataclass(frozen=True)
class ReceivedRun:
    """An announcement that this process believes.

    Attributes:
        secret: of the run.
        sees_folder: whether the run folder is rank 0's.
        claim: of the folder, where this process has made it.
    """

    secret: bytes
    sees_folder: bool
    claim: Claim | None = None


def receive_run(run: Announcement) -> ReceivedRun:
    """The announced run, whose frozen config is in its folder then.

    Raises:
        ConfigError: this host does not see the folder and may not do without, or the announcement is forged.
    """
    sees_folder = has_mark(run.run_dir, run.mark)
    secret = given_secret() if run.config else shared_secret(run.run_dir) if sees_folder else None
    if secret is None and run.config:
        raise refuse(SECRET, "is set for rank 0, and not for this one", remedy=GIVE_SECRET)
    if secret is None:
        text = "rank 0 has frozen the run there, and this host does not see it"
        raise refuse(_KEY, text, shorten_path(run.run_dir), f"{ON_ALL_HOSTS}, or {GIVE_SECRET}")
    if not run.is_signed_by(secret):
        key = SECRET if run.config else _KEY
        text = "the run is announced by a process that does not know this secret: all ranks need the same"
        raise refuse(
            key, text, ... if run.config else shorten_path(run.run_dir), GIVE_SECRET if run.config else ON_ALL_HOSTS
        )
    if sees_folder:
        return ReceivedRun(secret, sees_folder)
    if run.verb != "train":
        text = "every rank reads the checkpoint from which a run goes on, and this host does not see rank 0's folder"
        raise refuse(_KEY, text, shorten_path(run.run_dir), ON_ALL_HOSTS)
    return ReceivedRun(secret, sees_folder, _folder_with(run.config, run.run_dir))


def _folder_with(config: str, folder: Path) -> Claim | None:
    """Write the config into a folder of this host. Returns what to remove where nothing begins, if it was made here.

    Raises:
        ConfigError: it cannot be made, or belongs to another user or another run.
    """
    missing = tuple(parent for parent in folder.parents if not parent.exists())
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir(mode=0o700)
            claim = Claim(folder, missing)
        except FileExistsError:  # by another rank of this host, or an earlier start
            claim = None
        if folder.stat().st_uid != os.getuid():
            raise refuse(_KEY, "is another user's on this host", shorten_path(folder), f"{_KEY}=NEW_FOLDER")
        file = folder / FROZEN
        if (folder / CHANGES).exists() or (file.exists() and file.read_text(encoding="utf-8") != config):
            raise refuse(_KEY, "holds another run on this host", shorten_path(folder), f"{_KEY}=NEW_FOLDER")
        write_atomically(file, config)
    except OSError as error:
        text = f"this host does not see rank 0's folder, and cannot make one there: {error.strerror or error}"
        raise refuse(_KEY, text, shorten_path(folder), f"{_KEY}=FOLDER that each host can make, or all share") from None
    return claim
