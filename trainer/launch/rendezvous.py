"""Rendezvous of the agents of several nodes: its address, and what each node must have in common with the others."""

import hashlib
import socket
from dataclasses import dataclass
from pathlib import Path

from ..base.errors import refuse
from ..base.versions import versions
from ..runs.folder import CHANGES, FROZEN

PROTOCOL = "rendezvous"
"""Protocol of the connections between agents."""


class RendezvousError(Exception):
    """The agents did not all join, or lost one another.

    Args:
        code: the exit code.
    """

    def __init__(self, text: str, code: int = 1):
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Rendezvous:
    """The address that all agents of a run are given."""

    host: str
    port: int
    """0: node 0 takes a free one and prints it."""
    timeout_s: float
    """Time that the agents have to join."""
    replaceable: bool = True
    """Whether the user can start another agent in place of a lost one."""

    @classmethod
    def parse_hello(cls, text: str | None, timeout_s: float) -> "Rendezvous":
        """
        Raises:
            ConfigError: it is not HOST:PORT, or the host is unknown.
        """
        example = "--rendezvous HOST:29400, the same on every node; HOST is one of them"
        host, colon, port = (text or "").rpartition(":")
        if not (host and colon and port.isdigit() and int(port) < 2**16):
            raise refuse("--rendezvous", "needs the address of the rendezvous", text or ..., example)
        host = host.removeprefix("[").removesuffix("]")
        try:
            socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            raise refuse("--rendezvous", f"this host cannot be found: {error.strerror}", text, example) from None
        return cls(host, int(port), timeout_s)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class NodeInfo:
    """Hostname of a node, and what must be the same on all nodes: the config and the software."""

    host: str
    config: str
    """Hash of config.yaml and resume.yaml."""
    versions: dict[str, str]

    @classmethod
    def of(cls, run_dir: Path) -> "NodeInfo":
        found = versions()
        # a checkout's revision is "-dirty" for files that do not matter
        found.pop("git", None)
        return cls(socket.gethostname(), _fingerprint(run_dir), found)


def mismatch(nodes: list[NodeInfo]) -> str | None:
    """What differs between nodes and must not, and on which; None where they agree."""
    if len({node.config for node in nodes}) > 1:
        listed = "".join(f"\n  node {n} ({node.host}): {node.config}" for n, node in enumerate(nodes))
        return f"the nodes were given different runs (hashes of config.yaml and resume.yaml):{listed}"
    names = sorted({name for node in nodes for name in node.versions})
    lines = [
        f"\n  {name}: "
        + ", ".join(f"{node.versions.get(name)} on node {n} ({node.host})" for n, node in enumerate(nodes))
        for name in names
        if len({node.versions.get(name) for node in nodes}) > 1
    ]
    return f"the nodes have different software:{''.join(lines)}" if lines else None


def _fingerprint(run_dir: Path) -> str:
    digest = hashlib.sha256()
    for name in (FROZEN, CHANGES):
        path = run_dir / name
        digest.update(f"{name}\n".encode() + (path.read_bytes() if path.exists() else b""))
    return digest.hexdigest()[:16]
