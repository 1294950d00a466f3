"""Fused kernels of torch's optimizers, one launch for all parameters: Leyden's default on CUDA."""

from typing import Any

import torch
from torch import nn

from ...base.log import log
from ...config.schema import Config
from ..torch_compat import is_traceable_wrapper_subclass

_FUSED = {"torch.optim.SGD": False, "torch.optim.Adam": True, "torch.optim.AdamW": True}
"""Optimizers with fused kernels for CUDA; whether they take the sharded parameters of FSDP2."""
_DECIDES = ("fused", "foreach", "differentiable")


def fused_arguments(config: Config, task: nn.Module, kind: str | None = None) -> dict[str, Any]:
    """What the optimizer gets beside the config's arguments; nothing where the user has chosen, or fused cannot work.

    torch's own default on CUDA is foreach. With 16-mixed the fused step unscales the gradients, after they would have
    been clipped, or their norm taken; for sparse gradients it has no kernel.

    Args:
        kind: of the device that the plan of a training is for; None: the one that the parameters are on.
    """
    node, trainer = config.optimizer, config.trainer
    assert node is not None
    parameters = [parameter for parameter in task.parameters() if parameter.requires_grad]
    if node.target not in _FUSED or any(name in node.arguments for name in _DECIDES):
        return {}
    if not all((kind or p.device.type) == "cuda" and torch.is_floating_point(p) for p in parameters):
        return {}
    if trainer.precision == "16-mixed" and trainer.reads_gradients:
        return {}
    if any(getattr(module, "sparse", False) for module in task.modules()):
        return {}
    if any(is_traceable_wrapper_subclass(p) for p in parameters) and not _FUSED[node.target]:  # DTensor
        return {}
    if kind is None:
        log.info("%s: fused kernels (optimizer.fused=false: one kernel for each operation)", node.target)
    return {"fused": True}
