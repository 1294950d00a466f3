"""Check that the disk has space for checkpoints."""

import shutil
from typing import TYPE_CHECKING

from torch.optim import Optimizer

from ...base.errors import Problem, Refused

if TYPE_CHECKING:
    from ...core.state import RunState


def check_disk_space(state: "RunState") -> None:
    """Check the free space, on rank 0, for all workers.

    Raises:
        Refused: no space for two checkpoints, as the newest stays until the next is complete.
    """
    config = state.config
    saves = config.callbacks.get("checkpoint") is not None and not config.trainer.fast_dev_run
    parameters = state.contract.parameter_count(state.task)
    if not saves or state.fabric.world_size == 1 or not state.fabric.is_global_zero:
        return
    width = max((p.element_size() for p in state.task.parameters()), default=4)
    size = parameters * width * (1 + state_values_per_parameter(state.raw_optimizer))
    free = shutil.disk_usage(state.run_dir).free
    if free < 2 * size:
        text = f"has {free / 1e9:.3g} GB free, and two checkpoints of {parameters:,} parameters take about"
        text += f" {2 * size / 1e9:.3g} GB"
        remedy = "hydra.run.dir=FOLDER on a larger disk, or callbacks=none to save nothing"
        raise Refused(Problem("run folder", f"the disk of {state.run_dir} {text}", remedy=remedy))


def state_values_per_parameter(optimizer: Optimizer) -> int:
    """State values of an optimizer for each parameter, derived from its settings before its first step."""
    defaults = optimizer.defaults
    if "betas" in defaults:
        return 2
    return 1 if defaults.get("momentum", 1) else 0
