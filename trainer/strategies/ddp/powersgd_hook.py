"""powersgd under DistributedDataParallel: one exchange a backward, in one order."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future

from .powersgd import Mean, PowerSGD


class WholeBackward:
    """Keeps DDP's buckets until the last one of a backward is there, then averages all of them at once.

    torch's own PowerSGD hook chains the all-reduces of each bucket in callbacks: those of several buckets then start
    in whichever order the callbacks run on each worker, and gloo aborts. Here nothing starts before the end, and all
    workers send the same messages in the same order.

    Args:
        module: whose parameters are trained, before DDP wraps it.
        rank: of PowerSGD.

    Raises:
        ValueError: parameters of a type that is too coarse for errors, or of several types.
    """

    def __init__(self, module: nn.Module, rank: int):
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        kinds = {p.dtype for p in trained.values()}
        if not kinds <= {torch.float32} and not kinds <= {torch.float64}:
            found = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
            raise ValueError(
                f"strategy.compression=powersgd carries small errors from step to step, and needs parameters that are "
                f"all float32 or all float64; these are {found}: strategy.compression=none"
            )
        self.powersgd = PowerSGD({name: p.shape for name, p in trained.items()}, rank)
        # by parameter: DDP sorts them into its buckets
        self._names: dict[Tensor, str] = {p: name for name, p in trained.items()}
        self._gradients: dict[str, Tensor] = {}
        self._waiting: list[tuple[Future[Tensor], Tensor]] = []

    def add(self, bucket: dist.GradBucket) -> Future[Tensor]:
        if bucket.index() == 0:
            self._gradients.clear()
            self._waiting.clear()
        buffer = bucket.buffer()
        future: Future[Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else None)
        self._waiting.append((future, buffer))
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            self._gradients[self._names[parameter]] = _lay_out_as(parameter, gradient)
        return future

    def finish(self, mean: Mean) -> None:
        """Average what was added, in place, and let DDP go on."""
        self.powersgd.average(self._gradients, mean)
        for future, buffer in self._waiting:
            future.set_result(buffer)
        self._gradients.clear()
        self._waiting.clear()


def _lay_out_as(parameter: Tensor, gradient: Tensor) -> Tensor:
    """A bucket's piece with the parameter's strides (channels last, say), as DDP fills it; torch tells its shape."""
    last = sum((size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride(), strict=True))
    if parameter.is_contiguous() or last + 1 != parameter.numel():
        return gradient
    return gradient.as_strided(parameter.shape, parameter.stride(), gradient.storage_offset())
