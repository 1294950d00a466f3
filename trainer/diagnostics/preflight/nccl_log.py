"""Parser of NCCL's log (NCCL_DEBUG=INFO, subsystems INIT and NET): the chosen network."""

import re
from dataclasses import dataclass

_CHOSEN = re.compile(r"NCCL INFO Using network (.+?)\s*$", re.MULTILINE)
_ADAPTERS = re.compile(r"NCCL INFO NET/IB : Using (\[0\].*)$", re.MULTILINE)
_ADAPTER = re.compile(r"\[\d+\]\s*([\w.-]+:\d+)/(?:IB|RoCE)")
_SOCKETS = re.compile(r"NCCL INFO NET/(?:Fast)?Socket : Using (\[0\].*)$", re.MULTILINE)
_INTERFACE = re.compile(r"\[\d+\]([^\s:]+):")
_CHANNEL = re.compile(r"via NET/([^/\n]+)/\d+(?:\(\d+\))?(/GDRDMA)?")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is (\w+)")

_TCP = ("Socket", "FastSocket")
_TCP_PROVIDERS = ("tcp", "sockets")


@dataclass(frozen=True)
class Network:
    """NCCL's transport between nodes."""

    name: str
    """IB (also for RoCE), Socket, or the name of a plugin's network, such as IBext_v8 or AWS Libfabric."""
    adapters: tuple[str, ...] = ()
    """Ports of RDMA adapters: mlx5_0:1."""
    interfaces: tuple[str, ...] = ()
    """Network interfaces for sockets."""
    gpudirect: bool | None = None
    """Whether adapters access GPU memory directly; None without a logged connection between nodes."""
    provider: str | None = None
    """Provider of the libfabric plugin: efa, cxi, tcp."""

    @property
    def tcp(self) -> bool:
        return self.name in _TCP or self.provider in _TCP_PROVIDERS


def network(log: str) -> Network | None:
    """The network chosen by one process; None if it is not in its log.

    `Using network` decides: adapters are also listed if NCCL_NET or a plugin selects another network. Versions before
    2.5 do not write that line, and use adapters if there are any.
    """
    ports = tuple(port for line in _ADAPTERS.findall(log) for port in _ADAPTER.findall(line))
    names = tuple(name for line in _SOCKETS.findall(log) for name in _INTERFACE.findall(line))
    channels, chosen, providers = _CHANNEL.findall(log), _CHOSEN.findall(log), _PROVIDER.findall(log)
    name = chosen[-1] if chosen else channels[-1][0] if channels else "IB" if ports else "Socket" if names else None
    if name is None:
        return None
    gpudirect = any(direct for _, direct in channels) if channels else None
    provider = providers[-1] if providers else None
    return Network(name, tuple(dict.fromkeys(ports)), tuple(dict.fromkeys(names)), gpudirect, provider)
