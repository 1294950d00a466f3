"""What agents of several nodes tell each other of themselves, and where they meet."""

import array
import fcntl
import hashlib
import socket
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import refuse
from ..versions import versions
from .processes import Exit
from .records import Record
from .roles import Role

_SIOCGIFCONF = 0x8912
_IFREQ = 40


class NoMeeting(Exception):
    """The agents did not come together, or came apart.

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
    wait_s: float
    """How long the agents of the other nodes are waited for."""
    replaceable: bool = True
    """Whether somebody can start another agent here in place of one that is gone."""

    @classmethod
    def parsed(cls, text: str | None, wait_s: float) -> "Rendezvous":
        """
        Raises:
            ConfigError: it is not HOST:PORT, or nobody knows the host.
        """
        example = "--rendezvous HOST:29400, the same on every node; HOST is one of them"
        host, colon, port = (text or "").rpartition(":")
        if not (host and colon and port.isdigit() and int(port) < 2**16):
            raise refuse("--rendezvous", "needs the address at which the nodes meet", text or ..., example)
        host = host.removeprefix("[").removesuffix("]")
        try:
            socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            raise refuse("--rendezvous", f"this host cannot be found: {error.strerror}", text, example) from None
        return cls(host, int(port), wait_s)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class About:
    """What must be the same on all nodes, and the name by which a node is known."""

    host: str
    config: str
    versions: dict[str, str]

    @classmethod
    def of(cls, run_dir: Path) -> "About":
        found = versions()
        # a checkout's revision says "-dirty" of files that do not matter
        found.pop("git", None)
        return cls(socket.gethostname(), _fingerprint(run_dir), found)

    @classmethod
    def read(cls, said: Any) -> "About | None":
        """What another node says of itself; None where it is no agent that speaks."""
        try:
            return cls(str(said["host"]), str(said["config"]), {str(n): str(v) for n, v in said["versions"].items()})
        except (TypeError, KeyError, AttributeError):
            return None


def disagreement(nodes: list[About]) -> str | None:
    """What differs between nodes that must not, and on which; None where they agree."""
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
    for name in ("config.yaml", "resume.yaml"):
        path = run_dir / name
        digest.update(f"{name}\n".encode() + (path.read_bytes() if path.exists() else b""))
    return digest.hexdigest()[:16]


def address_towards(host: str) -> str:
    """The address of this machine from which it reaches a host.

    Raises:
        OSError: nobody knows the host, or no route leads to it.
    """
    family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # of UDP: a question to the routing table, nothing is sent
        return probe.getsockname()[0]


def interface_towards(host: str) -> str | None:
    """The network interface on which this machine reaches a host (or is that host); None where it is not plain."""
    try:
        return _interfaces().get(address_towards(host))
    except OSError:
        return None


def address_of_interface(name: str) -> str | None:
    """The first IPv4 address of a network interface of this machine."""
    return next((address for address, interface in _interfaces().items() if interface == name), None)


def _interfaces() -> dict[str, str]:
    """IPv4 address to the name of its interface."""
    held = array.array("B", bytes(_IFREQ * 256))
    address, _ = held.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        answer = fcntl.ioctl(asked.fileno(), _SIOCGIFCONF, struct.pack("iL", len(held), address))
    filled = struct.unpack("iL", answer)[0]
    entries = [held[start : start + _IFREQ].tobytes() for start in range(0, filled, _IFREQ)]
    return {socket.inet_ntoa(entry[20:24]): entry[:16].split(b"\0")[0].decode().split(":")[0] for entry in entries}


def exits_as_data(exits: list[Exit]) -> list[dict[str, Any]]:
    return [asdict(ended) for ended in exits]


def exits_from_data(data: list[dict[str, Any]], clock_ahead: float) -> list[Exit]:
    """Exits that another node saw, by this machine's clock."""
    return [_exit(item, clock_ahead) for item in data]


def _exit(item: dict[str, Any], ahead: float) -> Exit:
    record = item["record"]
    if record is not None:
        record = Record(**{**record, "time": record["time"] + ahead})
    return Exit(Role(**item["role"]), item["code"], item["time"] + ahead, item["ended_by_agent"], record)
