"""Batch normalization over the global batch, for workers on CPUs and GPUs alike."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Self, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .torch_compat import BatchNormBase, NormBase

Module = TypeVar("Module", bound=nn.Module)

_RUNNING = ("running_mean", "running_var")
_HALF = (torch.bfloat16, torch.float16)


class Padding:
    """Whether this worker's current batch is padding: a repeated sample that only keeps the collectives complete."""

    def __init__(self) -> None:
        self.now = False

    def __deepcopy__(self, memo: Any) -> Self:
        return self  # a copied module computes the same batches


class GlobalBatchNorm(BatchNormBase):
    """Mean and variance over the samples of all workers, uneven shares included (Ioffe and Szegedy 2015, ICML).

    A worker whose batch is padding (`Padding.now`) joins the collectives with a count of zero: it adds nothing to mean,
    variance and running statistics, and nothing to any gradient. Each worker takes mean and M2 = sum (x - mean)^2 of
    its own samples in two passes; those are merged as Chan, Golub and LeVeque (1979) do, so that no large squares are
    subtracted. Input: (batch, channels, ...). Sums, count, variance and running statistics are float32 where the input
    is bfloat16 or float16, also where the whole module was converted (bf16-true); the output has the input's type.

    Each forward gathers 2 * channels + 1 values from every worker, each backward sums 2 * channels.

    Why not torch's SyncBatchNorm: it counts every row of the input as a sample, and has no CPU kernel. This module uses
    plain tensor operations, which read and write the input several times where the fused CUDA kernels do so once or
    twice: the price of the same, tested arithmetic on every device.

    In evaluation it is torch's BatchNorm: the running statistics, or, without any, those of the worker's batch.
    """

    padding: Padding | None = None

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"expected at least 2 dimensions, got {input.ndim}")

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        return self._activate(self._normalize(input))

    def _normalize(self, input: Tensor) -> Tensor:
        if not self.training:
            return self._evaluate(input)
        counts = self.padding is None or not self.padding.now
        result: Any = _Normalize.apply(input, self.weight, self.bias, self.eps, counts)
        output, mean, variance, count = result
        self._track(mean, variance, count)
        return output

    def _activate(self, output: Tensor) -> Tensor:
        """Dropout and activation that timm's BatchNormAct2d adds in its forward."""
        for name in ("drop", "act"):
            module = getattr(self, name, None)
            if isinstance(module, nn.Module):
                output = module(output)
        return output

    def _evaluate(self, input: Tensor) -> Tensor:
        if self.running_mean is None or self.running_mean.dtype == input.dtype:
            return super().forward(input)
        # Below float32 torch requires all parameters and buffers in the input's type, or all in float32.
        # None without affine, which torch's types leave out
        given = cast(tuple[Tensor | None, ...], (self.weight, self.bias))
        affine = [None if p is None else p.to(self.running_mean.dtype) for p in given]
        mean, variance = self.running_mean, self.running_var
        return nn.functional.batch_norm(input, mean, variance, *affine, training=False, eps=self.eps)

    def _track(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / (count - 1).clamp(min=1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Keep running statistics in float32 in a module converted to a half type, which would lose small changes."""
        kept = {name: getattr(self, name) for name in _RUNNING}
        super()._apply(fn, recurse)
        for name, before in kept.items():
            now = getattr(self, name)
            if now is not None and now.dtype in _HALF:
                setattr(self, name, before.float().to(now.device))
        return self


class _Normalize(torch.autograd.Function):
    """(input, weight, bias) to output, mean, variance (biased) and count of all workers' samples.

    Sums over the batch and every dimension after the channels, n = their count over all workers, x^ = (x - mean) r,
    r = 1 / sqrt(variance + eps). Backward: dx = weight r (dy - 1/n sum dy - x^ 1/n sum dy x^), sums over all workers;
    dweight = sum dy x^ and dbias = sum dy over this worker's samples.
    """

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, counts: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mean, variance, count = _statistics(input, counts)
        scale = torch.rsqrt(variance + eps)
        ctx.counts, ctx.has_bias = counts, bias is not None
        ctx.save_for_backward(input, weight, mean, scale, count)
        output = _standardize(input, mean, scale)
        if weight is not None:
            output = output * _align_channels(weight, input).to(output.dtype)
        if bias is not None:
            output = output + _align_channels(bias, input).to(output.dtype)
        ctx.mark_non_differentiable(mean, variance, count)
        return output.to(input.dtype), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # once_differentiable hides the names
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        input, weight, mean, scale, count = ctx.saved_tensors
        axes = _axes(input)
        gradient, standardized = gradients[0].to(mean.dtype), _standardize(input, mean, scale)
        sums = torch.stack([gradient.sum(axes), (gradient * standardized).sum(axes)])
        if not ctx.counts:
            sums.zero_()  # its loss has weight 0, but 0 times infinity is NaN
        of_bias = sums[0].to(weight.dtype) if ctx.has_bias and weight is not None else None
        of_weight = sums[1].to(weight.dtype) if weight is not None else None
        if not ctx.needs_input_grad[0]:  # true of all workers or of none
            return None, of_weight, of_bias, None, None
        sums = sums.clone()
        dist.all_reduce(sums)
        if not ctx.counts:
            return torch.zeros_like(input), of_weight, of_bias, None, None
        through_mean, through_scale = (_align_channels(total / count, input) for total in sums)
        of_input = gradient - through_mean - standardized * through_scale
        factor = scale if weight is None else scale * weight.to(scale.dtype)
        return (of_input * _align_channels(factor, input)).to(input.dtype), of_weight, of_bias, None, None


def _statistics(input: Tensor, counts: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance (channels,) and count (1,) over all workers, float32 or better. Every worker must call it."""
    channels = input.shape[1]
    values = input.detach().to(torch.promote_types(input.dtype, torch.float32))
    own = values.new_zeros(2 * channels + 1)
    if counts and values.numel():
        count = values.numel() // channels
        mean = values.mean(_axes(input))
        squares = (values - _align_channels(mean, input)).square_().sum(_axes(input))
        own = torch.cat([mean, squares, mean.new_full((1,), count)])
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, own)
    means, squares, numbers = torch.stack(gathered).split([channels, channels, 1], dim=1)
    count = numbers.sum(0).clamp(min=1)
    mean = (means * numbers).sum(0) / count
    variance = (squares + numbers * (means - mean).square()).sum(0) / count
    return mean, variance, count


def _standardize(input: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    return (input.to(mean.dtype) - _align_channels(mean, input)) * _align_channels(scale, input)


def _axes(input: Tensor) -> list[int]:
    """All dimensions except that of the channels."""
    return [axis for axis in range(input.ndim) if axis != 1]


def _align_channels(values: Tensor, input: Tensor) -> Tensor:
    """(channels,) in the shape that broadcasts over the input."""
    return values.view([1, -1] + [1] * (input.ndim - 2))


def with_synchronized_norms(module: Module, padding: Padding) -> Module:
    """The module with every BatchNorm replaced by one over all workers; parameters and buffers stay the same.

    Args:
        padding: whether the worker's batch is padding, at each forward.

    Raises:
        ValueError: a BatchNorm with a forward of its own, which would be lost.
    """
    for name, child in module.named_modules():
        if isinstance(child, BatchNormBase):
            _refuse_own_forward(name, child)
            child.__class__ = GlobalBatchNorm
            child.padding = padding  # pyright: ignore[reportArgumentType]
    return module


def _refuse_own_forward(name: str, norm: BatchNormBase) -> None:
    kind = type(norm)
    of_torch = kind.forward in (BatchNormBase.forward, nn.SyncBatchNorm.forward, GlobalBatchNorm.forward)
    of_timm = isinstance(getattr(norm, "drop", None), nn.Module) and isinstance(getattr(norm, "act", None), nn.Module)
    if not of_torch and not of_timm:
        raise ValueError(
            f"trainer.sync_batchnorm: {name} is a {kind.__name__}, whose forward is not that of torch's BatchNorm and "
            "would be lost: trainer.sync_batchnorm=false, or a model with torch's BatchNorm"
        )


@contextmanager
def statistics_kept(module: nn.Module, of_all_workers: bool = False) -> Generator[None, None, None]:
    """Restore running statistics of norm layers at the end of the context.

    Args:
        of_all_workers: those of `GlobalBatchNorm`, too, which leaves padding out by itself, and takes part in what the
            other workers compute.
    """
    norms = [m for m in module.modules() if isinstance(m, NormBase)]
    if not of_all_workers:
        norms = [norm for norm in norms if not isinstance(norm, GlobalBatchNorm)]
    buffers = [buffer for norm in norms for buffer in norm.buffers(recurse=False)]
    kept = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        for buffer, before in zip(buffers, kept, strict=True):
            buffer.copy_(before)
