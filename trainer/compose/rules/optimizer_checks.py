"""Rules of the optimizer, its parameter groups, its schedule and gradient clipping."""

from collections.abc import Iterator
from typing import Any

from ...base.errors import Problem, join_names, nearest, spell_value
from ...config.optimizer_class import needs_whole_parameters
from ...config.option_classes import hints_of
from ...config.schema import Config, Schedule
from ...config.targets import is_a, parameters_of, takes_any
from ..signatures import fits


def divided_parameters(config: Config, optimizer: Any) -> Iterator[Problem]:
    """Rules of a strategy under which a worker holds a part of some parameters. `optimizer`: the class, or None."""
    name = config.strategy.target.rpartition(".")[2].lower()
    if optimizer is not None and needs_whole_parameters(optimizer):
        text = f"{optimizer.__name__} needs whole parameters for its step, and strategy={name} divides them"
        yield Problem("optimizer", text, config.optimizer and config.optimizer.target, "optimizer=adamw")
    if config.trainer.gradient_clip_val is not None and config.trainer.gradient_clip_algorithm == "adaptive":
        text = f"adaptive clipping compares whole rows of weights and gradients, which strategy={name} divides"
        key = "trainer.gradient_clip_algorithm"
        yield Problem(key, text, "adaptive", f"{key}=norm")


def group_options(config: Config, optimizer: Any) -> Iterator[Problem]:
    """Keys of optimizer.groups that the optimizer's class does not take, or not so."""
    settings = config.optimizer
    parameters = {name: p for name, p in parameters_of(optimizer).items() if name != "params"}
    hints = hints_of(optimizer)
    if settings is not None and settings.lr_batch_size is not None and "lr" not in settings.arguments:
        yield Problem("optimizer.lr_batch_size", "scales optimizer.lr, which is not set", settings.lr_batch_size,
                      "+optimizer.lr=0.1")  # fmt: skip
    for number, group in enumerate(settings.groups if settings is not None else []):
        for name, value in group.options.items():
            key = f"optimizer.groups.{number}.{name}"
            if name in parameters:
                if name == "lr" and isinstance(value, int | float) and not value > 0:
                    yield Problem(key, "must be greater than 0", value, "lr_scale: 0.1, or lr: 0.01")
                elif not fits(value, hints.get(name, Any)):
                    yield Problem(key, f"does not fit {optimizer.__name__}'s {name}", value)
            elif not takes_any(parameters):
                options = ["match", "lr_scale", *parameters]
                close = nearest(name, options)
                meant = f"; did you mean {close}?" if close else ""
                text = f"{optimizer.__name__} takes no argument {name!r}{meant}\na group takes {join_names(options)}"
                yield Problem(key, text, value, f"{close}: {spell_value(value)}" if close else "leave it out")


def schedule_problems(schedule: Schedule, found: Any) -> Iterator[Problem]:
    """Keys of a schedule that do not fit its class, `found`."""
    name = schedule.target.rpartition(".")[2]
    watches = is_a(found, "ReduceLROnPlateau")
    if watches and schedule.monitor is None:
        yield Problem("schedule.monitor", "ReduceLROnPlateau needs a metric to monitor", None,
                      "schedule.monitor=val/loss schedule.interval=epoch")  # fmt: skip
    if schedule.monitor is not None and not watches:
        text = f"only ReduceLROnPlateau monitors a metric, {name} does not"
        yield Problem("schedule.monitor", text, schedule.monitor, "schedule.monitor=null")
    for key, usual in (("interval", "step"), ("frequency", 1)):
        given = getattr(schedule, key)
        if getattr(found, "counts_steps", False) and given != usual:
            text = f"must be {usual}: {name} sets the learning rate of each optimizer step"
            yield Problem(f"schedule.{key}", text, given, f"schedule.{key}={usual}")
