"""Work and memory of one device under a strategy, from those of a device that trains alone. No torch."""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from ...core.transfers import DeviceShare, DividedModule
from ..quantities import Cost, LayerWork, PeakMemory, StepWork


def divide_work(work: StepWork, share: DeviceShare) -> StepWork:
    """The work of a device that has part of some modules.

    Args:
        work: of the whole network, for `share.samples` samples.
    """
    if not share.divided and share.optimizer == 1.0:
        return work
    layers = tuple(_layer(layer, _module_of(layer.name, share)) for layer in work.layers)
    return replace(work, layers=layers, update=_scale_cost(work.update, held(work, share) * share.optimizer))


def held(work: StepWork, share: DeviceShare) -> float:
    """Part of the trained parameters that a device has, because modules are divided."""
    kept = sum(layer.gradient_elements * _parameters(layer, share) for layer in work.layers)
    return kept / work.parameters if work.parameters else 1.0


def divide_memory(memory: PeakMemory, work: StepWork, share: DeviceShare) -> Mapping[str, float]:
    """Bytes that a device holds, by kind, with what the strategy adds.

    Activations of divided modules shrink as their work does, by its memory traffic.

    Args:
        memory: of the whole network, for `share.samples` samples.
        work: the same.
    """
    kept = held(work, share)
    moved = sum(layer.forward.bytes for layer in work.layers)
    moved_here = sum(layer.forward.bytes * min(1.0, _work(layer, share)) for layer in work.layers)
    activations = moved_here / moved if moved else 1.0
    parts = {
        "parameters": memory.parameters * kept * share.parameters,
        "gradients": memory.gradients * kept * share.gradients,
        "optimizer": memory.optimizer * kept * share.optimizer,
        "activations": memory.activations * activations,
        "temporary": memory.temporary * activations,
    }
    return parts | {what: size for what, size in share.extra if size}


def _module_of(layer: str, share: DeviceShare) -> DividedModule | None:
    """The innermost divided module that a layer is, or is in."""
    inside = [m for m in share.divided if layer == m.path or layer.startswith(f"{m.path}.")]
    return max(inside, key=lambda module: len(module.path), default=None)


def _work(layer: LayerWork, share: DeviceShare) -> float:
    module = _module_of(layer.name, share)
    return 1.0 if module is None else module.work


def _parameters(layer: LayerWork, share: DeviceShare) -> float:
    module = _module_of(layer.name, share)
    return 1.0 if module is None else module.parameters


def _layer(layer: LayerWork, module: DividedModule | None) -> LayerWork:
    if module is None:
        return layer
    forward, backward = (_scale_cost(cost, module.work, module.launches) for cost in (layer.forward, layer.backward))
    return LayerWork(layer.name, forward, backward, round(layer.gradient_elements * module.parameters))


def _scale_cost(cost: Cost, part: float, launches: float = 1.0) -> Cost:
    return Cost(cost.flop * part, cost.bytes * part, ceil(cost.kernels * launches))
