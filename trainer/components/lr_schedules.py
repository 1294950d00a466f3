"""Learning-rate schedules as factors on each parameter group's own rate, with a warm-up and a cool-down.

They are stepped once an optimizer step. Durations are optimizer steps (500), epochs (5ep) or a fraction of the training
(0.05).
"""

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from typing_extensions import override

from ..base.log import log

Duration = int | float | str

_EPOCHS = re.compile(r"(\d+(?:\.\d*)?)ep")


def steps_of(key: str, duration: Duration, total_steps: int, steps_per_epoch: int) -> int:
    """Optimizer steps of a duration.

    Raises:
        ValueError: it is none, negative, or longer than the training.
    """
    epochs = _EPOCHS.fullmatch(duration) if isinstance(duration, str) else None
    if epochs is not None:
        steps = round(float(epochs[1]) * steps_per_epoch)
    elif isinstance(duration, float) and 0 <= duration <= 1:
        steps = round(duration * total_steps)
    elif isinstance(duration, int) and not isinstance(duration, bool) and duration >= 0:
        steps = duration
    else:
        raise ValueError(f"{key}={duration} must be steps (500), epochs (5ep) or a fraction of the training (0.05)")
    if steps > total_steps:
        raise ValueError(f"schedule.{key}={duration} is more than the training's {total_steps} steps")
    return steps


@dataclass(eq=False)
class WarmupSchedule(LambdaLR):
    """What the schedules have in common.

    lr(t) = lr * (t + 1) / (warmup + 1) * shape(0)       for t < warmup
    lr(t) = lr * shape((t - warmup) / body)              for the body of total - warmup - cooldown steps
    lr(t) = lr * shape(1) * (1 - s) or (1 - sqrt(s))     for the cool-down, of which the part s is done

    Args:
        total_steps: optimizer steps of the whole training; supplied by the run.
        steps_per_epoch: supplied by the run.
        warmup_steps: duration of the linear rise.
        cooldown_steps: duration of the fall to 0 at the end.
        cooldown_shape: linear, or sqrt (Hagele et al. 2024, arXiv 2405.18392).

    Raises:
        ValueError: warm-up and cool-down are longer than the training.
    """

    counts_steps: ClassVar[bool] = True
    """Whether schedule.interval has to be step, with frequency 1."""

    optimizer: Optimizer
    total_steps: int
    steps_per_epoch: int = 1
    warmup_steps: Duration = 0
    cooldown_steps: Duration = 0
    cooldown_shape: Literal["linear", "sqrt"] = "linear"

    def __post_init__(self) -> None:
        if self.cooldown_shape not in ("linear", "sqrt"):
            raise ValueError(f"cooldown_shape={self.cooldown_shape!r} must be one of linear, sqrt")
        super().__init__(self.optimizer, self._factors())

    def _factors(self) -> Callable[[int], float]:
        warmup = steps_of("warmup_steps", self.warmup_steps, self.total_steps, self.steps_per_epoch)
        cooldown = steps_of("cooldown_steps", self.cooldown_steps, self.total_steps, self.steps_per_epoch)
        cools_from = self.total_steps - cooldown
        if cools_from < warmup:
            both = f"warmup_steps={self.warmup_steps} and cooldown_steps={self.cooldown_steps}"
            raise ValueError(f"schedule: {both} are together more than the training's {self.total_steps} steps")

        def factor(step: int) -> float:
            if step < warmup:
                return (step + 1) / (warmup + 1) * self.shape(0.0, 0)
            if cooldown and step > cools_from:
                done = min(1.0, (step - cools_from) / cooldown)
                return self.shape(1.0, cools_from) * (1 - (done if self.cooldown_shape == "linear" else done**0.5))
            return self.shape(min(1.0, (step - warmup) / max(1, cools_from - warmup)), step)

        return factor

    @abstractmethod
    def shape(self, progress: float, step: int) -> float:
        """Factor after a part of the body, from 0 to 1, at optimizer step `step`."""

    @override
    def state_dict(self) -> dict[str, Any]:
        """Without the arguments: a resumed run may be longer than the one that was saved."""
        arguments = {field.name for field in fields(self)}
        return {name: value for name, value in super().state_dict().items() if name not in arguments}


@dataclass(eq=False)
class Constant(WarmupSchedule):
    """schedule=wsd: warm-up, stable, decay (Hu et al. 2024, arXiv 2404.06395); schedule=constant is none at all."""

    @override
    def shape(self, progress: float, step: int) -> float:
        return 1.0


@dataclass(eq=False)
class WarmupCosine(WarmupSchedule):
    """Half a cosine (Loshchilov and Hutter 2017, eq. 5, one period).

    shape(p) = final + (1 - final) * (1 + cos(pi * p)) / 2

    Args:
        final_fraction: final learning rate, as a fraction of lr.
    """

    final_fraction: float = 0.0

    @override
    def shape(self, progress: float, step: int) -> float:
        return self.final_fraction + (1 - self.final_fraction) * (1 + math.cos(math.pi * progress)) / 2


@dataclass(eq=False)
class Polynomial(WarmupSchedule):
    """shape(p) = final + (1 - final) * (1 - p) ^ power; power 1 is linear.

    Args:
        power: of the fall, greater than 0.
        final_fraction: final learning rate, as a fraction of lr.

    Raises:
        ValueError: power is not greater than 0.
    """

    power: float = 1.0
    final_fraction: float = 0.0

    @override
    def __post_init__(self) -> None:
        if not self.power > 0:
            raise ValueError(f"power={self.power} must be greater than 0")
        super().__post_init__()

    @override
    def shape(self, progress: float, step: int) -> float:
        return self.final_fraction + (1 - self.final_fraction) * (1 - progress) ** self.power


@dataclass(eq=False)
class MultiStep(WarmupSchedule):
    """Times gamma at each milestone.

    Args:
        milestones: epochs, counted from the training's begin, warm-up included; those that it does not reach are said.
        gamma: factor at each of them.
    """

    milestones: Sequence[float] = ()
    gamma: float = 0.1

    @override
    def __post_init__(self) -> None:
        late = [epoch for epoch in self.milestones if round(epoch * self.steps_per_epoch) >= self.total_steps]
        if late:
            text = "schedule.milestones: %s not reached, the training has %g epochs"
            log.info(text, ", ".join(f"{epoch:g}" for epoch in late), self.total_steps / self.steps_per_epoch)
        super().__post_init__()

    @override
    def shape(self, progress: float, step: int) -> float:
        return self.gamma ** sum(step >= round(epoch * self.steps_per_epoch) for epoch in self.milestones)


@dataclass(eq=False)
class OneCycle(WarmupSchedule):
    """Cosine up from lr / div_factor to lr, cosine down to lr / div_factor / final_div_factor (Smith and Topin 2018,
    arXiv 1708.07120, in the form of torch's OneCycleLR; momentum stays).

    Args:
        rise: part of the body in which the rate rises.
        div_factor: how much smaller the first rate is than lr.
        final_div_factor: how much smaller the last rate is than the first.

    Raises:
        ValueError: rise is not between 0 and 1.
    """

    rise: float = 0.3
    div_factor: float = 25.0
    final_div_factor: float = 1e4

    @override
    def __post_init__(self) -> None:
        if not 0 < self.rise < 1:
            raise ValueError(f"rise={self.rise} must be greater than 0 and less than 1")
        super().__post_init__()

    @override
    def shape(self, progress: float, step: int) -> float:
        low = 1 / self.div_factor
        part = 1 - progress / self.rise
        if progress >= self.rise:
            low, part = low / self.final_div_factor, (progress - self.rise) / (1 - self.rise)
        return low + (1 - low) * (1 + math.cos(math.pi * part)) / 2
