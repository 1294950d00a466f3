"""What a worker computes and holds of sharded parameters."""

from collections.abc import Mapping, Sequence
from math import ceil, prod

from torch import nn

from ...core.transfers import DeviceShare, ExtraMemory


def sharded_share(
    units: Mapping[nn.Module, Sequence[nn.Parameter]], root: nn.Module, shards: int, samples: int, reshard: bool
) -> DeviceShare:
    """The whole network for the worker's samples, with 1/S of every parameter, gradient and optimizer state.

    Whole on the device are the root unit, and of the others the current and the next one, or all without `reshard`;
    and while a unit's backward ends, its gradient.

    Args:
        units: parameters of each unit, the root's among them.
        shards: S.
    """
    sizes = {unit: sum(p.nbytes for p in parameters) for unit, parameters in units.items()}
    others = sorted((size for unit, size in sizes.items() if unit is not root), reverse=True)
    whole = sum(others[:2]) if reshard else sum(others)
    kept = sum(_rows(p, shards) for parameters in units.values() for p in parameters) / max(1, sum(sizes.values()))
    extra = (
        ExtraMemory("gathered parameters", sizes.get(root, 0) + whole),
        ExtraMemory("gradient before it is sharded", max(sizes.values(), default=0)),
    )
    return DeviceShare(samples, parameters=kept, gradients=kept, optimizer=kept, extra=extra)


def _rows(parameter: nn.Parameter, shards: int) -> int:
    """Bytes of one worker's rows."""
    rows, *rest = parameter.shape or (1,)
    return ceil(rows / shards) * prod(rest) * parameter.element_size()
