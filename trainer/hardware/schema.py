"""The schema of the hardware in a topology: devices, links, fabric, hosts, and the keys of Slurm.

None means unknown.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=1)]
RESUMABLE = "resumable"
"""Mark in the annotation of a key that `leyden resume` may change. A key without it is part of a run's identity."""


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
    price_per_hour: Positive | None = None
    """Price in a currency of the user's."""
    watts: Positive | None = None
    """Watts at full load."""


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


class Collective(Strict):
    """Measured times of a collective, as `leyden doctor --write` keeps them."""

    name: Literal["all_reduce", "all_to_all"]
    scope: Literal["node", "all"]
    """Over the devices of one node, or over those of all nodes."""
    workers: Annotated[int, Field(ge=2)]
    bytes: Annotated[list[Count], Field(min_length=1)]
    """Bytes of each worker's tensor, in increasing order."""
    ms: Annotated[list[Positive], Field(min_length=1)]
    """Time by these sizes."""

    @model_validator(mode="after")
    def _pairs(self) -> "Collective":
        if len(self.bytes) != len(self.ms) or self.bytes != sorted(set(self.bytes)):
            raise ValueError("bytes must increase, and ms must have a time for each of them")
        return self


class Host(Strict):
    sockets: Count | None = None
    cores_per_socket: Count | None = None
    memory_gb: Positive | None = None
    price_per_hour: Positive | None = None
    """Price of a node without its devices."""
    watts: Positive | None = None
    """Watts of a node without its devices, at full load."""


class Slurm(Strict):
    """Options of a Slurm job, by the names of sbatch, srun and pyxis."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time_min: Count | None = None
    gres: str | None = None
    gpus_per_node: int | str | None = None
    gpus_per_task: int | str | None = None
    """GPUs of the one task of a node, the agent that starts its workers."""
    mem: int | str | None = None
    cpus_per_task: Count | None = None
    exclude: str | None = None
    dependency: str | None = None
    reservation: str | None = None
    array_parallelism: Count | None = None
    """Trials of a sweep that run at the same time."""
    job_name: str | None = None
    comment: str | None = None
    switches: int | str | None = None
    signal_s: Annotated[int, Field(ge=1, le=65535)] = 120
    """Seconds before the job's time limit at which Slurm signals the run to save; up to a minute earlier."""
    mpi: str = "none"
    container_image: str | None = None
    container_mounts: list[str] = Field(default_factory=list)
    container_workdir: str | None = None
    wrapper: list[str] = Field(default_factory=list)
    """Words before the command of each agent."""
    setup: list[str] = Field(default_factory=list)
    sbatch: list[str] = Field(default_factory=list)
    srun: list[str] = Field(default_factory=list)

    @property
    def own_interpreter(self) -> bool:
        """Whether the agents run in a container or by a wrapper, where paths of the login node mean nothing."""
        return self.container_image is not None or bool(self.wrapper)


class Kubernetes(Strict):
    """What a manifest has beside the run's command, by Kubernetes' own names."""

    name: Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,50}[a-z0-9])?$")] | None = None
    namespace: str | None = None
    image: str | None = None
    imagePullSecrets: list[dict[str, Any]] = Field(default_factory=list)
    resources: dict[str, Any] | None = None
    volumes: list[dict[str, Any]] = Field(default_factory=list)
    volumeMounts: list[dict[str, Any]] = Field(default_factory=list)
    env: list[dict[str, Any]] = Field(default_factory=list)
    nodeSelector: dict[str, str] | None = None
    tolerations: list[dict[str, Any]] = Field(default_factory=list)
    serviceAccountName: str | None = None
    terminationGracePeriodSeconds: Count = 120
    backoffLimit: Annotated[int, Field(ge=0)] = 10
    runtimeRef: str = "torch-distributed"


class Topology(Strict):
    """The available hardware, and what starts workers on it."""

    launcher: Literal["local", "node", "slurm", "external"]
    nodes: Count
    devices_per_node: Count
    device: Device
    max_restarts: Annotated[int, Field(ge=0)] = 0
    start_method: Literal["forkserver", "spawn"] = "forkserver"
    on_existing: Literal["refuse", "resume"] = "refuse"
    server_placement: Literal["one_a_node", "first_node"] = "one_a_node"
    links: Links = Links()
    fabric: Fabric = Fabric()
    host: Host = Host()
    collectives: list[Collective] = Field(default_factory=list)
    slurm: Slurm = Slurm()
    kubernetes: Kubernetes = Kubernetes()

    @property
    def workers(self) -> int:
        return self.nodes * self.devices_per_node

    @property
    def in_pods(self) -> bool:
        """Whether pods of Kubernetes are the nodes, and not the machine that composes the config."""
        return self.kubernetes.image is not None

    @property
    def usual_servers(self) -> int:
        """Default number of parameter servers."""
        return 1 if self.server_placement == "first_node" else self.nodes

    def server_node(self, server: int) -> int:
        """The node that a parameter server runs on."""
        return 0 if self.server_placement == "first_node" else server % self.nodes
