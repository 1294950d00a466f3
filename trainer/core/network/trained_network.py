"""The network that a task trains."""

from torch import nn


def network_of(task: nn.Module) -> nn.Module:
    """The task's `model`; the task itself if it has none."""
    network = getattr(task, "model", task)
    return network if isinstance(network, nn.Module) else task
