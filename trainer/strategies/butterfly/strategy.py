"""strategy=butterfly: Deep Image's data parallelism; gradients cross by recursive halving and doubling."""

import inspect
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from math import inf
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.strategies import DDPStrategy
from lightning.pytorch import LightningModule
from PIL.Image import Image
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from ...base.errors import Problem, join_names, nearest
from ...base.log import log
from ...config.lightning.base_classes import is_lightning_module, overrides
from ...config.schema import Config, Target
from ...config.targets import find, parameters_of
from ...core.lightning_compat import BackwardSyncControl
from ...core.network.adaptive_clipping import clip_adaptively
from ...core.strategy_contract import StrategyContract
from ...core.traffic import Ledger, Workload, even_share
from ...core.transfers import DeviceShare, ExtraMemory, Placement, Transfer
from ..connect import connect
from ..partial_step import only, settings_now
from .buckets import Bucket, make_buckets
from .comm_stream import CommStream
from .comm_thread import CommThread
from .halving_doubling import ButterflyAllReduce, ButterflySchedule, Order, best_order
from .parameter_use import ParameterUse
from .postponed_update import as_outside, keep_update, refuse_changed_groups

_ORDERS = ("near_first", "far_first", "auto")
_SEE_GRADIENTS = ("on_after_backward", "on_before_optimizer_step")
_MB = 2**20


class Butterfly(StrategyContract, DDPStrategy):
    """Data parallelism over a butterfly, with lazy updates (Wu et al. 2015, Deep Image, arXiv 1501.02876).

    g = 1/K * sum_k g_k(w);  w <- w - lr * g, the same bits on every worker.

    The mean is taken by recursive halving and doubling (Thakur et al. 2005; see `halving_doubling.Butterfly`): a worker
    sends 2 (K - 1) / K * N * 4 bytes a step for N float32 gradients, in 2 log2 K messages for each piece of
    `bucket_cap_mb`.

    A layer's exchange starts as soon as its gradient exists, in a process group of its own: on CPUs on a thread, on
    GPUs on a stream. With `lazy`
    the layer's update, w <- w - lr_t * g_t with the learning rate of its own step, is done only when the next forward
    comes to that layer: the exchange overlaps with the rest of backward and with the forward of the layers before it.
    The numbers are those of `lazy: false`, bit for bit; evaluation and checkpoints see every update done. What reads
    weights between a step and the next forward (a callback's on_step_end, a task's on_train_batch_start) sees them
    without the updates that are still to come.

    Lazy waits for every exchange and updates at once, and says so, where all gradients are wanted first: by clipping,
    by the scaler of 16-mixed, by a task's on_after_backward or on_before_optimizer_step; with trainer.log_grad_norm in
    the steps that are logged.

    Equal to `single` on the same global batch. Parameters with requires_grad=False are left out; every other must get
    a gradient in every step. Running on GPUs is untested.

    Args:
        order: near_first: partners at distance 1, 2, 4, ..., the largest message to the nearest; far_first: the other
            way round; auto: what sends less out of the nodes.
        lazy: put each layer's update off until it is needed.
        bucket_cap_mb: gradients are exchanged in pieces of at most this size, in MiB; small layers share one.
        timeout_s: an exchange that waits longer raises.

    Raises:
        ValueError: an unknown order.
    """

    ledger: Ledger

    def __init__(self, order: str = "auto", lazy: bool = True, bucket_cap_mb: float = 8, timeout_s: float = 1800):
        super().__init__(timeout=timedelta(seconds=timeout_s))
        if order not in _ORDERS:
            raise ValueError(f"order={order!r} must be one of {', '.join(_ORDERS)}")
        self.order = order
        self.lazy = lazy
        self.bucket_cap_mb = bucket_cap_mb
        self._backward_sync_control = _OnlyAccumulate(self)
        self._buckets: list[Bucket] = []
        self._incomplete = 0
        self._collects = True
        """Whether the backward that runs ends a step."""
        self._collected = False
        """Whether the exchange has this step's gradients, and not the parameters."""
        self._optimizer: Optimizer | None = None
        self._put_off = 0
        """Buckets whose update is to be done."""
        self._usual_dtype = torch.get_default_dtype()

    @override
    @staticmethod
    def validate_config(config: Config) -> Iterator[Problem]:
        """What this strategy cannot do, before anything starts."""
        settings = config.strategy.arguments
        if config.topology.workers == 1:
            text = "exchanges gradients between workers, and the topology has one"
            yield Problem("strategy", text, "butterfly", "topology.devices_per_node=2 or strategy=single")
        order = settings.get("order", "auto")
        if order not in _ORDERS:
            close = nearest(str(order), _ORDERS) or "auto"
            text = f"must be one of {join_names(_ORDERS)}; did you mean {close}?"
            yield Problem("strategy.order", text, order, f"strategy.order={close}")
        for key, usual in (("bucket_cap_mb", 8), ("timeout_s", 1800)):
            if not settings.get(key, usual) > 0:
                yield Problem(f"strategy.{key}", "must be greater than 0", settings[key], f"strategy.{key}={usual}")
        if config.optimizer is not None:
            yield from _refused_optimizer(config.optimizer)
        if settings.get("lazy", True):
            yield from _refused_when_lazy(config)

    @override
    def setup_environment(self) -> None:
        super().setup_environment()
        placement = Placement(self.num_nodes * self.num_processes, self.num_processes)
        # None in the base: it is counted always, from here on
        self.ledger = Ledger(self.global_rank, placement, self.root_device)  # pyright: ignore[reportIncompatibleVariableOverride]
        order: Order = best_order(placement) if self.order == "auto" else self.order  # pyright: ignore[reportAssignmentType]
        group = dist.new_group(timeout=self._timeout)
        self._exchange = ButterflyAllReduce(self.global_rank, ButterflySchedule(placement, order), group)
        connect(self.root_device, group, self._exchange.peers)

    @override
    def setup_module(self, module: nn.Module) -> nn.Module:  # pyright: ignore[reportIncompatibleMethodOverride]  # no DDP around it
        """The same module, watched: its gradients are collected, its forwards wait for what they need.

        Raises:
            ValueError: nothing is to be trained; a second module; a compiled one with lazy updates.
        """
        if self._buckets:
            raise ValueError("strategy=butterfly trains one module, and this is the second that is set up")
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), 0)
        self._buckets = make_buckets(module, self.bucket_cap_mb * _MB)
        if not self._buckets:
            raise ValueError("strategy=butterfly: the module has no parameter with requires_grad=True")
        self._names = {id(parameter): name for name, parameter in module.named_parameters()}
        self._trained = frozenset(id(p) for bucket in self._buckets for p in bucket.parameters)
        self._postpones = self.lazy and self._can_postpone(module)
        comm = CommStream if self.root_device.type == "cuda" else CommThread
        self._comm = comm(self._buckets, self._exchange, self.ledger, self._postpones)
        weakref.finalize(self, self._comm.close)
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self._collect, bucket))
        if self._postpones:
            parameters = [parameter for bucket in self._buckets for parameter in bucket.parameters]
            ParameterUse(module, parameters, self._update_where_read)
        return module

    def _can_postpone(self, module: nn.Module) -> bool:
        if any(getattr(m, "_compiled_call_impl", None) is not None for m in module.modules()):
            raise ValueError("strategy=butterfly: a compiled model has no place to wait in: strategy.lazy=false")
        if getattr(self.precision, "scaler", None) is not None:
            self._say_at_once("16-mixed scales")
            return False
        for task in module.modules():
            hooks = [h for h in _SEE_GRADIENTS if is_lightning_module(task) and overrides(task, h)]
            if hooks:
                self._say_at_once(f"{type(task).__name__}.{hooks[0]} sees")
                return False
        return True

    def _say_at_once(self, who: str) -> None:
        if self.global_rank == 0:
            log.info("lazy: %s all gradients first, updates are applied at once", who)

    def _update_where_read(self, readers: list[list[nn.Module]]) -> None:
        """Before the forward of each module that reads parameters, their buckets' updates are done."""
        buckets = [bucket for bucket in self._buckets for _ in bucket.parameters]
        read: dict[nn.Module, dict[int, Bucket]] = {}
        for bucket, modules in zip(buckets, readers, strict=True):
            for module in modules:
                read.setdefault(module, {})[id(bucket)] = bucket
        for module, needed in read.items():
            module.register_forward_pre_hook(_CatchUp(self._catch_up, list(needed.values())), prepend=True)

    @override
    def backward(self, tensor: Tensor, module: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        """Backward; gradients are handed over as they come, and are waited for unless updates are put off.

        Raises:
            ValueError: a parameter got no gradient.
        """
        if not self._collects:
            super().backward(tensor, module, *args, **kwargs)
            return
        if self._collected:  # a second backward before the step adds to the averages
            self._fetch()
        self._catch_up(self._buckets)
        self._incomplete = len(self._buckets)
        for bucket in self._buckets:
            bucket.expect()
        super().backward(tensor, module, *args, **kwargs)
        self._collect_the_rest()
        self._collected = True
        if not self._postpones:
            self._fetch()

    def _collect(self, bucket: Bucket, parameter: nn.Parameter) -> None:
        if not self._collects:
            return
        if bucket.collect(parameter):
            self._incomplete -= 1
            self._comm.hand_over(bucket, last=self._incomplete == 0)

    def _collect_the_rest(self) -> None:
        """Parameters that got their gradient in an earlier part of the batch only."""
        if not self._incomplete:
            return
        missing = [(bucket, p) for bucket in self._buckets for p in bucket.missing.values()]
        without = [self._names[id(p)] for _, p in missing if p.grad is None]
        if without:
            raise ValueError(
                f"strategy=butterfly: backward gave no gradient to {join_names(without)}: freeze what is never used "
                "(requires_grad=False), or take strategy=ddp strategy.find_unused_parameters=true"
            )
        for bucket, parameter in missing:
            self._collect(bucket, parameter)

    @override
    def pictures(self) -> dict[str, Image]:
        self._catch_up(self._buckets)
        return self._exchange.pictures(sum(len(bucket.pieces) for bucket in self._buckets))

    def _fetch(self) -> None:
        """Wait for every exchange; the averages become the parameters' gradients."""
        for bucket in self._buckets:
            self._comm.wait(bucket)
            bucket.give()
        self._collected = False

    @override
    def clip(self, module: Any, optimizer: Any, value: float, algorithm: str) -> Tensor | None:
        """Clip by value, adaptively, or by the norm over all gradients, which have to be there."""
        if self._collected:
            if value < inf:  # clipping in every step, not a norm to be logged now and then
                self._postpones = False
                self._say_at_once("gradient_clip_val needs")
            self._fetch()
        raw = optimizer.optimizer
        if algorithm == "norm":
            return self.clip_gradients_norm(module, raw, max_norm=value, error_if_nonfinite=False)
        if algorithm == "adaptive":
            self.precision.unscale_gradients(raw)
            clip_adaptively(module, value)
        else:
            self.clip_gradients_value(module, raw, clip_val=value)
        return None

    @override
    def optimizer_step(self, optimizer: Any, **kwargs: Any) -> Any:
        """The optimizer's step: at once, or each layer's when it is needed.

        Raises:
            ValueError: a parameter is trained that was frozen when the module was set up; lazily, a second optimizer.
        """
        self._refuse_strangers(optimizer)
        if not self._collected:
            return self.precision.optimizer_step(optimizer, **kwargs)
        if kwargs or self._optimizer not in (None, optimizer):
            raise ValueError("strategy=butterfly puts off one optimizer's plain steps: strategy.lazy=false")
        self._optimizer = optimizer
        optimizer._opt_called = True  # what schedulers ask before they complain that they come first
        self._usual_dtype = torch.get_default_dtype()
        settings = [{key: keep_update(value) for key, value in group.items()} for group in settings_now(optimizer)]
        for bucket in self._buckets:
            bucket.settings = settings
        self._put_off = len(self._buckets)
        self._collected = False
        return None

    def _refuse_strangers(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and id(parameter) not in self._trained:
                    raise ValueError(
                        f"strategy=butterfly: {self._names.get(id(parameter), 'a parameter')} was frozen at the start "
                        "and is trained now; its gradient would stay this worker's own: strategy=single"
                    )

    def _catch_up(self, buckets: list[Bucket]) -> None:
        """Do the updates of these buckets that were put off."""
        if not self._put_off:
            return
        for bucket in buckets:
            if bucket.settings is not None:
                self._comm.wait(bucket)
                self._update(bucket)

    def _update(self, bucket: Bucket) -> None:
        optimizer = self._optimizer
        assert optimizer is not None
        settings, bucket.settings = bucket.settings, None
        self._put_off -= 1
        bucket.give()
        with as_outside(self.root_device.type, self._usual_dtype), only(optimizer, bucket.parameters, settings):
            before = [dict(group) for group in optimizer.param_groups]
            self.precision.optimizer_step(optimizer)
            refuse_changed_groups(optimizer, before)
        bucket.take_back()

    @override
    def updates_pending(self) -> bool:
        """Whether updates of the last step are to be done; those of the steps before are: backward waits for them."""
        return self._put_off > 0

    @override
    def flush_pending_updates(self, task: LightningModule) -> None:
        """Do every update that was put off; give every worker the first one's buffers (running means of BatchNorm)."""
        self._catch_up(self._buckets)
        for buffer in task.buffers():
            dist.broadcast(buffer, 0)

    @override
    def extra_metrics(self) -> dict[str, float]:
        """No metrics; but this is where all workers wait, between two steps."""
        self._comm.agree()
        return {}

    @override
    def traffic(self, workload: Workload) -> list[Transfer]:
        placement = workload.placement
        order: Order = best_order(placement) if self.order == "auto" else self.order  # pyright: ignore[reportAssignmentType]
        schedule = ButterflySchedule(placement, order)
        overlaps, needed_by = (("backward", "next forward"), "next forward") if self.lazy else (("backward",), "update")
        found: list[Transfer] = []
        for bucket in make_buckets(workload.network, self.bucket_cap_mb * _MB):
            vectors = [(len(piece), piece.element_size()) for piece in bucket.pieces]
            sends = partial(schedule.sends, vectors)
            more = {"overlaps": overlaps, "needed_by": needed_by, "after_gradients": workload.ready(bucket.parameters)}
            found.append(placement.transfer("gradients", "backward", sends, pattern="butterfly", **more))
        return found

    @override
    def device_share(self, workload: Workload) -> DeviceShare:
        """The gradients lie in flat vectors, which stay; half a piece is received at a time."""
        whole = sum(parameter.nbytes for parameter in workload.parameters)
        received = min(whole, self.bucket_cap_mb * _MB) / 2
        extra = ExtraMemory("flat gradients", whole), ExtraMemory("receive buffer", received)
        return replace(even_share(workload), gradients=0.0, extra=extra)


class _CatchUp:
    """A forward pre-hook. Who copies the module (an average of weights, say) gets this very hook, not a copy of all."""

    def __init__(self, catch_up: Callable[[list[Bucket]], None], buckets: list[Bucket]):
        self._catch_up = catch_up
        self._buckets = buckets

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        self._catch_up(self._buckets)

    def __deepcopy__(self, memo: Any) -> "_CatchUp":
        return self


class _OnlyAccumulate(BackwardSyncControl):
    """Backward of a part that does not end the step."""

    def __init__(self, strategy: Butterfly):
        self._strategy = weakref.proxy(strategy)

    def no_backward_sync(self, module: nn.Module, enabled: bool) -> AbstractContextManager[None]:
        return self._without(enabled)

    @contextmanager
    def _without(self, enabled: bool) -> Iterator[None]:
        self._strategy._collects = not enabled
        try:
            yield
        finally:
            self._strategy._collects = True


def _refused_optimizer(node: Target) -> Iterator[Problem]:
    step = getattr(find("optimizer", node), "step", None)
    closure = parameters_of(step).get("closure") if step is not None else None
    if closure is not None and closure.default is inspect.Parameter.empty:
        text = f"{node.target.rpartition('.')[2]}'s step needs a closure that computes the gradients again: not offered"
        yield Problem("optimizer", text, node.target, "optimizer=sgd")


def _refused_when_lazy(config: Config) -> Iterator[Problem]:
    remedy = "strategy.lazy=false"
    if config.trainer.compile:
        text = "a compiled model has no place to wait in for the updates that strategy=butterfly puts off"
        yield Problem("trainer.compile", text, True, remedy)
