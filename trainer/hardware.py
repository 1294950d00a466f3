"""The schema of the hardware in a topology: devices, links, fabric, hosts, and the keys of Slurm.

None is what is not known, and what a run that was frozen before there was a key says of it.
"""

from typing import Annotated, Literal

from pydantic import Field

from .strict import Count, Strict

Index = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
LinkKind = Literal["pcie2", "pcie3", "pcie4", "pcie5", "pcie6", "nvlink", "qpi", "upi", "infinity_fabric"]


class PeakTflops(Strict):
    """Dense arithmetic that a device could do at best, 10^12 operations a second."""

    fp32: Positive | None = None
    tf32: Positive | None = None
    fp16: Positive | None = None
    bf16: Positive | None = None


class Device(Strict):
    """What one worker computes on."""

    kind: Literal["auto", "cpu", "cuda"]
    name: str | None = None
    peak_tflops: PeakTflops = PeakTflops()
    memory_gb: Positive | None = None
    memory_gb_s: Positive | None = None
    sockets: list[Index] | None = None
    """Socket of each device of a node, in the order of the devices."""


class Link(Strict):
    """What two devices send each other data through."""

    kind: LinkKind | None = None
    gb_s: Positive | None = None
    latency_us: Positive | None = None


class Links(Strict):
    in_node: Link = Link()
    across_sockets: Link = Link()


class Fabric(Strict):
    """The network between nodes."""

    kind: Literal["infiniband", "roce", "ethernet"] | None = None
    rate_gbit_s: Positive | None = None
    rails: Count | None = None
    gb_s: Positive | None = None
    latency_us: Positive | None = None
    adapters: list[Annotated[str, Field(pattern=r"^[\w.-]+(:\d+)?$")]] = Field(default_factory=list)
    interface: Annotated[str, Field(pattern=r"^[^\s,/^=]{1,15}$")] | None = None
    gid_index: Index | None = None
    gpudirect: Literal["LOC", "PIX", "PXB", "PHB", "SYS"] | None = None
    timeout: Annotated[int, Field(ge=1, le=22)] | None = None
    retry_count: Annotated[int, Field(ge=0, le=7)] | None = None
    mtu: Count | None = None
    allow_tcp: bool = False


class Host(Strict):
    sockets: Count | None = None
    cores_per_socket: Count | None = None
    memory_gb: Positive | None = None


class Slurm(Strict):
    """What a job asks of Slurm."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time_min: Count | None = None
    gres: str | None = None
    exclude: str | None = None
    signal_s: Annotated[int, Field(ge=1, le=65535)] = 120
    """How long before a job's time is up Slurm tells its run to save and stop; it may say so a minute earlier."""
    setup: list[str] = Field(default_factory=list)
    sbatch: list[str] = Field(default_factory=list)
