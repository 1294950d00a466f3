"""The schema of the hardware in a topology: devices, links, fabric, hosts, and the keys of Slurm.

None means unknown; it is also the default for runs frozen before a key existed.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]


class Strict(BaseModel):
    """Base of schemas: unknown keys and values of other types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Index = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
LinkKind = Literal["pcie2", "pcie3", "pcie4", "pcie5", "pcie6", "nvlink", "qpi", "upi", "infinity_fabric"]


class PeakTflops(Strict):
    """Peak dense arithmetic of a device in 10^12 operations a second, by format."""

    fp32: Positive | None = None
    tf32: Positive | None = None
    fp16: Positive | None = None
    bf16: Positive | None = None


class Device(Strict):
    """The device of one worker."""

    kind: Literal["auto", "cpu", "cuda"]
    name: str | None = None
    peak_tflops: PeakTflops = PeakTflops()
    memory_gb: Positive | None = None
    memory_gb_s: Positive | None = None
    sockets: list[Index] | None = None
    """Socket of each device of a node, in the order of the devices."""


class Link(Strict):
    """The link between two devices."""

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
    """Options of a Slurm job."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time_min: Count | None = None
    gres: str | None = None
    exclude: str | None = None
    signal_s: Annotated[int, Field(ge=1, le=65535)] = 120
    """Seconds before the job's time limit at which Slurm signals the run to save; up to a minute earlier."""
    setup: list[str] = Field(default_factory=list)
    sbatch: list[str] = Field(default_factory=list)


class Topology(Strict):
    """The available hardware, and what starts workers on it."""

    launcher: Literal["local", "node", "slurm"]
    nodes: Count
    devices_per_node: Count
    device: Device
    # Defaults for runs frozen before these keys existed.
    max_restarts: Annotated[int, Field(ge=0)] = 0
    server_placement: Literal["one_a_node", "first_node"] = "one_a_node"
    links: Links = Links()
    fabric: Fabric = Fabric()
    host: Host = Host()
    slurm: Slurm = Slurm()

    @property
    def workers(self) -> int:
        return self.nodes * self.devices_per_node

    @property
    def usual_servers(self) -> int:
        """Default number of parameter servers."""
        return 1 if self.server_placement == "first_node" else self.nodes

    def server_node(self, server: int) -> int:
        """The node that a parameter server runs on."""
        return 0 if self.server_placement == "first_node" else server % self.nodes
