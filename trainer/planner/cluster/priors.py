"""Physical constants of the planner, from conf/planner/priors.yaml: each with its unit and source."""

from functools import cache
from importlib import resources
from typing import Annotated, Generic, Literal, TypeVar

import yaml
from pydantic import Field

from ...hardware.schema import LinkKind, Positive, Strict

Format = Literal["fp32", "tf32", "fp16", "bf16"]
LinkClass = Literal["nvlink", "pcie", "host", "rdma", "tcp"]
Source = Literal["measured", "other device", "prior"]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Value = TypeVar("Value")


class PhysicalConstant(Strict, Generic[Value]):
    """A constant, or one of each class."""

    value: Value
    unit: str
    source: str


class Priors(Strict):
    """What the planner takes where neither a measurement nor the topology says more."""

    compute_efficiency: PhysicalConstant[dict[Format, Positive]]
    """Arithmetic that a network's layers reach, as a share of the peak; above 1 where kernels save multiplications."""
    memory_efficiency: PhysicalConstant[Positive]
    launch_us: PhysicalConstant[Positive]
    link_rate: PhysicalConstant[dict[LinkKind, Positive]]
    """GB/s in one direction, by kind of a link."""
    link_efficiency: PhysicalConstant[dict[LinkClass, Positive]]
    """`host`: a PCIe link without peer-to-peer transfers, through the memory of the host."""
    link_latency_us: PhysicalConstant[dict[Literal["in_node", "fabric"], Positive]]
    host_s_per_gb: PhysicalConstant[Positive]
    contention: PhysicalConstant[Share]
    synchronization: PhysicalConstant[dict[Literal["in_node", "nodes"], Share]]
    host_jitter_ms: PhysicalConstant[Annotated[float, Field(ge=0.0)]]
    interval: PhysicalConstant[dict[Source | Literal["communication"], Positive]]
    """No constant of hardware: standard deviations of the logarithm of a step's time."""


@cache
def priors() -> Priors:
    """The shipped constants."""
    text = resources.files("leyden.conf").joinpath("planner", "priors.yaml").read_text(encoding="utf-8")
    return Priors.model_validate(yaml.safe_load(text))
