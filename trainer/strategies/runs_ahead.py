"""What strategies have in common whose workers hold weights of their own: easgd, asgd, local_sgd."""

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

from ..config import Config, Topology
from ..log import log
from ..servers.link import ServerLink
from ..servers.pieces import Piece
from ..servers.tickets import FixedTickets, Tickets
from ..shards import Shard, Shards
from ..state import RunState
from .delays import Delays
from .flat_parameters import FlatParameters, Replica
from .ledger import Ledger, Placement
from .live import Live
from .replay import Replay, read_events
from .requests import Rule
from .saved_workers import all_saved_workers
from .simulation import Simulation, VirtualWorker, clones, own_optimizer_state, settings
from .turns_protocol import Turns
from .virtual import Virtual
from .workers_here import WorkersHere


class RunsAhead(DDPStrategy):
    """Workers that train on weights of their own and exchange with others now and then.

    A subclass says the update rule, as a generator of requests (`requests.Rule`). Here it is carried out: by this
    process for one worker, over the network; or, with `simulate`, by one process for all of them, in virtual time.

    What is evaluated, exported and found in a checkpoint in the layout of one device is what the rule says is judged.
    Each worker's own weights, momenta and what its rule remembers lie beside it; on another number of workers all start
    at the judged weights, with no momentum. BatchNorm's statistics are each worker's own, and their mean is judged.

    Args:
        simulate: virtual workers, as many as the topology has, in one process.
        delay: how long a virtual worker's gradient takes: constant, exponential, straggler.
        delay_ms: the mean of that, in milliseconds of virtual time.
        slower: of a straggler: so many times.
        link_mbit_s: rate of the virtual link; None: transfers take no time.
        timeout_s: a collective that takes longer raises.
        elastic: workers know each other through the servers alone, so that they can come and go. Only the first writes.
    """

    ledger: Ledger
    here: WorkersHere

    def __init__(
        self, topology: Topology, simulate: bool, delay: str, delay_ms: float, slower: float,
        link_mbit_s: float | None, timeout_s: float, elastic: bool = False,
    ):  # fmt: skip
        super().__init__(timeout=timedelta(seconds=timeout_s))
        self._backward_sync_control = None
        self.workers = topology.workers
        self.topology = topology
        self.simulate = simulate
        self.elastic = elastic and not simulate
        self.incarnation = int(os.environ.get("LEYDEN_INCARNATION", "0")) if self.elastic else 0
        self._delay = (delay, delay_ms / 1e3, slower)
        self._bytes_a_second = None if link_mbit_s is None else link_mbit_s * 1e6 / 8
        self._begun = False
        self._late: Counter[int] = Counter()

    @abstractmethod
    def make_rule(self, replica: Replica) -> Rule:
        """The update rule of one worker."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """What the workers' own state in a checkpoint is good for."""

    def servers(self) -> int:
        """How many processes hold parameters."""
        return 0

    def piece(self, values: Tensor, segments: list[tuple[int, int]], config: Config) -> Piece | None:
        """The whole of the parameters, as one server, for a simulation."""
        return None

    def setup_environment(self) -> None:
        if self.simulate or self.elastic:
            self._set_world_ranks()
        else:
            super().setup_environment()
        first = self.topology.server_placement == "first_node"
        placement = Placement(self.workers, self.topology.devices_per_node, first)
        self.ledger = Ledger(self.global_rank, placement)

    @property
    def global_rank(self) -> int:
        return int(os.environ["LEYDEN_WORKER"]) if self.elastic else super().global_rank

    @property
    def alone(self) -> bool:
        """Whether this process has no others to meet but through servers."""
        return self.simulate or self.elastic

    def batch_share(self) -> tuple[int, int]:
        return self.global_rank, self.workers

    def evaluation_share(self) -> tuple[int, int]:
        return (0, 1) if self.alone else self.batch_share()

    def setup_module(self, module: nn.Module) -> nn.Module:  # pyright: ignore[reportIncompatibleMethodOverride]  # no DDP
        """The same module, its parameters in one vector, the same on every worker."""
        self.flat = FlatParameters(module)
        if not self.alone:
            dist.broadcast(self.flat.values, 0)
            for buffer in module.buffers():
                dist.broadcast(buffer, 0)
        return module

    def attach(self, state: RunState) -> None:
        """Everything is built; nothing is loaded yet."""
        self.state = state
        self.here = self._virtual(state) if self.simulate else self._live(state)

    def _live(self, state: RunState) -> Live:
        replica = Replica(self.flat, self.flat.values, state.raw_optimizer)
        rule, link, rank = self.make_rule(replica), None, self.global_rank
        if self.servers():
            segments = self.flat.segments(state.raw_optimizer)
            link = ServerLink(self.servers(), rank, self.incarnation, self.flat.values, segments, self.ledger)
        return Live(replica, rule, self.ledger, link, state, rank, self.elastic)

    def _virtual(self, state: RunState) -> Virtual:
        config, optimizer = state.config, state.raw_optimizer
        workers: list[VirtualWorker] = []
        for number in range(self.workers):
            replica = Replica(self.flat, self.flat.values.clone(), optimizer)
            replica.own_state, replica.own_groups = own_optimizer_state(), settings(optimizer)
            workers.append(VirtualWorker(number, replica, self.make_rule(replica), clones(state.task), []))
        kind, mean, slower = self._delay
        delays = Delays(kind, mean, slower, self.workers, config.seed, self._bytes_a_second)
        piece = self.piece(self.flat.values.clone(), self.flat.segments(optimizer), config)
        tickets = FixedTickets(self.workers) if workers[0].rule.lockstep else self.make_tickets(config)
        replayed = config.strategy.arguments.get("replay")
        if replayed:
            events = read_events(Path(replayed))
            return Virtual(Replay(workers, piece, tickets, delays, self.ledger, events=events), state)
        return Virtual(Simulation(workers, piece, tickets, delays, self.ledger), state)

    @property
    def turns(self) -> Turns | None:
        """Who trains on what, where workers go by their own clocks; None: in lockstep."""
        return self.here.turns

    @staticmethod
    def make_tickets(config: Config) -> Tickets:
        """The counter that workers by their own clocks draw from."""
        return Tickets(config.topology.workers, config.strategy.arguments.get("warm_start_steps", 0))

    def begin_fit(self) -> None:
        """Training begins at the weights that the module has now, unless a checkpoint was loaded."""
        if self._begun:
            return
        self._begin_at_module()
        if self.incarnation:
            assert isinstance(self.here, Live)
            self.here.join()
        else:
            self.here.start_servers(self.flat.values)

    def _begin_at_module(self) -> None:
        self._begun = True
        self.here.start(self.flat.values)

    def begin_part(self, part: Any) -> None:
        self.here.begin()

    def optimizer_step(self, optimizer: Any, **kwargs: Any) -> Any:
        """The worker's own step, where its rule has one, and what the rule does after it."""
        result = None
        if self._steps_locally:
            result = super().optimizer_step(optimizer, **kwargs)
        else:
            optimizer._opt_called = True  # what schedulers ask before they complain that they come first
        self.here.stepped()
        return result

    @property
    def _steps_locally(self) -> bool:
        return self.here.current.steps_locally

    def judged(self) -> Tensor:
        """The flat weights that count. All workers must call it, between two steps."""
        return self.here.judged() if self._begun else self.flat.values

    @contextmanager
    def evaluated(self, task: nn.Module) -> Iterator[None]:
        """The judged weights and the workers' mean statistics in place of this worker's."""
        buffers = self.here.mean_buffers(task) if self._begun else clones(task)
        with self._weights(task, self.judged(), buffers):
            yield

    def weights_to_average(self, task: nn.Module) -> list[Tensor] | None:
        """What an average of the evaluated weights takes in after a step; None: not known to this worker now."""
        values = self.here.shared()
        if values is None:
            return None
        views = {id(p): view for p, view in zip(self.flat.parameters, self.flat.views(values), strict=True)}
        return [views.get(id(parameter), parameter) for parameter in task.parameters()]

    def share_average(self, tensors: Sequence[Tensor]) -> None:
        """With servers the first worker alone asks them after its steps."""
        if self.servers() and not self.alone:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    @contextmanager
    def _weights(self, task: nn.Module, values: Tensor, buffers: list[Tensor]) -> Iterator[None]:
        kept, kept_buffers = self.flat.values.clone(), clones(task)
        self.flat.values.copy_(values)
        _copy(buffers, task)
        try:
            yield
        finally:
            self.flat.values.copy_(kept)
            _copy(kept_buffers, task)

    def others_judged(self, task: nn.Module) -> Iterator[tuple[str, Any]]:
        """Each worker's own weights, as (name, context), where they are to be validated as well."""
        for worker, (values, buffers) in enumerate(self.here.each(task)):
            yield f"worker{worker}", self._weights(task, values, buffers)

    def full_state(self, task: LightningModule, optimizer: Optimizer) -> dict[str, Any]:
        """The judged weights as one device would have them; servers write what they hold into files beside it."""
        with self.evaluated(task):
            model = {name: value.clone() for name, value in task.state_dict().items()}
        groups = optimizer.state_dict()["param_groups"]
        content = {"model": model, "optimizer": {"state": {}, "param_groups": groups}}
        return {**content, "kind": self.kind, "servers": self.here.save_servers(self.state.step)}

    def shard(self, task: LightningModule, optimizer: Optimizer) -> Shard | None:
        """What the workers of this process have for themselves."""
        if self.elastic or not self._steps_locally:
            return None  # they begin again at what the servers have
        return Shard(own={"ahead": {"kind": self.kind, "workers": self.here.saved(task, optimizer)}})

    def load_full_state(
        self, task: LightningModule, optimizer: Optimizer | None, state: dict[str, Any], shards: Shards | None
    ) -> None:
        """The judged weights; then each worker's own, where as many of the same kind were saved."""
        saved = [] if shards is None else all_saved_workers(shards, self.kind)
        if shards is not None and shards.tensors:
            state = shards.put_together(state)
        task.load_state_dict(state["model"])
        if optimizer is None:
            return
        optimizer.load_state_dict(state["optimizer"])
        if state["optimizer"]["state"] and not self._steps_locally:
            log.info("the checkpoint's momenta are dropped: the servers begin theirs anew")
        # a checkpoint of a strategy in lockstep has one optimizer state and one set of statistics, for all workers
        self.here.inherit(task, optimizer)
        if self.incarnation:
            return
        if state.get("servers") and state.get("kind") == self.kind:
            self._begin_at_module()
            self.here.restore_servers(state["position"]["step"], state["servers"])
        else:
            self.begin_fit()
        if len(saved) == self.workers:
            self.here.load(saved, task, optimizer)
        elif self._steps_locally:
            log.info("all %d workers start at the weights that were judged", self.workers)

    def measured(self) -> dict[str, float]:
        """What to log besides: distances, staleness, the servers' load."""
        values, self._late = self.here.measured()
        return values

    def histograms(self) -> dict[str, dict[int, int]]:
        """Counts by value, as of the last `measured`."""
        return {"ahead/staleness": dict(self._late)} if self._late else {}

    def leave(self) -> None:
        """The worker has nothing more to ask of the servers."""
        self.here.leave()


def _copy(values: list[Tensor], task: nn.Module) -> None:
    for buffer, value in zip(task.buffers(), values, strict=True):
        buffer.copy_(value)
