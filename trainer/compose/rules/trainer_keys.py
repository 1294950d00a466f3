"""Rules between keys under `trainer.`, and between them and the strategy."""

from collections.abc import Iterator

from ...base.errors import Problem
from ...base.time_limit import seconds_of
from ...config.schema import Config
from ..known_names import find_value


def trainer_keys(config: Config) -> Iterator[Problem]:
    """Mistakes in trainer.max_time, val_check_interval, check_val_every_n_epoch, profiler and log_grad_norm."""
    trainer = config.trainer
    if trainer.max_time is not None:
        yield from _max_time(trainer.max_time)
    if trainer.check_val_every_n_epoch is None and not isinstance(trainer.val_check_interval, int):
        text = "null counts the steps between two validations across epochs, and needs their number"
        yield Problem("trainer.check_val_every_n_epoch", text, None, "trainer.val_check_interval=500")
    if trainer.profiler is not None and config.pipeline is not None:
        text = "one trace would be of all models of a pipeline, which take turns"
        yield Problem(
            "trainer.profiler", text, trainer.profiler.model_dump(), "trainer.profiler=null, or one run alone"
        )
    yield from _log_grad_norm(config)


def _log_grad_norm(config: Config) -> Iterator[Problem]:
    trainer, key = config.trainer, "trainer.log_grad_norm"
    algorithm = trainer.gradient_clip_algorithm
    clips_otherwise = trainer.gradient_clip_val is not None and algorithm != "norm"
    if trainer.log_grad_norm and trainer.precision == "16-mixed" and clips_otherwise:
        text = f"16-mixed unscales gradients once a step, for trainer.gradient_clip_algorithm={algorithm} already"
        yield Problem(key, text, True, f"{key}=false, or trainer.gradient_clip_algorithm=norm")


def _max_time(value: str | dict[str, int | float]) -> Iterator[Problem]:
    key = "trainer.max_time"
    try:
        seconds_of(value)
    except ValueError as error:
        meant, _ = find_value(key, str(value))
        yield Problem(key, str(error), value, f"{key}={meant or '00:12:00:00'}")


def elastic_max_time(config: Config) -> Iterator[Problem]:
    """The rule of trainer.max_time under elastic strategies."""
    value = config.trainer.max_time
    if config.elastic and value is not None:
        text = (
            "under strategy.execution.elastic=true a worker that joins later does not know how long others have trained"
        )
        yield Problem("trainer.max_time", text, value, "strategy.execution.elastic=false, or trainer.max_steps")
