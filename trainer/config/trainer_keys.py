"""Rules between keys under `trainer.`, and between them and the strategy."""

from collections.abc import Iterator

from ..base.errors import Problem
from ..base.time_limit import seconds_of
from .schema import Config


def trainer_keys(config: Config) -> Iterator[Problem]:
    """Mistakes in trainer.max_time, val_check_interval and check_val_every_n_epoch."""
    trainer = config.trainer
    if trainer.max_time is not None:
        yield from _max_time(trainer.max_time)
    if trainer.check_val_every_n_epoch is None and not isinstance(trainer.val_check_interval, int):
        text = "null counts the steps between two validations across epochs, and needs their number"
        yield Problem("trainer.check_val_every_n_epoch", text, None, "trainer.val_check_interval=500")


def _max_time(value: str | dict[str, int | float]) -> Iterator[Problem]:
    key = "trainer.max_time"
    try:
        seconds_of(value)
    except ValueError as error:
        yield Problem(key, str(error), value, f"{key}=00:12:00:00, which is twelve hours")


def elastic_max_time(config: Config) -> Iterator[Problem]:
    """The rule of trainer.max_time under elastic strategies."""
    value = config.trainer.max_time
    if config.elastic and value is not None:
        text = (
            "under strategy.execution.elastic=true a worker that joins later does not know how long others have trained"
        )
        yield Problem("trainer.max_time", text, value, "strategy.execution.elastic=false, or trainer.max_steps")
