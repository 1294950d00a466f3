"""What NCCL's log (NCCL_DEBUG=INFO, subsystems INIT and NET) says of the network that it has chosen."""

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
    """What carries NCCL's data between nodes."""

    name: str
    """NCCL's own: IB (RoCE too), Socket, or that of a plugin, such as IBext_v8 or AWS Libfabric."""
    adapters: tuple[str, ...] = ()
    """Ports of RDMA adapters that it found: mlx5_0:1."""
    interfaces: tuple[str, ...] = ()
    """Network interfaces that its sockets would use."""
    gpudirect: bool | None = None
    """Whether adapters read and write the memory of GPUs; None where no connection between nodes was logged."""
    provider: str | None = None
    """What is below the libfabric plugin: efa, cxi, tcp."""

    @property
    def tcp(self) -> bool:
        return self.name in _TCP or self.provider in _TCP_PROVIDERS


def network(log: str) -> Network | None:
    """The network that one process has chosen; None where its log does not say.

    `Using network` decides: adapters are listed also where NCCL_NET or a plugin makes it take something else. Versions
    before 2.5 do not write that line, and take adapters where they find some.
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
