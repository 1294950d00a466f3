"""What a run's strategy should send, from its config alone: the network is built once more, without memory."""

from typing import Any

import torch

from leyden.trainer.config.schema import Config
from leyden.trainer.config.targets import build
from leyden.trainer.core.state import RunState
from leyden.trainer.core.strategy_contract import StrategyContract
from leyden.trainer.core.traffic import Workload
from leyden.trainer.core.transfers import Placement, Transfer

DTYPES = {"64-true": torch.float64, "bf16-true": torch.bfloat16}


def _whole(network: Any, images: torch.Tensor) -> Any:
    return network(images)


def _first_stage(network: Any, images: torch.Tensor) -> Any:
    return network(images, 0)


def traffic_of_run(state: RunState) -> list[Transfer]:
    """By the formulas: nothing of the run but its config and the shape of its data is asked."""
    return traffic_of(state.config, state.data.classes, state.data.image_shape)


def traffic_of(config: Config, classes: int | None, image_shape: tuple[int, ...]) -> list[Transfer]:
    """What a worker sends in a step, on a strategy that is built and never set up."""
    node, topology = config.model, config.topology
    assert node is not None
    with torch.device("meta"):
        network: Any = build(node, classes=classes, image_shape=image_shape, seed=config.seed)
    workload = Workload(
        network.to(DTYPES.get(config.trainer.precision, torch.float32)),
        Placement(topology.workers, topology.devices_per_node, topology.server_placement == "first_node"),
        config.batch_size,
        image_shape,
        activation_bytes=2 if config.trainer.precision.endswith("-mixed") else None,
        forward=_first_stage if hasattr(network, "stages") else _whole,
    )
    strategy = build(config.strategy, topology=topology, parallel=node.parallel)
    assert isinstance(strategy, StrategyContract)
    return strategy.traffic(workload)
