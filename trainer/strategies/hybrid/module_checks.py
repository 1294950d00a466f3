"""Networks that strategy=hybrid cannot divide, found when the module is set up."""

from torch import nn

from ...core.sync_batchnorm import GlobalBatchNorm
from ...core.torch_compat import BatchNormBase


def refuse_local_batchnorm(module: nn.Module, workers: int) -> None:
    """
    Raises:
        ValueError: batch normalization would take the statistics of each worker's own samples.
    """
    local = [
        name
        for name, child in module.named_modules()
        if isinstance(child, BatchNormBase) and not isinstance(child, (GlobalBatchNorm, nn.SyncBatchNorm))
    ]
    if local and workers > 1:
        raise ValueError(
            f"strategy=hybrid: the model has {len(local)} batch normalizations ({local[0]}), and each of "
            f"{workers} workers would take the statistics of its own samples: trainer.sync_batchnorm=true "
            "takes those of all, or say strategy.local_batchnorm=true"
        )


def refuse_tied_weights(module: nn.Module, chain: nn.Module, name: str) -> None:
    """
    Raises:
        ValueError: a weight of the chain is used elsewhere too, where it would have to be whole.
    """
    inside = {id(parameter) for parameter in chain.parameters()}
    seen: dict[int, str] = {}
    for own, parameter in module.named_parameters(remove_duplicate=False):
        first = seen.setdefault(id(parameter), own)
        if id(parameter) in inside and first != own:
            raise ValueError(
                f"strategy=hybrid: {first} and {own} are one tensor, and {name} cannot be divided without the other"
            )
