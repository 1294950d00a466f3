"""BatchNorm over the global batch. torch's SyncBatchNorm has no CPU kernel; the one here runs anywhere."""

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


class GlobalBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Mean and variance of all workers' samples together, uneven shares included (Ioffe and Szegedy 2015).

    Each forward exchanges 2 * channels + 1 values, each backward as many.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"expected at least 2 dimensions, got {input.ndim}")

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or dist.get_world_size() == 1:
            return super().forward(input)
        axes = [axis for axis in range(input.ndim) if axis != 1]
        shape = [1, -1] + [1] * (input.ndim - 2)
        count = input.new_tensor([input.numel() / input.shape[1]])
        total = _summed(torch.cat([input.sum(axes), count]))
        samples = total[-1].detach()
        mean = total[:-1] / samples
        centered = input - mean.view(shape)
        variance = _summed(centered.square().sum(axes)) / samples
        self._track(mean.detach(), variance.detach(), float(samples))
        normalized = centered * torch.rsqrt(variance + self.eps).view(shape)
        if not self.affine:
            return normalized
        return normalized * self.weight.view(shape) + self.bias.view(shape)

    def _track(self, mean: Tensor, variance: Tensor, count: float) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_((variance * (count / max(1.0, count - 1))).to(self.running_var.dtype), momentum)


class _Sum(torch.autograd.Function):
    """Sum over workers; as every worker uses the sum, its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        summed = value.clone()
        dist.all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        summed = gradients[0].clone()
        dist.all_reduce(summed)
        return summed


def _summed(value: Tensor) -> Tensor:
    summed = _Sum.apply(value)
    assert isinstance(summed, Tensor)
    return summed


def synchronized(module: Module, device: torch.device) -> Module:
    """The module with every BatchNorm replaced by one over all workers; parameters and buffers stay the same."""
    if device.type == "cuda":
        converted: Any = nn.SyncBatchNorm.convert_sync_batchnorm(module)
        return converted
    for child in module.modules():
        if isinstance(child, nn.modules.batchnorm._BatchNorm) and not isinstance(child, GlobalBatchNorm):
            child.__class__ = GlobalBatchNorm
    return module
