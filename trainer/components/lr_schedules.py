"""Learning-rate schedules missing in torch."""

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


class WarmupCosine(LambdaLR):
    """Linear rise, then half a cosine (Loshchilov and Hutter 2017, eq. 5, one period).

    lr(t) = lr * (t + 1) / (warmup_steps + 1)                                          for t < warmup_steps
    lr(t) = lr * (final + (1 - final) * (1 + cos(pi * (t - warmup) / (total - warmup))) / 2)     after it

    Args:
        total_steps: optimizer steps of the whole training; supplied by the run.
        warmup_steps: steps of the linear rise.
        final_fraction: final learning rate, as a fraction of lr.

    Raises:
        ValueError: the warmup is longer than the training.
    """

    def __init__(self, optimizer: Optimizer, total_steps: int, warmup_steps: int = 0, final_fraction: float = 0.0):
        if warmup_steps > total_steps:
            raise ValueError(f"schedule.warmup_steps={warmup_steps} is more than the training's {total_steps} steps")
        falling = max(1, total_steps - warmup_steps)

        def factor(step: int) -> float:
            if step < warmup_steps:
                return (step + 1) / (warmup_steps + 1)
            progress = min(1.0, (step - warmup_steps) / falling)
            return final_fraction + (1 - final_fraction) * (1 + math.cos(math.pi * progress)) / 2

        super().__init__(optimizer, factor)
