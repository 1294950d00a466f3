"""Process groups of a strategy: connections that are made before training, and the timeouts of all of them."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..core.torch_compat import set_group_timeout


def connect(device: torch.device, group: Any = None, peers: Iterable[int] = ()) -> None:
    """Make NCCL open the connections of a group now. Every worker of the group must call it.

    It would in the group's first operation, in which all workers have to take part, and with the first message between
    two of them: in the middle of a step that is timed, and that is ordered with those of other groups.

    Args:
        peers: ranks in the group that this worker exchanges messages with.
    """
    if device.type != "cuda":
        return
    dist.all_reduce(torch.zeros(1, device=device), group=group)
    messages = [
        dist.P2POp(operation, torch.zeros(1, device=device), group=group, group_peer=peer)
        for peer in sorted(set(peers))
        for operation in (dist.irecv, dist.isend)
    ]
    for work in dist.batch_isend_irecv(messages) if messages else []:
        work.wait()


def set_timeout(group: Any, timeout: timedelta | None) -> None:
    """The longest that an operation of a group may take which torch made with its own limit."""
    if timeout is not None:
        set_group_timeout(timeout, group)
