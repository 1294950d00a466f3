"""strategy=fsdp and strategy=hsdp: every worker keeps a part of each parameter, through PyTorch's FSDP2."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter
from typing import Any

import torch.distributed as dist
from lightning.fabric.strategies import DDPStrategy
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.optim import Optimizer
from typing_extensions import override

from ...base.errors import Problem
from ...config.schema import Config
from ...core.checkpoints.sharded_checkpoint import CheckpointShards, together
from ...core.lightning_compat import BackwardSyncControl
from ...core.strategy_contract import StrategyContract
from ...core.traffic import Ledger, Workload
from ...core.transfers import DeviceShare, Phase, Placement, Send, Sends, Transfer, ring
from ..connect import connect, set_timeout
from ..declarations import ShardedParameters
from .device_share import sharded_share
from .torch_compat import DefaultAllGather, DefaultReduceScatter
from .wrap_policy import units


class FSDP(ShardedParameters, StrategyContract, DDPStrategy):
    """Fully sharded data parallelism: ZeRO's stage 3 (Rajbhandari et al. 2020, SC20; Zhao et al. 2023, VLDB 16(12)).

    Worker i of S keeps rows [i m, (i + 1) m) of every parameter w, m = ceil(rows / S), and of its gradient and
    optimizer state: 1/S of what `ddp` keeps. For one unit (a block of the network) after the other,

        forward:   w = all_gather(w_1 ... w_S);  y = f(w, x);  drop w
        backward:  w = all_gather(w_1 ... w_S);  g_j = dL/dw on worker j's share of the batch;  drop w
                   [g]_i = 1/W * sum_j [g_j]_i, by reduce_scatter
        update:    [w]_i <- [w]_i - lr * [g]_i

    with W the number of workers. fsdp: S = W. hsdp (Zhao et al., section 3.2.2): S is the number of devices in a node,
    and over the K nodes an all-reduce of that 1/S of the gradient follows.

    On the wire, a step and worker, with N bytes of parameters, each padded to a multiple of S rows, of which the root
    unit has R: (S - 1) / S * (2 N - R) of parameters, or (S - 1) / S * N without reshard_after_forward, once for each
    accumulated part; (S - 1) / S * N of gradients over NCCL, and twice that over gloo, whose reduce_scatter is an
    all-reduce of which most is thrown away. hsdp: 2 (K - 1) / K * N / S more, the only bytes between nodes. Clipping
    by norm adds one number, which is not counted.

    Equal to `single` on the same global batch.

    torch's gloo collectives block: there the ledger's exposed_seconds is all the time inside them. Over NCCL they run
    beside the computation, what is waited for is not seen from here, and exposed_seconds stays 0.

    In memory, the network while it is built, and a checkpoint while it is read, are whole in each worker's host memory.
    On the device there are the parts, and the root's, the current and the next unit. bf16-mixed is autocast here, as
    under every strategy: the rounded copy of each weight stays from forward to backward, two bytes a parameter.

    Args:
        reshard_after_forward: drop a unit's parameters between its forward and its backward. The root's are kept.
        min_parameters: the network is cut, from the inside out, into units of at least this many parameters; the root
            unit is the rest. A module whose weights are read without calling it must be inside a larger unit.
        accumulate_sharded: average the gradients of each accumulated part; false: only once a step, for which each
            worker keeps whole gradients from part to part.
        replicate_between_nodes: hsdp.
        timeout_s: a collective that takes longer raises.
    """

    ledger: Ledger
    forward_is_collective = True

    def __init__(
        self,
        reshard_after_forward: bool = True,
        min_parameters: int = 1_000_000,
        accumulate_sharded: bool = False,
        replicate_between_nodes: bool = False,
        timeout_s: float = 1800,
    ):
        super().__init__(timeout=timedelta(seconds=timeout_s))
        self.reshard_after_forward = reshard_after_forward
        self.min_parameters = min_parameters
        self.replicate_between_nodes = replicate_between_nodes
        self._backward_sync_control: Any = None if accumulate_sharded else _OnceAStep()
        self._units: list[_Unit] = []

    @override
    @staticmethod
    def validate_config(config: Config) -> list[Problem]:
        """What cannot be trained so."""
        return list(_problems(config))

    @override
    def setup_environment(self) -> None:
        super().setup_environment()
        nodes, here = self.num_nodes, self.num_processes
        # None in the base: it is counted always, from here on
        self.ledger = Ledger(self.global_rank, Placement(nodes * here, here), self.root_device)  # pyright: ignore[reportIncompatibleVariableOverride]
        sizes = {"between": nodes, "shard": here} if self.replicate_between_nodes else {"shard": nodes * here}
        self._mesh = init_device_mesh(self.root_device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        for group in self._mesh.get_all_groups():
            set_timeout(group, self._timeout)
            connect(self.root_device, group)
        self._placements = [Replicate()] * (len(sizes) - 1) + [Shard(0)]

    @override
    def module_to_device(self, module: nn.Module) -> None:
        """Nothing: the whole might not fit. `setup_module` moves one unit after the other."""

    @override
    def setup_module(self, module: nn.Module) -> Any:
        """Divide every parameter.

        Raises:
            ValueError: parameters of several dtypes, or without a dimension: neither can be divided.
        """
        kinds = {str(parameter.dtype).removeprefix("torch.") for parameter in module.parameters()}
        if len(kinds) > 1:
            raise ValueError(f"strategy=fsdp sends parameters of one dtype, and these have {', '.join(sorted(kinds))}")
        between = self._mesh.get_group("between") if self.replicate_between_nodes else None
        gather, scatter = _AllGather(self.ledger), _ReduceScatter(self.ledger, between)
        for block, parameters in units(module, self.min_parameters).items():
            again = self.reshard_after_forward and block is not module
            block.register_forward_hook(_in_memory_of_its_own)
            sizes = [(_padded_bytes(p, self._mesh.size(-1)), p.requires_grad) for p in parameters]
            divided = fully_shard(block, mesh=self._mesh, reshard_after_forward=again)
            self._units.append(_Unit(divided, sum(b for b, _ in sizes), sum(b for b, t in sizes if t), again))
            divided.set_custom_all_gather(gather)
            divided.set_custom_reduce_scatter(scatter)
            if between is not None:
                divided.set_all_reduce_hook(scatter.all_reduced)
        for child in module.modules():
            child.register_load_state_dict_pre_hook(self._divide_loaded)
        return module.to(self.root_device)  # what is no parameter and no buffer, such as the sums of a metric

    @override
    def setup_optimizer(self, optimizer: Optimizer) -> Optimizer:
        optimizer.register_load_state_dict_pre_hook(self._divide_loaded_state)
        return super().setup_optimizer(optimizer)

    def _divide_loaded(self, module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        """Whoever loads whole tensors, from a checkpoint or `init_from`, gives each worker its rows of them."""
        for name in module._parameters:
            value = state.get(prefix + name)
            if isinstance(value, Tensor):
                state[prefix + name] = self._cut_rows(value)

    def _divide_loaded_state(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        shapes = {number: parameter.shape for number, parameter in zip(numbers, parameters, strict=False)}
        divided = {
            number: {
                key: self._cut_rows(value) if isinstance(value, Tensor) and value.shape == shapes.get(number) else value
                for key, value in kept.items()
            }
            for number, kept in state["state"].items()
        }
        return {**state, "state": divided}

    def _cut_rows(self, whole: Tensor) -> Tensor:
        """This worker's rows, cut from a tensor that every worker has."""
        if isinstance(whole, DTensor) or whole.ndim == 0:
            return whole
        return distribute_tensor(whole.detach(), self._mesh, self._placements, src_data_rank=None)

    @override
    def full_state(self, task: LightningModule, optimizer: Optimizer) -> dict[str, Any]:
        """Whole tensors in the host memory of the first worker, put together one after the other by all workers."""
        return {"model": self.get_module_state_dict(task), "optimizer": self.get_optimizer_state(optimizer)}

    @override
    def get_module_state_dict(self, module: nn.Module) -> dict[str, Any]:
        return self._whole(module.state_dict())

    @override
    def get_optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        saved = optimizer.state_dict()
        return {**saved, "state": {number: self._whole(kept) for number, kept in saved["state"].items()}}

    @override
    def full_tensors(self, task: nn.Module, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Divided tensors put together, on the first worker."""
        return self._whole(values)

    @override
    def local_tensors(
        self, task: nn.Module, saved: dict[str, Tensor], shards: CheckpointShards | None, prefix: str
    ) -> dict[str, Tensor]:
        """The opposite."""
        return {name: self._cut_rows(value) for name, value in together(saved, shards, prefix).items()}

    def _whole(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Gather whole tensors on the first worker; the others take part, and get nothing."""
        kept: dict[str, Any] = {}
        for name, value in values.items():
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            if self.is_global_zero:
                kept[name] = whole.cpu() if isinstance(whole, Tensor) else whole
        return kept

    @override
    def flush_pending_updates(self, task: LightningModule) -> None:
        """Give every worker the first one's buffers (running means of BatchNorm)."""
        for buffer in task.buffers():
            dist.broadcast(buffer, 0)

    @override
    @contextmanager
    def eval_weights(self, task: nn.Module) -> Iterator[None]:
        """Afterwards drop what forward alone has gathered and kept: its parameters are divided again."""
        try:
            yield
        finally:
            for unit in self._units:
                unit.module.reshard()

    @override
    def traffic(self, workload: Workload) -> list[Transfer]:
        """Transfers of one part a step; with accumulated parts, parameters are sent in each of them."""
        found: list[Transfer] = []
        placement = workload.placement
        size = placement.workers_per_node if self.replicate_between_nodes else placement.workers
        cut = units(workload.network, self.min_parameters)
        for block, parameters in cut.items():
            whole = sum(_padded_bytes(p, size) for p in parameters)
            again = self.reshard_after_forward and block is not workload.network
            found += self._gather(workload, size, whole, again)
        for parameters in reversed(cut.values()):
            trained = [p for p in parameters if p.requires_grad]
            if trained:
                whole = sum(_padded_bytes(p, size) for p in trained)
                found += self._reduce(workload, size, whole, workload.ready(trained))
        return [transfer for transfer in found if transfer.bytes]

    @override
    def device_share(self, workload: Workload) -> DeviceShare:
        placement, cut = workload.placement, units(workload.network, self.min_parameters)
        shards = placement.workers_per_node if self.replicate_between_nodes else placement.workers
        samples = -(-workload.batch_size // placement.workers)
        return sharded_share(cut, workload.network, shards, samples, self.reshard_after_forward)

    @staticmethod
    def _gather(workload: Workload, size: int, whole: int, again: bool) -> list[Transfer]:
        phases: list[Phase] = ["forward", "backward"] if again else ["forward"]
        sends, transfer = _ring_of_shards(size, 1, whole), workload.placement.transfer
        return [
            transfer("parameters", phase, sends, overlaps=_overlap(workload, phase), needed_by=phase)
            for phase in phases
        ]

    def _reduce(self, workload: Workload, size: int, whole: int, ready: int) -> list[Transfer]:
        placement, overlaps = workload.placement, _overlap(workload, "backward")
        rounds = 2 if workload.device == "cpu" else 1  # gloo's reduce-scatter
        sends = _ring_of_shards(size, rounds, whole)
        found = [placement.transfer("gradients", "backward", sends, overlaps=overlaps, after_gradients=ready)]
        if self.replicate_between_nodes:

            def between(rank: int) -> Iterable[Send]:
                return ring(range(rank % size, placement.workers, size), 2, whole / size)(rank)

            found.append(placement.transfer("gradients", "backward", between, after_gradients=ready))
        return found


def _ring_of_shards(size: int, rounds: int, whole_bytes: float) -> Sends:
    """Once or twice around the ring of those that have the shards: of `size` workers in rank order."""

    def sends(rank: int) -> Iterable[Send]:
        first = rank // size * size
        return ring(range(first, first + size), rounds, whole_bytes)(rank)

    return sends


def _overlap(workload: Workload, phase: Phase) -> tuple[Phase, ...]:
    """A blocking collective, which gloo's are, overlaps with nothing."""
    return (phase,) if workload.device == "cuda" else ()


@dataclass(frozen=True)
class _Unit:
    """A block whose parameters are gathered together."""

    module: FSDPModule
    bytes: int
    """Bytes of the unit's parameters, each padded to as many rows for every worker."""
    trained_bytes: int
    """What of that gets a gradient."""
    gathered_again: bool
    """Whether the parameters are gathered again for the backward."""


def _padded_bytes(parameter: Tensor, shards: int) -> int:
    """Bytes of a parameter with as many rows for every worker."""
    rows, *rest = parameter.shape or (1,)
    return math.ceil(rows / shards) * shards * math.prod(rest) * parameter.element_size()


def _reduces_whole(group: dist.ProcessGroup) -> bool:
    """gloo's reduce_scatter is an all-reduce (torch 2.13, measured on a loopback device of its own)."""
    return dist.get_backend(group) == "gloo"


class _AllGather(DefaultAllGather):
    """torch's own, counted."""

    def __init__(self, ledger: Ledger):
        self._ledger = ledger

    def __call__(self, output_tensor: Tensor, *arguments: Any, group: dist.ProcessGroup, **more: Any) -> Any:
        self._ledger.all_gather(output_tensor.nbytes, dist.get_process_group_ranks(group))
        began = perf_counter()
        work = super().__call__(output_tensor, *arguments, group=group, **more)
        _wait_for_queue(self._ledger, began, output_tensor)
        return work


class _ReduceScatter(DefaultReduceScatter):
    """torch's own, counted, and under hsdp the all-reduce between nodes that follows it."""

    def __init__(self, ledger: Ledger, between: dist.ProcessGroup | None):
        self._ledger = ledger
        self._between = between
        self._ended = 0.0

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, *arguments: Any, **more: Any
    ) -> Any:
        count = self._ledger.all_reduce if _reduces_whole(group) else self._ledger.reduce_scatter
        count(input_tensor.nbytes, dist.get_process_group_ranks(group))
        began = perf_counter()
        work = super().__call__(output_tensor, input_tensor, group, *arguments, **more)
        _wait_for_queue(self._ledger, began, input_tensor)
        self._ended = perf_counter()
        return work

    def all_reduced(self, gradients: Tensor) -> None:
        """FSDP2 calls this right after hsdp's all-reduce, which itself follows the reduce_scatter at once."""
        assert self._between is not None
        self._ledger.all_reduce(gradients.nbytes, dist.get_process_group_ranks(self._between))
        _wait_for_queue(self._ledger, self._ended, gradients)


def _in_memory_of_its_own(block: nn.Module, inputs: Any, output: Any) -> Any:
    """What is returned as a view would lose FSDP2's backward hook to the first operation in place (x += y)."""
    return output.clone() if isinstance(output, Tensor) and output.requires_grad and output._is_view() else output


def _wait_for_queue(ledger: Ledger, began: float, tensor: Tensor) -> None:
    """A collective over NCCL is only queued when its call returns."""
    if tensor.device.type == "cpu":
        ledger.waited(began)


class _OnceAStep(BackwardSyncControl):
    """Gradients stay with their workers until the part that ends the step."""

    def no_backward_sync(self, module: nn.Module, enabled: bool) -> AbstractContextManager[None]:
        return _no_sync(module) if enabled else nullcontext()


@contextmanager
def _no_sync(module: nn.Module) -> Iterator[None]:
    assert isinstance(module, FSDPModule)
    module.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        module.set_requires_gradient_sync(True)


def _problems(config: Config) -> Iterator[Problem]:
    name = "hsdp" if config.strategy.arguments.get("replicate_between_nodes") else "fsdp"
    topology, trainer = config.topology, config.trainer
    if topology.workers == 1:
        text = f"strategy={name} divides the parameters over several workers, and the topology has one"
        yield Problem("strategy", text, name, "topology.devices_per_node=2, or strategy=single")
    elif name == "hsdp" and topology.nodes == 1:
        text = "hsdp replicates between nodes and needs topology.nodes of at least 2"
        yield Problem("strategy", text, name, "strategy=fsdp")
    elif name == "hsdp" and topology.devices_per_node == 1:
        text = "hsdp divides the parameters over the devices of a node, and topology.devices_per_node is 1"
        yield Problem("strategy", text, name, "strategy=fsdp, which divides them over the nodes, or strategy=ddp")
    if trainer.channels_last:
        text = f"strategy={name} divides parameters that are contiguous"
        yield Problem("trainer.channels_last", text, True, "trainer.channels_last=false")
    if trainer.precision == "16-mixed":
        text = f"strategy={name} does not scale losses"
        yield Problem("trainer.precision", text, trainer.precision, "trainer.precision=bf16-mixed")
