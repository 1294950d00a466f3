"""Keys under `trainer.` that must fit each other, and the strategy, before anything starts."""

from collections.abc import Iterator

from .config import Config
from .errors import Problem
from .time_limit import seconds_of


def trainer_keys(config: Config) -> Iterator[Problem]:
    """Mistakes in trainer.max_time, val_check_interval and check_val_every_n_epoch."""
    trainer = config.trainer
    if trainer.max_time is not None:
        yield from _max_time(config, trainer.max_time)
    if trainer.check_val_every_n_epoch is None and not isinstance(trainer.val_check_interval, int):
        text = "null counts the steps between two validations across epochs, and needs their number"
        yield Problem("trainer.check_val_every_n_epoch", text, None, "trainer.val_check_interval=500")


def _max_time(config: Config, value: str | dict[str, int | float]) -> Iterator[Problem]:
    key = "trainer.max_time"
    try:
        seconds_of(value)
    except ValueError as error:
        yield Problem(key, str(error), value, f"{key}=00:12:00:00, which is twelve hours")
    if config.elastic:
        text = "strategy.elastic=true: a worker that joins later cannot know for how long the others have trained"
        yield Problem(key, text, value, "strategy.elastic=false, or trainer.max_steps")
