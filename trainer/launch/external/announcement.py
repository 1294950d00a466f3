"""Announcement: what rank 0 has made of the command, signed by a secret, for the processes that wait for it."""

import hmac
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ON_ALL_HOSTS = "hydra.run.dir=FOLDER on a file system of all hosts"
"""The remedy where a process does not see the run's folder."""
_FIELDS = {
    "folder": str, "verb": str, "checkpoint": str, "address": str, "port": int, "mark": str, "config": str, "code": int,
    "signature": str,
}  # fmt: skip
_CONTEXT = b"leyden/announcement\0"
"""What is signed besides: no signature of this secret in another protocol is one of an announcement."""


@dataclass(frozen=True)
class Announcement:
    """The run of all ranks, or the exit code of all where there is none.

    Args:
        folder: of the run; "" where none is started.
        verb: train | resume.
        checkpoint: to start from; "": the newest whole one.
        address, port: of the store of the run's processes.
        mark: of the folder, by which a process recognizes it.
        config: content of the run's config.yaml, for those that do not see the folder; "": all have to.
        code: exit code, where no run is started.
    """

    folder: str = ""
    verb: str = ""
    checkpoint: str = ""
    address: str = ""
    port: int = 0
    mark: str = ""
    config: str = ""
    code: int = 0
    signature: str = ""

    def sign(self, secret: bytes) -> "Announcement":
        return replace(self, signature=self._signature(secret))

    def is_signed_by(self, secret: bytes) -> bool:
        return hmac.compare_digest(self.signature, self._signature(secret))

    def _signature(self, secret: bytes) -> str:
        return hmac.new(secret, _CONTEXT + replace(self, signature="").encode(), "sha256").hexdigest()

    def encode(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def decode(cls, message: bytes) -> "Announcement":
        """
        Raises:
            ValueError: it is none.
        """
        values: dict[str, Any] = json.loads(message)
        if not isinstance(values, dict) or {name: type(value) for name, value in values.items()} != _FIELDS:
            raise ValueError("not an announcement")
        return cls(**values)

    @property
    def run_dir(self) -> Path:
        return Path(self.folder)
