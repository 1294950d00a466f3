"""The contract between the training loop and a strategy: what the loop calls beyond Fabric's own methods."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from torch import nn
from torch.optim import Optimizer

from ..base.log import log
from ..config.strategy_class import StrategyDeclarations
from .batch import Part
from .checkpoints.sharded_checkpoint import CheckpointShards, Shard, TensorSlice, together
from .network.adaptive_clipping import clip_adaptively
from .ticket_source import TicketSource
from .traffic import Ledger, Workload, even_share
from .transfers import DeviceShare, Transfer

if TYPE_CHECKING:
    from PIL.Image import Image


class StrategyContract(StrategyDeclarations):
    """Hooks of a strategy with their defaults, inherited before one of Fabric's strategies.

        class Mine(StrategyContract, DDPStrategy):
            needs_divisible_batch = False

            @override
            def eval_weights(self, task): ...

    Every default suits a plain data-parallel strategy, so that a class overrides what differs and nothing else; with
    `@override` (typing_extensions) a type checker reports a misspelt hook, and `leyden` refuses a name that is nearly a
    hook's. A strategy of Fabric's that does not inherit this class trains with all the defaults.

    One run of the loop calls, in this order:

    - on the class, before anything starts: `needs_divisible_batch`, `max_workers`, `processes`, `validate_config`;
    - while the run is built: `setup_environment` (Fabric's), `parts`, `batch_share`, `evaluation_share`,
      `build_context`, `setup_module` and `setup_optimizer` (Fabric's), `attach`; `load_full_state` where a checkpoint
      is read; `begin_fit`;
    - in every part of every step: `begin_part`, forward and `backward` (Fabric's); in every step: `clip`,
      `optimizer_step` (Fabric's), `updates_pending`; where values are logged: `extra_metrics`, `histograms`; after the
      first epoch: `pictures`;
    - before evaluation, checkpoint and end: `flush_pending_updates`; around an evaluation: `eval_weights`;
    - for a checkpoint: `full_state`, `shard`; at the end: `disconnect`.

    All workers call these together and in the same order (asynchronous workers, where they synchronize), unless the
    hook says otherwise: a collective is allowed in each.
    """

    fabric: Fabric
    """Set before anything is built."""

    forward_is_collective: bool = False
    """Whether a forward needs all workers at once, so that one without samples has to run a dummy batch."""

    gradients_in_forward: bool = False
    """Whether a forward may compute gradients already: they are then zeroed before it, also where the task's
    on_before_zero_grad wants them to be zeroed after it."""

    max_step_skew: int = 1
    """Optimizer steps by which one worker can be ahead of another: a stop is agreed on so far in advance."""

    ledger: Ledger | None = None
    """What this worker has sent, and the time that it waited for it; None: the strategy does not count."""

    # --- shares of the data

    def batch_share(self) -> tuple[int, int]:
        """This worker's share of each global batch: (number of the share, number of shares)."""
        return self.fabric.global_rank, self.fabric.world_size

    def evaluation_share(self) -> tuple[int, int]:
        """The same of the data that is evaluated."""
        return self.batch_share()

    def parts(self) -> int:
        """Number of parts into which the strategy cuts each batch of a worker; they are computed one after the other,
        as with accumulate_grad_batches."""
        return 1

    @property
    def ticket_source(self) -> TicketSource | None:
        """Source of the next samples of asynchronous workers; None if all workers make the same steps."""
        return None

    # --- building and training

    def build_context(self) -> AbstractContextManager[Any]:
        """A context to build the model in, such as the meta device where no worker can hold the whole."""
        return nullcontext()

    def attach(self, state: Any) -> None:
        """The run (`core.state.RunState`) is built: called once, before weights are loaded."""

    def begin_fit(self) -> None:
        """Training begins: the weights are those of the seed, of init_from or of a checkpoint."""

    def begin_part(self, part: Part) -> None:
        """A part of a batch is about to go forward."""

    def clip(self, module: Any, optimizer: Any, value: float, algorithm: str) -> torch.Tensor | None:
        """Clip gradients by value, by the norm over all trained parameters of the whole network, or adaptively.

        By norm, returns the norm before clipping, which is logged; by an infinite one, that is all it does.

        Args:
            module: as Fabric.setup_module returned it.
            optimizer: as Fabric.setup_optimizers returned it.
            value: the largest norm, absolute value, or ratio of norms.
            algorithm: norm, value or adaptive; the last not for a strategy that declares `divides_parameters`.
        """
        if algorithm == "norm":
            return self.fabric.clip_gradients(module, optimizer, max_norm=value, error_if_nonfinite=False)
        if algorithm == "adaptive":
            self.fabric.strategy.precision.unscale_gradients(optimizer.optimizer)
            clip_adaptively(module, value)
        else:
            self.fabric.clip_gradients(module, optimizer, clip_val=value)
        return None

    def updates_pending(self) -> bool:
        """Whether parameters do not have the update of the last step yet. One worker may ask alone."""
        return False

    def flush_pending_updates(self, task: LightningModule) -> None:
        """Finish what is pending, and make replicas equal where they may differ (buffers of BatchNorm): before
        evaluation, checkpoint and end."""

    def extra_metrics(self) -> dict[str, float]:
        """More values to log, by metric name. The first worker's are logged; all are asked."""
        return {}

    def histograms(self) -> dict[str, dict[int, int]]:
        """More counts to log: by name, counts by value. The first worker alone is asked, after `extra_metrics`."""
        return {}

    def pictures(self) -> "dict[str, Image]":
        """How the work is divided and what was exchanged, by name, after the first epoch of a session. All workers are
        asked, and the first one's are logged."""
        return {}

    def traffic(self, workload: Workload) -> list[Transfer]:
        """What a worker sends in a step, as data: a pure function of the constructor's arguments and the workload,
        called on a strategy that was only built, without processes, process group or `setup_module`."""
        return []

    def device_share(self, workload: Workload) -> DeviceShare:
        """What one device computes and holds in a step, as data; as pure as `traffic`."""
        return even_share(workload)

    def disconnect(self) -> None:
        """The worker is done: it needs no other process any more."""

    # --- weights to evaluate

    def eval_weights(self, task: nn.Module) -> AbstractContextManager[Any]:
        """A context in which the task has the weights to evaluate and to export."""
        return nullcontext()

    def other_eval_weights(self, task: nn.Module) -> Iterable[tuple[str, AbstractContextManager[Any]]]:
        """Other weights to validate as well: (suffix of the metrics' names, a context with the weights)."""
        return ()

    def weights_to_average(self, task: nn.Module) -> Sequence[torch.Tensor] | None:
        """After a step, the weights that an average of weights (EMA) takes in: this worker's part of each of the task's
        parameters, in their order; None: not known to this worker now, to be asked again after the next step. One
        worker may ask alone."""
        return list(task.parameters())

    def share_average(self, tensors: Sequence[torch.Tensor]) -> None:
        """Before evaluation: an average that only the first worker could keep becomes that of all, in place."""

    # --- checkpoints, in the layout of one device

    def full_state(self, task: LightningModule, optimizer: Optimizer) -> dict[str, Any]:
        """`model` and `optimizer` as one device would have them, without what `shard` has; plain values of the
        strategy's own may be added. The first worker's is saved."""
        return {"model": task.state_dict(), "optimizer": optimizer.state_dict()}

    def shard(self, task: LightningModule, optimizer: Optimizer) -> Shard | None:
        """What this worker saves in a file of its own next to the checkpoint; None on all workers or on none."""
        return None

    def load_full_state(
        self, task: LightningModule, optimizer: Optimizer | None, state: dict[str, Any], shards: CheckpointShards | None
    ) -> None:
        """Load a checkpoint, whichever strategy wrote it.

        Args:
            optimizer: None: the model alone.
            state: what `full_state` returned.
            shards: the workers' files; None: there are none.
        """
        if shards is not None:
            state = shards.put_together(state)
            for name in shards.own(0):
                log.info("what %s has saved for each worker is dropped: this strategy has no use for it", name)
        task.load_state_dict(state["model"])
        if optimizer is not None:
            optimizer.load_state_dict(state["optimizer"])

    def full_tensors(self, task: nn.Module, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Tensors in the shape of this worker's parameters, by their names, gathered into the layout of one device, but
        for those in `tensor_slices`. The first worker's answer is saved."""
        return values

    def tensor_slices(self, task: nn.Module, values: dict[str, torch.Tensor]) -> dict[str, TensorSlice]:
        """Slices of those of the same tensors of which each worker saves its own part."""
        return {}

    def local_tensors(
        self, task: nn.Module, saved: dict[str, torch.Tensor], shards: CheckpointShards | None, prefix: str
    ) -> dict[str, torch.Tensor]:
        """The inverse of both: this worker's part of tensors that were saved under any strategy.

        Args:
            shards: the workers' files, in which names begin with `prefix`.
        """
        return together(saved, shards, prefix)

    def full_shapes(self, task: nn.Module) -> dict[str, torch.Size]:
        """Names and shapes of the task's tensors on one device; its load_state_dict takes such tensors."""
        return {name: value.shape for name, value in task.state_dict().items() if isinstance(value, torch.Tensor)}

    def parameter_count(self, task: nn.Module) -> int:
        """Parameters of the whole network, of which this worker may hold a part."""
        return sum(p.numel() for p in task.parameters())


def contract_of(fabric: Fabric) -> StrategyContract:
    """The strategy that a Fabric runs; one that does not inherit StrategyContract stands behind its defaults."""
    strategy = fabric.strategy
    contract = strategy if isinstance(strategy, StrategyContract) else StrategyContract()
    contract.fabric = fabric
    return contract
