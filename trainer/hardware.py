"""The schema of the hardware in a topology: devices, links, fabric, hosts, and the keys of Slurm. Null: not known."""

from typing import Annotated, Literal

from pydantic import Field

from .strict import Count, Strict

Index = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
LinkKind = Literal["pcie2", "pcie3", "pcie4", "pcie5", "pcie6", "nvlink", "qpi", "upi", "infinity_fabric"]


class PeakTflops(Strict):
    """Dense arithmetic that a device could do at best, 10^12 operations a second."""

    fp32: Positive | None
    tf32: Positive | None
    fp16: Positive | None
    bf16: Positive | None


class Device(Strict):
    """What one worker computes on."""

    kind: Literal["auto", "cpu", "cuda"]
    name: str | None
    peak_tflops: PeakTflops
    memory_gb: Positive | None
    memory_gb_s: Positive | None
    sockets: list[Index] | None
    """Socket of each device of a node, in the order of the devices."""


class Link(Strict):
    """What two devices send each other data through."""

    kind: LinkKind | None
    gb_s: Positive | None
    latency_us: Positive | None


class Links(Strict):
    in_node: Link
    across_sockets: Link


class Fabric(Strict):
    """The network between nodes."""

    kind: Literal["infiniband", "roce", "ethernet"] | None
    rate_gbit_s: Positive | None
    rails: Count | None
    gb_s: Positive | None
    latency_us: Positive | None
    adapters: list[Annotated[str, Field(pattern=r"^[\w.-]+(:\d+)?$")]]
    interface: Annotated[str, Field(pattern=r"^[^\s,/^=]{1,15}$")] | None
    gid_index: Index | None
    gpudirect: Literal["LOC", "PIX", "PXB", "PHB", "SYS"] | None
    timeout: Annotated[int, Field(ge=1, le=22)] | None
    retry_count: Annotated[int, Field(ge=0, le=7)] | None
    mtu: Count | None


class Host(Strict):
    sockets: Count | None
    cores_per_socket: Count | None
    memory_gb: Positive | None


class Slurm(Strict):
    """What a job asks of Slurm."""

    partition: str | None
    account: str | None
    qos: str | None
    constraint: str | None
    time_min: Count | None
    gres: str | None
    exclude: str | None
    setup: list[str]
    sbatch: list[str]
