"""strategy=ddp: synchronous data parallelism, through torch's DistributedDataParallel."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.strategies import DDPStrategy
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from typing_extensions import override

from ...base.device_time import Moment
from ...base.errors import Problem, nearest
from ...base.log import log
from ...config.schema import Config
from ...core.checkpoints.sharded_checkpoint import CheckpointShards, Shard
from ...core.strategy_contract import StrategyContract
from ...core.traffic import Ledger, Workload, even_share
from ...core.transfers import DeviceShare, ExtraMemory, Placement, Transfer
from ..declarations import UnusedParameters
from .fixed_buckets import FixedBuckets
from .powersgd import PowerSGD, mean_errors
from .powersgd_hook import WholeBackward

# torch 2.13 renamed the argument.
_RENAMED = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
_SYNC_BUFFERS = "forward_sync_buffers" if _RENAMED else "broadcast_buffers"

_HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}
COMPRESSIONS = ("none", *_HALF, "powersgd")


class DDP(UnusedParameters, StrategyContract, DDPStrategy):
    """Every worker i computes the gradient of its share of the batch; all take the mean (Li et al. 2020, VLDB 13(12)).

    g = 1/W * sum_i C(g_i(w));  w <- w - lr * g, the same on every worker. On the wire, in bytes a step and worker, for
    N parameters of b bytes (4 in float32) and a ring all-reduce, which sends R(x) = 2 (W - 1) / W * x:

    - `none`: R(b N), overlapping with backward bucket by bucket. Equal to `single` on the same global batch.
    - `fp16`, `bf16`: R(2 N), overlapping as well. Each bucket is divided by W, rounded, summed in this type and cast
      back: relative errors of 2^-11 and 2^-8. fp16 overflows beyond 65504 and loses what is below 6e-8, bf16 does not.
    - `powersgd`: R(b (sum of r (n + m) over the matrices + all other elements)), see `powersgd.PowerSGD`, in two
      messages after the last gradient. W workers at global batch B equal one at B under the same rule, and `none` where
      the mean gradients have rank r (a global batch of r samples, for layers that see one input a sample).

    Args:
        compression: what C is: none, fp16, bf16 or powersgd.
        powersgd_rank: r, the rank of what is sent of each weight matrix.
        powersgd_start_step: powersgd compresses from this optimizer step of the training on.
        bucket_cap_mb: gradients are sent in parts of this size, as they become ready.
        static_graph: the same parameters are used in every step.
        gradient_as_bucket_view: gradients live in the buckets, one copy less.
        find_unused_parameters: look in every step for parameters without a gradient.
        timeout_s: a collective that takes longer raises.

    Raises:
        ValueError: an unknown compression.
    """

    ledger: Ledger

    def __init__(
        self,
        compression: str = "none",
        powersgd_rank: int = 2,
        powersgd_start_step: int = 0,
        bucket_cap_mb: float = 25,
        static_graph: bool = False,
        gradient_as_bucket_view: bool = True,
        find_unused_parameters: bool = False,
        timeout_s: float = 1800,
    ):
        if compression not in COMPRESSIONS:
            raise ValueError(f"compression={compression!r} must be one of {', '.join(COMPRESSIONS)}")
        options: dict[str, Any] = {
            "bucket_cap_mb": bucket_cap_mb,
            "static_graph": static_graph,
            "gradient_as_bucket_view": gradient_as_bucket_view,
            "find_unused_parameters": find_unused_parameters,
            # The first worker's statistics are what counts: `flush_pending_updates` broadcasts them when they are read.
            _SYNC_BUFFERS: False,
        }
        super().__init__(timeout=timedelta(seconds=timeout_s), **options)
        self.compression = compression
        self.bucket_cap_mb = bucket_cap_mb
        self.static_graph = static_graph
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.find_unused_parameters = find_unused_parameters
        self.powersgd_rank = powersgd_rank
        self.powersgd_start_step = powersgd_start_step
        self._last_bucket_ready: Moment | None = None
        self._reduced = False
        self._steps = 0
        self._low_rank: WholeBackward | None = None

    @override
    @staticmethod
    def validate_config(config: Config) -> Iterator[Problem]:
        """What cannot work, from the config alone."""
        given = config.strategy.arguments
        compression = given.get("compression", "none")
        if compression not in COMPRESSIONS:
            close = nearest(compression, COMPRESSIONS)
            text = f"must be one of {', '.join(COMPRESSIONS)}" + (f"; did you mean {close}?" if close else "")
            yield Problem("strategy.compression", text, compression, f"strategy.compression={close or 'none'}")
        for name, least in (("powersgd_rank", 1), ("powersgd_start_step", 0)):
            if given.get(name, least) < least:
                yield Problem(f"strategy.{name}", f"must be at least {least}", given[name], f"strategy.{name}={least}")
        if given.get("bucket_cap_mb", 25) <= 0:
            yield Problem("strategy.bucket_cap_mb", "must be greater than 0", given["bucket_cap_mb"],
                          "strategy.bucket_cap_mb=25")  # fmt: skip
        parts = config.trainer.accumulate_grad_batches
        if given.get("static_graph") and parts > 1:
            text = (
                f"cannot be true with accumulate_grad_batches={parts}: torch learns the graph from a first backward "
                f"that is averaged, and of a step in {parts} parts only the last one is"
            )
            yield Problem("strategy.static_graph", text, True, "strategy.static_graph=false")
        if compression == "powersgd":
            yield from _powersgd_refuses(config)

    @override
    def setup_environment(self) -> None:
        super().setup_environment()
        placement = Placement(self.num_nodes * self.num_processes, self.num_processes)
        # None in the base: it is counted always, from here on
        self.ledger = Ledger(self.global_rank, placement, self.root_device)  # pyright: ignore[reportIncompatibleVariableOverride]

    @override
    def setup_module(self, module: nn.Module) -> DistributedDataParallel:
        """
        Raises:
            ValueError: powersgd on parameters that its errors would be too coarse for.
        """
        hook = {"none": self._average, "powersgd": self._average_as_low_rank}.get(self.compression, self._average_half)
        if self.compression == "powersgd":
            self._low_rank = WholeBackward(module, self.powersgd_rank)
        devices = self._determine_ddp_device_ids()
        # a stream of its own, as Fabric's: torch's notes on CUDA graphs
        with nullcontext() if devices is None else torch.cuda.stream(torch.cuda.Stream()):
            self._wrapped = wrapped = FixedBuckets(module, device_ids=devices, **self._ddp_kwargs)
        wrapped.register_comm_hook(dist.group.WORLD, hook)
        return wrapped

    def _average(self, group: Any, bucket: dist.GradBucket) -> Future[Tensor]:
        self.ledger.all_reduce(bucket.buffer().nbytes)
        future = allreduce_hook(group, bucket)
        if bucket.is_last():
            self._reduced = True
            self._last_bucket_ready = self.ledger.now()
        return future

    def _average_half(self, group: Any, bucket: dist.GradBucket) -> Future[Tensor]:
        buffer = bucket.buffer()
        # divided first, and not after the sum: that of many workers could overflow
        rounded = buffer.div_(group.size()).to(_HALF[self.compression])
        self.ledger.all_reduce(rounded.nbytes)
        work = dist.all_reduce(rounded, group=group, async_op=True)
        assert work is not None
        if bucket.is_last():
            self._reduced = True
            self._last_bucket_ready = self.ledger.now()
        return work.get_future().then(lambda done: buffer.copy_(done.value()[0]))

    def _average_as_low_rank(self, group: Any, bucket: dist.GradBucket) -> Future[Tensor]:
        if self._steps < self.powersgd_start_step:
            future = self._average(group, bucket)
        else:
            assert self._low_rank is not None
            future = self._low_rank.add(bucket)
            if bucket.is_last():
                self._reduced = True
                self._low_rank.finish(lambda message: self._mean(group, message))
        self._steps += bucket.is_last()
        return future

    def _mean(self, group: Any, message: Tensor) -> None:
        self.ledger.all_reduce(message.nbytes)
        message.div_(group.size())
        sent = self.ledger.now()
        dist.all_reduce(message, group=group)
        self.ledger.waited(sent)

    @override
    def backward(self, tensor: Tensor, module: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        """Backward; what it takes after the last gradient is there is time spent waiting for the network.

        Raises:
            ValueError: parameters that the averaging waits for got no gradient.
        """
        self._last_bucket_ready = None
        self._reduced = False
        super().backward(tensor, module, *args, **kwargs)
        if self._last_bucket_ready is not None:
            self.ledger.waited(self._last_bucket_ready)
        if not self._reduced:
            self._refuse_unused()

    def _refuse_unused(self) -> None:
        """torch would tell in the next forward, when the step has been done with what each worker had for itself."""
        try:
            self._wrapped._check_reducer_finalized()
        except RuntimeError as error:
            named = self._wrapped.module.named_parameters()
            without = [name for name, p in named if p.requires_grad and p.grad is None]
            which = f"{len(without)} parameters got no gradient ({', '.join(without[:4])}{' ...' * (len(without) > 4)})"
            raise ValueError(
                f"{which if without else 'some parameters got no gradient in the last part'}, and ddp waits for all: "
                "freeze them (requires_grad=False), or strategy.find_unused_parameters=true"
            ) from error

    @override
    def flush_pending_updates(self, task: LightningModule) -> None:
        """Give every worker the first one's buffers (running means of BatchNorm)."""
        for buffer in task.buffers():
            dist.broadcast(buffer, 0)

    @override
    def shard(self, task: LightningModule, optimizer: Optimizer) -> Shard | None:
        """powersgd: this worker's errors, and with the first worker's the common factors."""
        if self._low_rank is None:
            return None
        powersgd = self._low_rank.powersgd
        own: dict[str, Any] = {"errors": powersgd.errors}
        if self.global_rank == 0:
            own["factors"] = powersgd.factors
        return Shard(own={"powersgd": own})

    @override
    def load_full_state(
        self, task: LightningModule, optimizer: Optimizer | None, state: dict[str, Any], shards: CheckpointShards | None
    ) -> None:
        """One device's layout on every worker; under powersgd its errors, or the mean of those of other workers."""
        if shards is not None:
            state = shards.put_together(state)
        task.load_state_dict(state["model"])
        if optimizer is not None:
            optimizer.load_state_dict(state["optimizer"])
            self._steps = state.get("position", {}).get("step", 0)
            self._load_errors(shards)

    def _load_errors(self, shards: CheckpointShards | None) -> None:
        saved = shards is not None and "powersgd" in shards.own(0)
        if self._low_rank is None:
            if saved:
                log.info("compression=%s: the errors that powersgd has saved are dropped", self.compression)
            return
        if shards is None or not saved:
            log.info("powersgd: the checkpoint was written without it; errors start at zero")
            return
        if shards.workers == self.world_size:
            errors = shards.own(self.global_rank)["powersgd"]["errors"]
        else:
            log.info("powersgd: each of %d workers starts with the mean of %d errors", self.world_size, shards.workers)
            errors = mean_errors([shards.own(worker)["powersgd"]["errors"] for worker in range(shards.workers)])
        self._low_rank.powersgd.load(errors, shards.own(0)["powersgd"]["factors"])

    @override
    def traffic(self, workload: Workload) -> list[Transfer]:
        """Transfers of a step; of powersgd, from its start step on."""
        if self.compression == "powersgd":
            return self._powersgd_traffic(workload)
        return self._bucket_traffic(workload, workload.parameters)

    def _powersgd_traffic(self, workload: Workload) -> list[Transfer]:
        trained = {name: p for name, p in workload.network.named_parameters() if p.requires_grad}
        size = next(iter(trained.values())).element_size()
        first, second = PowerSGD({name: p.shape for name, p in trained.items()}, self.powersgd_rank).message_elements
        all_reduce = workload.placement.all_reduce
        messages = [all_reduce("left factors and vectors", "update", first * size)]
        return messages + ([all_reduce("right factors", "update", second * size)] if second else [])

    def _bucket_traffic(self, workload: Workload, parameters: list[nn.Parameter]) -> list[Transfer]:
        """One all-reduce a bucket, which starts when its last gradient is there."""
        half = _HALF.get(self.compression)
        found: list[Transfer] = []
        for bucket in self._buckets(parameters):
            ready = workload.ready(bucket)
            size = sum(p.numel() * (half.itemsize if half else p.element_size()) for p in bucket)
            found.append(
                workload.placement.all_reduce(
                    "gradients", "backward", size, overlaps=("backward",), after_gradients=ready
                )
            )
        return found

    @override
    def device_share(self, workload: Workload) -> DeviceShare:
        """The gradients lie in the buckets, which stay; rounded copies of them, or powersgd's errors, come on top."""
        return replace(even_share(workload), **self._kept_memory(workload.parameters))

    def _kept_memory(self, parameters: Sequence[nn.Parameter]) -> dict[str, Any]:
        """Memory of the buckets of these parameters, as fields of DeviceShare."""
        whole, half = sum(p.nbytes for p in parameters), _HALF.get(self.compression)
        extra = [ExtraMemory("gradient buckets", whole)]
        if half is not None:
            rounded = sum(p.numel() for p in parameters) * half.itemsize
            extra.append(ExtraMemory(f"gradients in {self.compression}", rounded))
        elif self.compression == "powersgd":
            extra.append(ExtraMemory("errors of powersgd", whole))
        return {"gradients": 0.0 if self.gradient_as_bucket_view else 1.0, "extra": tuple(extra)}

    def _buckets(self, parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
        """Buckets as torch makes them of parameters in the order of their gradients."""
        if not parameters:
            return []
        as_defined = self.find_unused_parameters and not self.static_graph
        tensors: list[Tensor] = [*parameters[::-1]] if as_defined else [*parameters]
        cap = int(self.bucket_cap_mb * 1024 * 1024)
        numbers = dist._compute_bucket_assignment_by_size(tensors, [cap])[0]
        return [[parameters[len(parameters) - 1 - n if as_defined else n] for n in bucket] for bucket in numbers]


def _powersgd_refuses(config: Config) -> Iterator[Problem]:
    precision = config.trainer.precision
    if precision in ("bf16-true", "16-true"):
        bits = {"bf16-true": 8, "16-true": 11}[precision]
        text = (
            f"compression=powersgd adds what it did not send to the next gradients, and parameters of {bits} "
            f"significant bits would lose whatever is smaller than 1/{2**bits} of them"
        )
        yield Problem("trainer.precision", text, precision, "trainer.precision=bf16-mixed or strategy.compression=none")
    if precision == "16-mixed":
        text = (
            "scales the loss by a factor that changes, and powersgd's errors of earlier steps would have other scales"
        )
        yield Problem("trainer.precision", text, precision, "trainer.precision=bf16-mixed or strategy.compression=none")
    if config.strategy.arguments.get("find_unused_parameters"):
        text = (
            "cannot be true with compression=powersgd: what it still owes a parameter would be sent and thrown away in "
            "a step where no worker uses it"
        )
        yield Problem("strategy.find_unused_parameters", text, True, "strategy.static_graph=true where the same "
                      "parameters are unused in every step, or strategy.compression=bf16")  # fmt: skip
