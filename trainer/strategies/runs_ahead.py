"""What strategies have in common whose workers hold weights of their own: easgd, asgd, local_sgd."""

import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.strategies import DDPStrategy
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer

from ..config import Config, Topology
from ..log import log
from ..servers import files
from ..servers.link import ServerLink
from ..servers.pieces import Piece
from ..servers.tickets import FixedTickets, Tickets
from ..shards import Shard, Shards
from ..state import RunState
from . import measures
from .delays import Delays
from .flat_parameters import FlatParameters, Replica
from .ledger import Ledger, Placement
from .live import Live
from .replay import Replay, read_events
from .requests import Rule
from .saved_workers import all_saved_workers, load_worker, optimizer_state, saved_worker
from .simulation import Simulation, VirtualWorker, clones, own_optimizer_state, settings
from .turns import LinkTurns, SimulatedTurns
from .turns_protocol import Turns


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
        self.turns: Turns | None = None
        """Who trains on what, where workers go by their own clocks; None: in lockstep."""
        self.live: Live | None = None
        self.simulation: Simulation | None = None
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
        if self.simulate:
            self._attach_simulation(state)
            return
        replica = Replica(self.flat, self.flat.values, state.raw_optimizer)
        self.rule = self.make_rule(replica)
        segments = self.flat.segments(state.raw_optimizer)
        link = None
        if self.servers():
            link = ServerLink(
                self.servers(), self.global_rank, self.incarnation, self.flat.values, segments, self.ledger
            )
        self.live = Live(replica, self.rule, self.ledger, link)
        if link is not None:
            barrier = link.meet if self.elastic else state.fabric.barrier
            self.turns = LinkTurns(link, lambda: self.live and self.live.finish("settle"), barrier)

    def _attach_simulation(self, state: RunState) -> None:
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
            self.simulation = Replay(workers, piece, tickets, delays, self.ledger, events=read_events(Path(replayed)))
        else:
            self.simulation = Simulation(workers, piece, tickets, delays, self.ledger)
        self.simulation.attach(state)
        self.turns = SimulatedTurns(self.simulation)

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
            self._join()
        elif self.live is not None and self.live.link is not None:
            if self.global_rank == 0:
                self.live.link.start(self.flat.values)
            self.barrier()

    def _join(self) -> None:
        """A worker that was started again goes on where the others are, at what the servers hold."""
        assert self.live is not None
        assert self.live.link is not None
        assert isinstance(self.turns, LinkTurns)
        stretch, state = self.live.link.where(), self.state
        if stretch is None:
            log.info("the others have ended: nothing is left to do")
            os._exit(0)
        self.turns.join(stretch.serial)
        self.live.rule.start(self.live.link.look())
        for entry in state.schedules:
            was, now = (state.step, stretch.step) if entry.interval == "step" else (state.epoch, stretch.epoch)
            for _ in range(now // entry.frequency - was // entry.frequency):
                entry.scheduler.step()
        state.epoch, state.step, state.step_in_epoch = stretch.epoch, stretch.step, stretch.first_round
        for logger in state.fabric.loggers if self.global_rank == 0 else ():
            if hasattr(logger, "cut_after"):
                logger.cut_after(state.step)  # pyright: ignore[reportAttributeAccessIssue]
        log.info("worker %d joins again at epoch %d, step %d", self.global_rank, state.epoch + 1, state.step)

    def _begin_at_module(self) -> None:
        self._begun = True
        if self.simulation is None:
            self._any_rule().start(self.flat.values)
            return
        for worker in self.simulation.workers:
            worker.rule.start(self.flat.values)
        if self.simulation.piece is not None:
            self.simulation.piece.values.copy_(self.flat.values)

    def begin_part(self, part: Any) -> None:
        if self.live is not None:
            self.live.begin()

    def optimizer_step(self, optimizer: Any, **kwargs: Any) -> Any:
        """The worker's own step, where its rule has one, and what the rule does after it."""
        result = None
        if self._any_rule().steps_locally:
            result = super().optimizer_step(optimizer, **kwargs)
        else:
            optimizer._opt_called = True  # what schedulers ask before they complain that they come first
        if self.simulation is not None:
            self.simulation.stepped()
        else:
            assert self.live is not None
            self.live.stepped()
        return result

    def _any_rule(self) -> Rule:
        return self.simulation.workers[0].rule if self.simulation is not None else self.rule

    def judged(self) -> Tensor:
        """The flat weights that count. All workers must call it, between two steps."""
        if not self._begun:
            return self.flat.values
        if self.simulation is not None:
            return self.simulation.finish("judged")[0]
        assert self.live is not None
        return self.live.finish("judged")

    @contextmanager
    def evaluated(self, task: nn.Module) -> Iterator[None]:
        """The judged weights and the workers' mean statistics in place of this worker's."""
        with self._weights(task, self.judged(), self._mean_buffers(task)):
            yield

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

    def _mean_buffers(self, task: nn.Module) -> list[Tensor]:
        """Mean over workers of what BatchNorm and its kin have measured; counters are the first worker's."""
        if self.simulation is not None and self._begun:
            each = [worker.buffers for worker in self.simulation.workers]
            return [torch.stack(b).mean(0) if b[0].is_floating_point() else b[0] for b in zip(*each, strict=True)]
        buffers = clones(task)
        if self.live is not None and not self.alone:
            for buffer in buffers:
                if buffer.is_floating_point():
                    dist.all_reduce(buffer)
                    buffer /= self.workers
        return buffers

    def others_judged(self, task: nn.Module) -> Iterator[tuple[str, Any]]:
        """Each worker's own weights, as (name, context), where they are to be validated as well."""
        for worker in range(self.workers):
            if self.simulation is not None:
                virtual = self.simulation.workers[worker]
                values, buffers = virtual.replica.values, virtual.buffers
            else:
                values, buffers = self.flat.values.clone(), clones(task)
                for tensor in (values, *buffers):
                    dist.broadcast(tensor, worker)
            yield f"worker{worker}", self._weights(task, values, buffers)

    def full_state(self, task: LightningModule, optimizer: Optimizer) -> dict[str, Any]:
        """The judged weights as one device would have them; servers write what they hold into files beside it."""
        with self.evaluated(task):
            model = {name: value.clone() for name, value in task.state_dict().items()}
        groups = optimizer.state_dict()["param_groups"]
        content = {"model": model, "optimizer": {"state": {}, "param_groups": groups}}
        return {**content, "kind": self.kind, "servers": self._save_servers()}

    def _save_servers(self) -> int:
        step = self.state.step
        if self.live is not None and self.live.link is not None:
            if self.global_rank == 0:
                self.live.link.save(step)
            return self.servers()
        if self.simulation is not None and self.simulation.piece is not None:
            files.save(self.simulation.piece, self.state.run_dir, step, server=0)
            return 1
        return 0

    def shard(self, task: LightningModule, optimizer: Optimizer) -> Shard | None:
        """What the workers of this process have for themselves."""
        if self.elastic or not self._any_rule().steps_locally:
            return None  # they begin again at what the servers have
        if self.simulation is not None:
            workers = [saved_worker(w.replica, w.rule, w.buffers, optimizer) for w in self.simulation.workers]
        else:
            assert self.live is not None
            workers = [saved_worker(self.live.replica, self.rule, clones(task), optimizer)]
        return Shard(own={"ahead": {"kind": self.kind, "workers": workers}})

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
        if state["optimizer"]["state"] and not self._any_rule().steps_locally:
            log.info("the checkpoint's momenta are dropped: the servers begin theirs anew")
        self._spread(task, optimizer)
        if self.incarnation:
            return
        self._begin_at_module()
        if not self._restore_servers(state):
            self._begun = False
            self.begin_fit()
        if len(saved) != self.workers:
            if self._any_rule().steps_locally:
                log.info("all %d workers start at the weights that were judged", self.workers)
            return
        if self.simulation is not None:
            for worker, own in zip(self.simulation.workers, saved, strict=True):
                load_worker(worker.replica, worker.rule, worker.buffers, optimizer, own)
        else:
            assert self.live is not None
            own = saved[self.global_rank]
            load_worker(self.live.replica, self.rule, list(task.buffers()), optimizer, own)

    def _spread(self, task: LightningModule, optimizer: Optimizer) -> None:
        """A checkpoint of a strategy in lockstep has one optimizer state and one set of statistics, for all workers."""
        if self.simulation is not None:
            for worker in self.simulation.workers:
                worker.replica.own_state = optimizer_state(optimizer)
                worker.replica.own_groups = settings(optimizer)
                worker.buffers = clones(task)

    def _restore_servers(self, content: dict[str, Any]) -> bool:
        """Whether the servers go on with what they have saved. All workers must call it."""
        servers, step = content.get("servers", 0), content["position"]["step"]
        if not servers or content.get("kind") != self.kind:
            return False
        if self.simulation is not None and self.simulation.piece is not None:
            piece = self.simulation.piece
            piece.restore(files.load(self.state.run_dir, step, servers, 0, piece.values.numel()))
        elif self.live is not None and self.live.link is not None:
            if self.global_rank == 0 and not self.incarnation:
                self.live.link.restore(step, servers)
            self.barrier()
        return True

    def measured(self) -> dict[str, float]:
        """What to log besides: distances, staleness, the servers' load."""
        values, self._late = measures.measured(self)
        return values

    def histograms(self) -> dict[str, dict[int, int]]:
        """Counts by value, as of the last `measured`."""
        return {"ahead/staleness": dict(self._late)} if self._late else {}

    def leave(self) -> None:
        """The worker has nothing more to ask of the servers."""
        if self.live is not None and self.live.link is not None:
            self.live.link.leave()


def _copy(values: list[Tensor], task: nn.Module) -> None:
    for buffer, value in zip(task.buffers(), values, strict=True):
        buffer.copy_(value)
