"""strategy=hybrid: data parallelism for the convolutions, model parallelism for the fully connected head."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.strategies import DDPStrategy
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from typing_extensions import override

from ...base.errors import Problem, join_names
from ...config.schema import Config
from ...core.batch import Part
from ...core.checkpoints.sharded_checkpoint import CheckpointShards, together
from ...core.lightning_compat import BackwardSyncControl
from ...core.traffic import Workload
from ...core.transfers import DeviceShare, Transfer
from ..ddp.strategy import DDP
from ..declarations import OwnBatchShares
from ..partial_step import only, separate_rates
from .checks import problems
from .device_share import divided_layers, head_share
from .module_checks import refuse_local_batchnorm, refuse_tied_weights
from .p2p import P2PChannel
from .per_worker_passes import PerWorkerPasses
from .sharded_head import Rows, ShardedHead
from .traffic import Scheme, head_traffic

_WHOLE_TENSOR = ("Adafactor", "LAMB", "LARS", "LBFGS", "Muon", "Shampoo", "SOAP")
"""Optimizers whose update of an element depends on the others of its tensor, or that ask for a closure."""


class Hybrid(OwnBatchShares, DDP):
    """Convolutions replicated, fully connected layers divided over the same K workers.

    Sources: A. Krizhevsky, One weird trick for parallelizing convolutional neural networks, arXiv 1404.5997, 2014;
    R. Wu et al., Deep Image, arXiv 1501.02876, 2015, section 2.

    Worker k holds all weights w of the trunk, the rows k of every weight W of the head (`model.parallel.sharded`), and
    b samples of the global batch B = K b:

        h_k = trunk(w; x_k)                  its own samples, A features each, through its copy of the trunk
        y[:, k] = W[k] h + c[k]              the columns k of a head layer for the samples of all workers that are in
                                             the pass; between two layers all columns are gathered
        W[k] <- W[k] - s lr G[k]             G[k]: the gradient over the samples of the passes since its last update,
                                             their mean; nothing of W or G ever travels
        w <- w - lr 1/K sum_k g_k            once a step, g_k by way of dL/dh_k, which comes back from the head

    `scheme` says which samples share a pass:

    - a: one pass of all K b. Needs memory for the head's activations of the whole batch.
    - b: K passes, pass j of worker j's b, whose inputs travel during pass j - 1; one sender at a time. The trunk goes
      forward once, and backward when all passes are over. For one head that training_step calls once.
    - c: K passes of b samples, b / K of every worker: all links are busy in each. Krizhevsky ran the trunk once over
      all of b; here it goes forward and backward over each b / K (parts of a batch, as accumulate_grad_batches makes
      them), which is the same mathematics but for batch normalization, and sums their gradients before they travel.

    On the wire, a step and worker, e bytes an activation (half under mixed precision), hidden widths H_i, C classes, N
    bytes in the trunk; the same for all three schemes:

        2 (K - 1) b A e                      inputs of the head, and their gradients (if the trunk has parameters)
        2 (K - 1) b e sum_i H_i              columns between its layers, and their gradients
        2 (K - 1) / K b C e                  scores, and their gradients
        2 (K - 1) / K N                      all-reduce of the trunk's gradients, overlapping with its backward

    Scheme b sends inputs straight to each worker, the others pass them on in a ring: between nodes of g devices b sends
    (K - g) b A e a worker, a ring (K - 1) b A e a node. With every pass go some bytes to agree on sizes, and the
    samples' keys where there is dropout; the ledger leaves them out.

    Equal to `single` on the same global batch while the head is updated once a step (update_period: null). Otherwise,
    head updates after every p passes, each with the mean gradient of the samples in those passes: equal to that
    done one pass after the other in one process. Krizhevsky's rule: a layer's learning rate grows with the batch that
    it sees; with update_period=1, sharded_lr_scale=1/K.

    Args:
        scheme: a, b or c.
        update_period: passes of the head from one of its updates to the next, at most those of a step; None: all.
        sharded_lr_scale: s.
        local_batchnorm: whether batch normalization may take each worker's (in scheme c: each pass') own statistics.
        bucket_cap_mb: the trunk's gradients are sent in parts of this size, as they become ready.
        find_unused_parameters: look in every step for parameters of the trunk without a gradient.
        timeout_s: a message that takes longer raises.
        parallel: `sharded`: names of the modules to divide, as the model names them.
    """

    forward_is_collective = True
    gradients_in_forward = True  # scheme b: each pass of the head goes backward before the next

    def __init__(
        self,
        scheme: Scheme = "a",
        update_period: int | None = None,
        sharded_lr_scale: float = 1.0,
        local_batchnorm: bool = False,
        bucket_cap_mb: float = 25,
        find_unused_parameters: bool = False,
        timeout_s: float = 1800,
        parallel: dict[str, Any] | None = None,
    ):
        super().__init__(
            bucket_cap_mb=bucket_cap_mb, find_unused_parameters=find_unused_parameters, timeout_s=timeout_s
        )
        self._backward_sync_control = _HybridSyncControl()
        self.scheme: Scheme = scheme
        self.update_period = update_period
        self.sharded_lr_scale = sharded_lr_scale
        self.local_batchnorm = local_batchnorm
        self.sharded: list[str] = list((parallel or {}).get("sharded") or [])
        self._compiled = False
        self._heads: list[ShardedHead] = []
        self._rows: dict[nn.Parameter, Rows] = {}
        self._trunk: DistributedDataParallel | None = None
        self._optimizer: Optimizer | None = None
        self._part: Part | None = None
        self._part_weight = 1.0
        self._passes = 0
        self._weight = 0.0
        self._updates = 0

    @override
    @staticmethod
    def validate_config(config: Config) -> Iterator[Problem]:
        """Problems of a config."""
        return problems(config)

    @override
    def parts(self) -> int:
        return self.world_size if self.scheme == "c" else 1

    @override
    def setup_environment(self) -> None:
        super().setup_environment()
        self._exchange = P2PChannel(self.ledger, device=self.root_device)
        if self.scheme == "b" and self.world_size > 1:
            group = dist.new_group(timeout=self._timeout or timedelta(seconds=1800))
            self._ahead = P2PChannel(self.ledger, group, self.root_device)

    @override
    def setup_module(self, module: nn.Module) -> nn.Module:  # pyright: ignore[reportIncompatibleMethodOverride]
        """
        Raises:
            ValueError: a module cannot be divided, or normalizes over a worker's samples without local_batchnorm.
        """
        prefix = "task.model." if isinstance(getattr(module, "task", None), nn.Module) else ""
        if not self.local_batchnorm:
            refuse_local_batchnorm(module, self.world_size)
        self._compiled = any(getattr(child, "_compiled_call_impl", None) is not None for child in module.modules())
        for name in self.sharded:
            chain = self._chain(module, prefix, name)
            refuse_tied_weights(module, chain, name)
            self._divide(chain, name)
        if any(p.requires_grad and p not in self._rows for p in module.parameters()):
            ignored = [name for name, parameter in module.named_parameters() if parameter in self._rows]
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ignored)
            self._trunk = super().setup_module(module)
        return self._trunk or module

    def _chain(self, module: nn.Module, prefix: str, name: str) -> nn.Module:
        overlapping = [other for other in self.sharded if name.startswith(f"{other}.")]
        if overlapping or self.sharded.count(name) > 1:
            raise ValueError(f"model.parallel.sharded={self.sharded}: {name} is named twice")
        try:
            return module.get_submodule(prefix + name)
        except AttributeError:
            parent = module.get_submodule(prefix[:-1])
            there_are = join_names([child for child, _ in parent.named_children()])
            raise ValueError(f"model.parallel.sharded: the model has no module {name!r}; it has {there_are}") from None

    def _divide(self, chain: nn.Module, name: str) -> None:
        head = ShardedHead(name, chain, self._exchange)

        def forward(inputs: Tensor) -> Tensor:
            return self._scores(head, inputs)

        # a compiler would have to follow the messages; without one, its import would cost seconds
        chain.forward = torch.compiler.disable(forward) if self._compiled else forward  # pyright: ignore[reportAttributeAccessIssue]
        self._heads.append(head)
        self._rows.update(head.parameters())

    def _scores(self, head: ShardedHead, inputs: Tensor) -> Tensor:
        inputs = head.before(inputs)
        agreed = head.agree(inputs, self._part)
        self._part_weight = sum(agreed.weights)
        trained = inputs.requires_grad or any(parameter.requires_grad for parameter, _ in head.parameters())
        if self._takes_turns and torch.is_grad_enabled() and head.module.training and trained:
            scores = PerWorkerPasses(head, self._ahead, agreed, self._turn_done).scores(inputs)
        else:
            scores = head.together(inputs, agreed)
        return head.after(scores)

    @property
    def _takes_turns(self) -> bool:
        return self.scheme == "b" and self.world_size > 1

    @override
    def begin_part(self, part: Part) -> None:
        self._part = part

    @override
    def backward(self, tensor: Tensor, module: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        if self._trunk is not None:
            super().backward(tensor, module, *args, **kwargs)
        else:
            DDPStrategy.backward(self, tensor, module, *args, **kwargs)
        if not self._takes_turns:
            self._end_pass(self._part_weight, self._ends_step)

    @property
    def _ends_step(self) -> bool:
        return self._part is None or self._part.ends_step

    def _turn_done(self, turn: int, weight: float) -> None:
        self._end_pass(weight, self._ends_step and turn == self.world_size - 1)

    def _end_pass(self, weight: float, ends_step: bool) -> None:
        """After a pass: the head's gradients are the sum over workers of what their weighted losses give."""
        self._passes += 1
        self._weight += weight
        if not ends_step and self._passes != self.update_period:
            return
        in_one = ends_step and self._updates == 0
        total = float(self.world_size) if in_one else self._weight
        self._passes, self._weight = 0, 0.0
        self._updates = 0 if ends_step else self._updates + 1
        if total == 0.0:  # no worker had a sample: momentum alone must not move anything
            self._forget_gradients()
            return
        torch._foreach_div_([p.grad for p in self._rows if p.grad is not None], total)
        if not ends_step:
            self._update_head()

    def _update_head(self) -> None:
        assert self._optimizer is not None
        with only(self._optimizer, self._rows, lr_scale=self.sharded_lr_scale):
            self.precision.optimizer_step(self._optimizer)
        self._forget_gradients()

    def _forget_gradients(self) -> None:
        for parameter in self._rows:
            parameter.grad = None

    @override
    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        """
        Raises:
            ValueError: it cannot update a part of a tensor by itself.
        """
        name = type(optimizer).__name__
        if name in _WHOLE_TENSOR and self.world_size > 1:
            raise ValueError(
                f"strategy=hybrid: {name} works on whole tensors, and a worker has some rows of the head's: take one "
                "that treats each element by itself, such as SGD or AdamW"
            )
        self._optimizer = optimizer
        return optimizer

    @override
    def optimizer_step(self, optimizer: Any, **kwargs: Any) -> Any:
        """Both parts in one step, each at its own rate."""
        with separate_rates(optimizer, self._rows, self.sharded_lr_scale):
            return super().optimizer_step(optimizer, **kwargs)

    @override
    def clip(self, module: Any, optimizer: Any, value: float, algorithm: str) -> Tensor | None:
        """Clip by value, or by the norm over the trunk and all parts of the head."""
        assert self._optimizer is not None
        if algorithm == "value":
            self.clip_gradients_value(module, self._optimizer, value)
            return None
        parameters = [p for group in self._optimizer.param_groups for p in group["params"] if p.grad is not None]
        sharded = self._squared_norm([p.grad for p in parameters if p in self._rows])
        dist.all_reduce(sharded)
        trunk = self._squared_norm([p.grad for p in parameters if p not in self._rows])
        norm = (trunk + sharded).sqrt()
        torch.nn.utils.clip_grads_with_norm_(parameters, value, norm)
        return norm

    def _squared_norm(self, gradients: list[Any]) -> Tensor:
        return torch.nn.utils.get_total_norm(gradients).double().square().to(self.root_device)

    @override
    def full_state(self, task: LightningModule, optimizer: Optimizer) -> dict[str, Any]:
        """The layout of one device: every worker puts the head together."""
        model = task.state_dict()
        for name, parameter in task.named_parameters():
            if parameter in self._rows:
                model[name] = self._whole(parameter.detach(), self._rows[parameter])
        saved = optimizer.state_dict()
        state = dict(saved["state"])
        for number, parameter in _number_parameters(optimizer):
            rows = self._rows.get(parameter)
            if rows is not None and number in state:
                state[number] = {
                    key: self._whole(value, rows) if _like(value, parameter.shape) else value
                    for key, value in state[number].items()
                }
        return {"model": model, "optimizer": {**saved, "state": state}}

    def _whole(self, own: Tensor, rows: Rows) -> Tensor:
        return torch.cat(self._exchange.gather(own, [(count, *own.shape[1:]) for count in rows.shares]))

    @override
    def load_full_state(
        self, task: LightningModule, optimizer: Optimizer | None, state: dict[str, Any], shards: CheckpointShards | None
    ) -> None:
        """Load from the layout of one device, of which each worker takes its rows."""
        if shards is not None:
            state = shards.put_together(state)
        task.load_state_dict(state["model"])  # the divided layers take their rows by a hook
        if optimizer is None:
            return
        saved = dict(state["optimizer"]["state"])
        for number, parameter in _number_parameters(optimizer):
            rows = self._rows.get(parameter)
            if rows is not None and number in saved:
                whole = torch.Size([rows.whole, *parameter.shape[1:]])
                saved[number] = {
                    key: value[rows.own].clone() if _like(value, whole) else value
                    for key, value in saved[number].items()
                }
        optimizer.load_state_dict({**state["optimizer"], "state": saved})

    @override
    def full_tensors(self, task: nn.Module, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors in the shape of this worker's parameters, by their names, put together."""
        rows = {name: self._rows.get(parameter) for name, parameter in task.named_parameters()}
        return {n: value if (own := rows[n]) is None else self._whole(value, own) for n, value in values.items()}

    @override
    def local_tensors(
        self, task: nn.Module, saved: dict[str, Tensor], shards: CheckpointShards | None, prefix: str
    ) -> dict[str, Tensor]:
        """The inverse of `full_tensors`."""
        rows = {name: self._rows.get(parameter) for name, parameter in task.named_parameters()}
        whole = together(saved, shards, prefix)
        return {n: value if (own := rows.get(n)) is None else value[own.own] for n, value in whole.items()}

    @override
    def shard(self, task: LightningModule, optimizer: Optimizer) -> None:
        """Nothing: the checkpoint is whole."""

    @override
    def full_shapes(self, task: nn.Module) -> dict[str, torch.Size]:
        """Shape of every tensor of the task's state on one device."""
        shapes = {name: value.shape for name, value in task.state_dict().items() if isinstance(value, Tensor)}
        for name, parameter in task.named_parameters():
            if parameter in self._rows:
                shapes[name] = torch.Size([self._rows[parameter].whole, *parameter.shape[1:]])
        return shapes

    @override
    def parameter_count(self, task: nn.Module) -> int:
        shapes = self.full_shapes(task)
        return sum(shapes[name].numel() for name, _ in task.named_parameters())

    @override
    def traffic(self, workload: Workload) -> list[Transfer]:
        placement = workload.placement
        heads, trunk = divided_layers(workload, self.sharded)
        found: list[Transfer] = []
        for layers in heads.values():
            item_bytes = workload.activation_bytes or layers[0].weight.element_size()
            found += head_traffic(
                placement, self.scheme, workload.batch_size // placement.workers, layers[0].in_features,
                [layer.out_features for layer in layers], item_bytes, input_gradient=bool(trunk),
            )  # fmt: skip
        return found + self._bucket_traffic(workload, trunk)

    @override
    def device_share(self, workload: Workload) -> DeviceShare:
        heads, trunk = divided_layers(workload, self.sharded)
        item_bytes = workload.activation_bytes or workload.parameters[0].element_size()
        workers = workload.placement.workers
        share = head_share(heads, self.scheme, workers, -(-workload.batch_size // workers), item_bytes)
        return replace(share, gradients=0.0, extra=(*share.extra, *self._kept_memory(trunk)["extra"]))


class _HybridSyncControl(BackwardSyncControl):
    """Gradients are not averaged inside the context; without a trunk there are none to average."""

    def no_backward_sync(self, module: nn.Module, enabled: bool) -> AbstractContextManager[None]:
        return module.no_sync() if enabled and isinstance(module, DistributedDataParallel) else nullcontext()


def _number_parameters(optimizer: Optimizer) -> Iterator[tuple[int, nn.Parameter]]:
    """Parameters under the numbers that the optimizer's state_dict gives them."""
    return enumerate(parameter for group in optimizer.param_groups for parameter in group["params"])


def _like(value: Any, shape: torch.Size) -> bool:
    return isinstance(value, Tensor) and value.shape == shape
