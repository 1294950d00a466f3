"""Base class of local-update strategies (easgd, asgd, local_sgd)."""

import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lightning.fabric.strategies import DDPStrategy
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from ...base.log import log
from ...config.schema import Config
from ...core.checkpoints.sharded_checkpoint import CheckpointShards, Shard
from ...core.state import RunState
from ...core.strategy_contract import StrategyContract
from ...core.ticket_source import TicketSource
from ...core.traffic import Ledger
from ...core.transfers import Placement
from ...hardware.schema import Topology
from ..declarations import LocalUpdate
from ..execution import Execution
from ..param_server import checkpoint
from ..param_server.client import ParamServerClient
from ..param_server.shard import ParamShard
from ..param_server.work_queue import LockstepWorkQueue, WorkQueue
from .delay_models import DelayModel
from .distributed_executor import DistributedExecutor
from .executor import Executor
from .flat_parameters import FlatParameters, Replica
from .ops import UpdateRule
from .replay import Replay, read_events
from .simulated_executor import SimulatedExecutor
from .simulator import SimulatedWorker, Simulation, copy_buffers, empty_optimizer_state, group_settings
from .worker_state import all_saved_workers


class LocalUpdateStrategy(LocalUpdate, StrategyContract, DDPStrategy):
    """Each worker trains its own replica and takes local steps between exchanges.

    A subclass gives the update rule, a generator of ops (`ops.UpdateRule`). An executor runs it: `DistributedExecutor`
    for the one worker of this process, over the network; with `execution.simulate`, `SimulatedExecutor` for all workers
    in one process and in simulated time.

    The rule's evaluation weights are evaluated, exported and saved in the one-device layout of a checkpoint. Next to
    them are each worker's own weights, optimizer state and rule state; on another number of workers all start at the
    evaluation weights, without momentum. BatchNorm statistics are each worker's own; evaluation uses their mean.

    Args:
        execution: processes or a simulation, and the parameter servers. Only the first of elastic workers writes.
        timeout_s: a collective that takes longer raises.
    """

    ledger: Ledger
    executor: Executor

    def __init__(self, topology: Topology, execution: Execution, timeout_s: float):
        super().__init__(timeout=timedelta(seconds=timeout_s))
        self._backward_sync_control = None  # there is no DDP module whose reduction Fabric could skip
        self.workers = topology.workers
        self.topology = topology
        self.execution = execution
        self.elastic = execution.elastic and not execution.simulate
        self.incarnation = int(os.environ.get("LEYDEN_INCARNATION", "0")) if self.elastic else 0
        self.server_count = topology.usual_servers if execution.servers is None else execution.servers
        self._begun = False
        self._staleness: Counter[int] = Counter()

    @abstractmethod
    def make_rule(self, replica: Replica) -> UpdateRule:
        """The update rule of one worker."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """Kind of the workers' own state in a checkpoint, which only a strategy of the same kind restores."""

    def servers(self) -> int:
        """Number of parameter servers."""
        return 0

    def simulated_shard(self, values: Tensor, segments: list[tuple[int, int]], config: Config) -> ParamShard | None:
        """All parameters as the shard of a simulation's one server; None: no servers."""
        return None

    @override
    def setup_environment(self) -> None:
        if self.execution.simulate or self.elastic:
            self._set_world_ranks()
        else:
            super().setup_environment()
        first = self.topology.server_placement == "first_node"
        placement = Placement(self.workers, self.topology.devices_per_node, first)
        # None in the base: it is counted always, from here on
        self.ledger = Ledger(self.global_rank, placement, self.root_device)  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def global_rank(self) -> int:
        return int(os.environ["LEYDEN_WORKER"]) if self.elastic else super().global_rank

    @property
    def without_process_group(self) -> bool:
        """Whether this process has no collectives with others: simulated or elastic workers."""
        return self.execution.simulate or self.elastic

    @override
    def batch_share(self) -> tuple[int, int]:
        return self.global_rank, self.workers

    @override
    def evaluation_share(self) -> tuple[int, int]:
        return (0, 1) if self.without_process_group else self.batch_share()

    @override
    def setup_module(self, module: nn.Module) -> nn.Module:  # pyright: ignore[reportIncompatibleMethodOverride]  # no DDP
        """Flatten the module's parameters into one vector, equal on every worker."""
        self.flat = FlatParameters(module)
        if not self.without_process_group:
            dist.broadcast(self.flat.values, 0)
            for buffer in module.buffers():
                dist.broadcast(buffer, 0)
        return module

    @override
    def attach(self, state: RunState) -> None:
        """Create the executor: everything is built, nothing is loaded yet."""
        self.state = state
        self.executor = (
            self._simulated_executor(state) if self.execution.simulate else self._distributed_executor(state)
        )

    def _distributed_executor(self, state: RunState) -> DistributedExecutor:
        replica = Replica(self.flat, self.flat.values, state.raw_optimizer)
        rule, client, rank = self.make_rule(replica), None, self.global_rank
        if self.servers():
            segments = self.flat.segments(state.raw_optimizer)
            client = ParamServerClient(self.servers(), rank, self.incarnation, self.flat.values, segments, self.ledger)
        return DistributedExecutor(replica, rule, self.ledger, client, state, rank, self.elastic)

    def _simulated_executor(self, state: RunState) -> SimulatedExecutor:
        config, optimizer = state.config, state.raw_optimizer
        workers: list[SimulatedWorker] = []
        for number in range(self.workers):
            replica = Replica(self.flat, self.flat.values.clone(), optimizer)
            replica.own_state, replica.own_groups = empty_optimizer_state(), group_settings(optimizer)
            workers.append(SimulatedWorker(number, replica, self.make_rule(replica), copy_buffers(state.task), []))
        delays = DelayModel.of(self.execution, self.workers, config.seed)
        shard = self.simulated_shard(self.flat.values.clone(), self.flat.segments(optimizer), config)
        queue = LockstepWorkQueue(self.workers) if workers[0].rule.lockstep else self.make_work_queue(config)
        if self.execution.replay:
            events = read_events(Path(self.execution.replay))
            return SimulatedExecutor(Replay(workers, shard, queue, delays, self.ledger, events=events), state)
        return SimulatedExecutor(Simulation(workers, shard, queue, delays, self.ledger), state)

    @property
    @override
    def ticket_source(self) -> TicketSource | None:
        """Tickets of asynchronous workers; None: workers in lockstep."""
        executor: Executor | None = vars(self).get("executor")  # None before `attach`
        return None if executor is None else executor.ticket_source

    @staticmethod
    def make_work_queue(config: Config) -> WorkQueue:
        """The work queue of asynchronous workers."""
        return WorkQueue(config.topology.workers, config.strategy.arguments.get("warm_start_steps", 0))

    @override
    def begin_fit(self) -> None:
        """Start workers and servers at the module's weights, unless a checkpoint was loaded."""
        if self._begun:
            return
        self._start_workers()
        if self.incarnation:
            assert isinstance(self.executor, DistributedExecutor)
            self.executor.join()
        else:
            self.executor.start_servers(self.flat.values)

    def _start_workers(self) -> None:
        self._begun = True
        self.executor.start(self.flat.values)

    @override
    def begin_part(self, part: Any) -> None:
        self.executor.before_gradient()

    @override
    def optimizer_step(self, optimizer: Any, **kwargs: Any) -> Any:
        """The worker's own step, where its rule has one, then the rule's ops after it."""
        result = None
        if self._steps_locally:
            result = super().optimizer_step(optimizer, **kwargs)
        else:
            optimizer._opt_called = True  # torch's schedulers warn when they step before the optimizer
        self.executor.after_step()
        return result

    @property
    def _steps_locally(self) -> bool:
        return self.executor.current_rule.steps_locally

    def flat_eval_weights(self) -> Tensor:
        """The flat weights that are evaluated. A collective, between two steps."""
        return self.executor.eval_weights() if self._begun else self.flat.values

    @override
    @contextmanager
    def eval_weights(self, task: nn.Module) -> Iterator[None]:
        """A context with the evaluation weights and the workers' mean buffers in place of this worker's."""
        buffers = self.executor.mean_buffers(task) if self._begun else copy_buffers(task)
        with self._weights(task, self.flat_eval_weights(), buffers):
            yield

    @override
    def weights_to_average(self, task: nn.Module) -> list[Tensor] | None:
        """Weights for a running average of the evaluation weights, after a step; None: not known to this worker now."""
        values = self.executor.shared_weights()
        if values is None:
            return None
        views = {id(p): view for p, view in zip(self.flat.parameters, self.flat.views(values), strict=True)}
        return [views.get(id(parameter), parameter) for parameter in task.parameters()]

    @override
    def share_average(self, tensors: Sequence[Tensor]) -> None:
        """Broadcast the average: with servers, the first worker alone reads their parameters after its steps."""
        if self.servers() and not self.without_process_group:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    @contextmanager
    def _weights(self, task: nn.Module, values: Tensor, buffers: list[Tensor]) -> Iterator[None]:
        kept, kept_buffers = self.flat.values.clone(), copy_buffers(task)
        self.flat.values.copy_(values)
        _copy(buffers, task)
        try:
            yield
        finally:
            self.flat.values.copy_(kept)
            _copy(kept_buffers, task)

    @override
    def other_eval_weights(self, task: nn.Module) -> Iterator[tuple[str, Any]]:
        """Each worker's own weights, as (name, context), to validate them as well."""
        if not self.execution.validate_workers:
            return
        for worker, (values, buffers) in enumerate(self.executor.worker_weights(task)):
            yield f"worker{worker}", self._weights(task, values, buffers)

    @override
    def full_state(self, task: LightningModule, optimizer: Optimizer) -> dict[str, Any]:
        """The evaluation weights in the one-device layout; servers write their shards into files of their own."""
        with self.eval_weights(task):
            model = {name: value.clone() for name, value in task.state_dict().items()}
        groups = optimizer.state_dict()["param_groups"]
        content = {"model": model, "optimizer": {"state": {}, "param_groups": groups}}
        return {**content, "kind": self.kind, "servers": self.executor.save_servers(self.state.step)}

    @override
    def shard(self, task: LightningModule, optimizer: Optimizer) -> Shard | None:
        """State of this process's workers."""
        if self.elastic or not self._steps_locally:
            return None  # such workers restart from the servers' parameters
        return Shard(own={"local_update": {"kind": self.kind, "workers": self.executor.worker_states(task, optimizer)}})

    @override
    def load_full_state(
        self, task: LightningModule, optimizer: Optimizer | None, state: dict[str, Any], shards: CheckpointShards | None
    ) -> None:
        """Load the evaluation weights; then each worker's own state, if the same number of the same kind was saved."""
        saved = [] if shards is None else all_saved_workers(shards, self.kind)
        if shards is not None and shards.tensors:
            state = shards.put_together(state)
        task.load_state_dict(state["model"])
        if optimizer is None:
            return
        optimizer.load_state_dict(state["optimizer"])
        if state["optimizer"]["state"] and not self._steps_locally:
            log.info("the checkpoint's momenta are dropped: the servers start with new ones")
        # a checkpoint of a lockstep strategy has one optimizer state and one set of buffers, for all workers
        self.executor.replicate(task, optimizer)
        if self.incarnation:
            return
        if state.get("servers") and state.get("kind") == self.kind:
            self._try_servers(optimizer, state["position"]["step"], state["servers"])
            self._start_workers()
            self.executor.restore_servers(state["position"]["step"], state["servers"])
        else:
            self.begin_fit()
        if len(saved) == self.workers:
            self.executor.load_worker_states(saved, task, optimizer)
        elif self._steps_locally:
            log.info("all %d workers start at the evaluation weights", self.workers)

    def _try_servers(self, optimizer: Optimizer, step: int, servers: int) -> None:
        """Restore the servers' shards in this process: a server that cannot go on from its file would end the run.

        Raises:
            ValueError: they cannot be restored; the checkpoint before may be.
        """
        values = self.flat.values.detach().to("cpu", copy=True)
        shard = self.simulated_shard(values, self.flat.segments(optimizer), self.state.config)
        if shard is not None:
            shard.restore(checkpoint.load(self.state.run_dir, step, servers, 0, values.numel()))

    @override
    def extra_metrics(self) -> dict[str, float]:
        """Metrics to log: distances, staleness, load of the servers."""
        values, self._staleness = self.executor.collect_metrics()
        return values

    @override
    def histograms(self) -> dict[str, dict[int, int]]:
        """Pushes by staleness, as of the last `extra_metrics`."""
        return {"local_update/staleness": dict(self._staleness)} if self._staleness else {}

    @override
    def disconnect(self) -> None:
        """Sign off from the servers."""
        self.executor.leave()


def _copy(values: list[Tensor], task: nn.Module) -> None:
    for buffer, value in zip(task.buffers(), values, strict=True):
        buffer.copy_(value)
