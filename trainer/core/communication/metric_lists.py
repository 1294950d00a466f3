"""Lists that torchmetrics objects gather, as exact curves do, and of which a worker may have none yet."""

from typing import cast

import torch.distributed as dist
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from .plain_values import all_gather_values


def join_lists(metric: Metric) -> None:
    """Make one tensor of each list that is concatenated over workers, of one kind on all of them. Collective.

    torchmetrics takes an empty list for float32 of one dimension, whatever the other workers have gathered. A list is
    empty on a worker that got no sample, and on all but the first after a resumption.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    lists = _concatenate_lists(metric)
    for values in lists:
        values[:] = [dim_zero_cat(values)] if values else []
    kinds = all_gather_values([values[0][:0] if values else None for values in lists]) if lists else []
    for number, values in enumerate(lists):
        known = [kind for of_worker in kinds if (kind := of_worker[number]) is not None]
        if not values and known:
            values.append(known[0].to(metric.device))


def _concatenate_lists(metric: Metric) -> list[list[Tensor]]:
    parts = [part for part in metric.modules() if isinstance(part, Metric)]
    found = [
        getattr(part, name)
        for part in parts
        for name, reduction in part._reductions.items()  # pyright: ignore[reportPrivateUsage]  # has no public name
        if reduction is dim_zero_cat and isinstance(part._defaults[name], list)  # pyright: ignore[reportPrivateUsage]
    ]
    return cast(list[list[Tensor]], found)
