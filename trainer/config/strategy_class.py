"""Declarations of strategy classes, read before the start without building, for Leyden's own without importing."""

import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from ..base.errors import Problem
from ..hardware.schema import Count, Strict, Topology
from .locate import locate, make_importable
from .misspelt_hooks import Contract, find_misspelling, not_inherited, own_names


class Processes(Strict):
    """The processes of a run: computed once by the strategy's class, and frozen into config.yaml."""

    workers: Count
    """Worker processes; 1 if one process simulates all workers."""
    servers: Annotated[int, Field(ge=0)] = 0
    """Parameter server processes."""
    elastic: bool = False
    """Whether a dead worker is restarted alone, while servers and other workers continue."""
    simulated: bool = False
    """Whether the workers of the topology are simulated by one process, which needs one device."""


class StrategyDeclarations:
    """Class attributes and class methods that a strategy declares; the defaults suit any strategy of Fabric's.

    A strategy inherits them with `core.strategy_contract.StrategyContract`.
    """

    needs_divisible_batch: ClassVar[bool] = True
    """Whether batch_size must be divisible by workers x accumulate_grad_batches. False: the strategy divides the batch
    by other rules, which its `validate_config` checks."""

    divides_parameters: ClassVar[bool] = False
    """Whether a worker holds a part of some parameters: what needs whole ones (LARS, Muon, adaptive clipping) is then
    refused."""

    can_unfreeze: ClassVar[bool] = False
    """Whether parameters without gradients may begin to have some in the middle of a run (model.unfreeze_at)."""

    shares_activations: ClassVar[bool] = True
    """Whether all workers make the same steps, each on samples of its own, so that a task's training_step may exchange
    tensors with those of the other workers (task=simclr)."""

    replicates_parameters: ClassVar[bool] = False
    """Whether each worker holds all parameters, gradients and optimizer states, and no more, so that with strategy=fsdp
    it needs less memory."""

    can_recompute: ClassVar[bool] = True
    """Whether less memory is needed with trainer.activation_checkpointing."""

    local_updates: ClassVar[bool] = False
    """Whether workers train weights of their own, which differ between two exchanges."""

    max_workers: ClassVar[int | None] = None
    """Maximum number of workers; None: any."""

    @classmethod
    def processes(cls, arguments: Mapping[str, Any], topology: Topology) -> Processes:
        """The processes that a run with these constructor arguments (config.strategy.arguments) starts."""
        return Processes(workers=topology.workers)

    @staticmethod
    def validate_config(config: Any) -> Iterable[Problem | str]:
        """Problems of a config (`config.schema.Config`) under this strategy, before anything starts; a str is a problem
        of the strategy as a whole."""
        return ()


_OURS = "leyden.trainer.strategies."
_DECLARED = "leyden.trainer.strategies.declarations"


def declarations_before_import(target: str) -> type[StrategyDeclarations] | None:
    """The declarations of one of Leyden's strategies; None: its class has to be imported (`declarations_of`).

    By name and not by an import statement: strategies are a layer above, and their classes import torch, which a
    mistake in batch_size or in the number of devices must not cost.
    """
    if not target.startswith(_OURS):
        return None
    return importlib.import_module(_DECLARED).DECLARATIONS.get(target.removeprefix(_OURS))


def declarations_of(found: Any) -> type[StrategyDeclarations]:
    """The declarations of an imported strategy; the defaults for a class of Fabric's, or a function."""
    is_ours = isinstance(found, type) and issubclass(found, StrategyDeclarations)
    return found if is_ours else StrategyDeclarations


def processes_of(
    target: str, arguments: Mapping[str, Any], topology: Topology, python_path: Iterable[str]
) -> Processes:
    """The processes of a run, from its strategy's class, which is imported unless it is one of Leyden's.

    Raises:
        ValueError: there is no such class.
    """
    declared = declarations_before_import(target)
    if declared is None:
        make_importable(python_path)
        declared = declarations_of(locate(target))
    return declared.processes(arguments, topology)


HOOKS = (
    "batch_share", "evaluation_share", "parts", "forward_is_collective", "gradients_in_forward", "build_context",
    "attach", "begin_fit", "ticket_source", "max_step_skew", "begin_part", "clip", "flush_pending_updates",
    "updates_pending", "eval_weights", "other_eval_weights", "extra_metrics", "histograms", "pictures",
    "weights_to_average", "share_average", "full_tensors", "tensor_slices", "local_tensors", "full_shapes",
    "full_state", "load_full_state", "shard", "parameter_count", "ledger", "traffic", "device_share", "disconnect",
    "validate_config", "processes", "needs_divisible_batch", "max_workers", "divides_parameters", "can_unfreeze",
    "shares_activations", "local_updates", "replicates_parameters", "can_recompute",
)  # fmt: skip
"""Every name that a strategy may define: those of StrategyContract, which a config error must not import."""

_CONTRACT = Contract("StrategyContract", "leyden.trainer.core.strategy_contract", HOOKS)


def hook_problems(found: Any) -> Iterator[Problem]:
    """Methods of a user-provided strategy that look like hooks and would never be called.

    Hooks are inherited from StrategyContract, so that a type checker reports a misspelt one; a class without it, or
    without type checks, must not lose a hook silently.
    """
    if not isinstance(found, type):
        return
    inherits = issubclass(found, StrategyDeclarations)
    for name in sorted(own_names(found)):
        if name in HOOKS and not inherits:
            yield not_inherited("strategy", found, name, _CONTRACT)
        else:
            yield from find_misspelling("strategy", found, name, _CONTRACT)
