"""What a task with a loss over the samples of all workers gets from the run."""

from ...base.errors import CannotStart, Problem
from ...core.protocols import Contrastive
from ...core.state import RunState


def share_batches(state: RunState) -> None:
    """Tell a contrastive task how batches are shared among the workers.

    Raises:
        CannotStart: the augmentation makes another number of views of an image than the task compares.
    """
    task = state.task
    if not isinstance(task, Contrastive):
        return
    made = state.data.training_views
    if made != task.views:
        text = f"makes {made} views of an image, and the task compares {task.views}"
        raise CannotStart(Problem("augment", text, remedy="augment=simclr"))
    task.share_batches(state.padding, -(-state.config.batch_size // state.fabric.world_size))
