"""strategy=ddp: synchronous data parallelism, through torch's DistributedDataParallel."""

import inspect
from datetime import timedelta
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.strategies import DDPStrategy
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from .ledger import Ledger, Placement

# torch 2.13 renamed the argument.
_RENAMED = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
_SYNC_BUFFERS = "forward_sync_buffers" if _RENAMED else "broadcast_buffers"


class DDP(DDPStrategy):
    """Every worker i computes the gradient of its share of the batch; all take the mean (Li et al. 2020, VLDB 13(12)).

    g = 1/W * sum_i g_i(w);  w <- w - lr * g, the same on every worker.

    On the wire: 2 (W - 1) / W * N * 4 bytes a step and worker (ring all-reduce of N float32 gradients), overlapping
    with backward bucket by bucket. Equal to `single` on the same global batch.

    Args:
        bucket_cap_mb: gradients are sent in parts of this size, as they become ready.
        static_graph: the same parameters are used in every step.
        gradient_as_bucket_view: gradients live in the buckets, one copy less.
        find_unused_parameters: look in every step for parameters without a gradient.
        timeout_s: a collective that takes longer raises.
    """

    ledger: Ledger

    def __init__(
        self,
        bucket_cap_mb: float = 25,
        static_graph: bool = False,
        gradient_as_bucket_view: bool = True,
        find_unused_parameters: bool = False,
        timeout_s: float = 1800,
    ):
        options: dict[str, Any] = {
            "bucket_cap_mb": bucket_cap_mb,
            "static_graph": static_graph,
            "gradient_as_bucket_view": gradient_as_bucket_view,
            "find_unused_parameters": find_unused_parameters,
            # The first worker's statistics are what counts: `settle` spreads them when somebody looks.
            _SYNC_BUFFERS: False,
        }
        super().__init__(timeout=timedelta(seconds=timeout_s), **options)
        self._last_bucket_ready: float | None = None

    def setup_environment(self) -> None:
        super().setup_environment()
        self.ledger = Ledger(self.global_rank, Placement(self.num_nodes * self.num_processes, self.num_processes))

    def setup_module(self, module: nn.Module) -> DistributedDataParallel:
        wrapped = super().setup_module(module)
        wrapped.register_comm_hook(dist.group.WORLD, self._average)
        return wrapped

    def _average(self, group: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        self.ledger.all_reduce(bucket.buffer().nbytes)
        future = allreduce_hook(group, bucket)
        if bucket.is_last():
            self._last_bucket_ready = perf_counter()
        return future

    def backward(self, tensor: Tensor, module: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        """Backward; what it takes after the last gradient is there is time spent waiting for the network."""
        self._last_bucket_ready = None
        super().backward(tensor, module, *args, **kwargs)
        if self._last_bucket_ready is not None:
            self.ledger.exposed_seconds += perf_counter() - self._last_bucket_ready

    def settle(self, task: LightningModule) -> None:
        """Give every worker the first one's buffers (running means of BatchNorm)."""
        for buffer in task.buffers():
            dist.broadcast(buffer, 0)
