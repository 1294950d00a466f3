"""What a config's strategy says of a step: its transfers, and the share of one device. Imports torch."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...base.errors import CannotStart, Problem
from ...config.faults import build_checked
from ...config.schema import Config
from ...config.targets import make_importable
from ...core.network.freezing import Freezing
from ...core.strategy_contract import StrategyContract
from ...core.traffic import Workload
from ...core.transfers import DeviceShare, Placement, Transfer
from ...hardware.topology import device_kind
from ..fake_training import data_shapes, views_of

_TYPES = {"64-true": torch.float64, "bf16-true": torch.bfloat16, "16-true": torch.float16}


@dataclass(frozen=True)
class StrategyCosts:
    """Costs of a step under a strategy."""

    transfers: tuple[Transfer, ...]
    share: DeviceShare


def strategy_costs(config: Config) -> StrategyCosts:
    """Transfers and share, of a strategy that is built and never set up, and a network without memory.

    Raises:
        CannotStart: the strategy says no costs, or the network cannot be built.
    """
    make_importable(config)
    shape, classes = data_shapes(config)
    strategy = build_checked(
        "strategy", config.strategy, any_kind=False, topology=config.topology,
        parallel=config.model.parallel if config.model else None, batch_size=config.batch_size,
    )  # fmt: skip
    _refuse_without_costs(config, strategy)
    views = views_of(config, shape)
    workload = _workload(config, shape, classes, views)
    try:
        transfers, share = strategy.traffic(workload), strategy.device_share(workload)
    except ValueError as error:
        raise CannotStart(Problem("strategy", str(error), config.strategy.target)) from error
    # a sample has as many rows as views
    samples = -(-share.samples // views)
    return StrategyCosts(tuple(transfers), DeviceShare(**{**vars(share), "samples": samples}))


def _refuse_without_costs(config: Config, strategy: Any) -> None:
    inherits = isinstance(strategy, StrategyContract)
    if inherits and (config.topology.workers == 1 or type(strategy).traffic is not StrategyContract.traffic):
        return
    text = "says nothing of what it sends in a step (the hook traffic of StrategyContract), so it cannot be planned"
    remedy = f"def traffic(self, workload) in {type(strategy).__name__}, or a short run to measure"
    raise CannotStart(Problem("strategy", text, config.strategy.target, remedy))


def _workload(config: Config, shape: tuple[int, ...], classes: int, views: int) -> Workload:
    with torch.device("meta"):
        network = _network(config, shape, classes)
    if config.trainer.precision in _TYPES:
        network = network.to(_TYPES[config.trainer.precision])
    precision, parts = config.trainer.precision, config.trainer.accumulate_grad_batches
    return Workload(
        network,
        Placement.of(config.topology),
        config.batch_size * views // parts * parts,
        shape,
        forward=_first_stage if hasattr(network, "stages") else _whole,
        activation_bytes=2 if precision.endswith("-mixed") else None,
        device="cuda" if device_kind(config.topology) == "cuda" else "cpu",
    )


def _network(config: Config, shape: tuple[int, ...], classes: int) -> nn.Module:
    known = {"classes": classes, "image_shape": shape}
    if config.model is None:
        return build_checked("task", config.task, **known)
    node = config.model.model_copy(update={"pretrained": False}) if config.model.pretrained is True else config.model
    network: nn.Module = build_checked("model", node, **known, seed=0)
    if config.model.freeze:
        Freezing(nn.ModuleDict({"model": network}), config.model).begin_epoch(0)
    return network


def _whole(network: nn.Module, images: Tensor) -> Any:
    return network(images)


def _first_stage(network: nn.Module, images: Tensor) -> Any:
    """Call an autoencoder in its first stage, as task=reconstruction does."""
    return network(images, 0)
