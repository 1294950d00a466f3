"""Whether the disk has room for checkpoints."""

import shutil
from typing import TYPE_CHECKING

from torch.optim import Optimizer

from ..errors import Problem, Refused

if TYPE_CHECKING:
    from ..state import RunState


def check_room(state: "RunState") -> None:
    """The first worker looks; it refuses for all.

    Raises:
        Refused: two checkpoints would not fit: the newest stays until the next is whole.
    """
    config = state.config
    saves = config.callbacks.get("checkpoint") is not None and not config.trainer.fast_dev_run
    parameters = state.contract.parameter_count(state.task)
    if not saves or state.fabric.world_size == 1 or not state.fabric.is_global_zero:
        return
    width = max((p.element_size() for p in state.task.parameters()), default=4)
    size = parameters * width * (1 + moments(state.raw_optimizer))
    free = shutil.disk_usage(state.run_dir).free
    if free < 2 * size:
        text = f"has {free / 1e9:.3g} GB free, and two checkpoints of {parameters:,} parameters take about"
        text += f" {2 * size / 1e9:.3g} GB"
        remedy = "hydra.run.dir=FOLDER on a larger disk, or callbacks=none to save nothing"
        raise Refused(Problem("run folder", f"the disk of {state.run_dir} {text}", remedy=remedy))


def moments(optimizer: Optimizer) -> int:
    """Numbers that an optimizer keeps for each parameter, as its settings tell before its first step."""
    defaults = optimizer.defaults
    if "betas" in defaults:
        return 2
    return 1 if defaults.get("momentum", 1) else 0
