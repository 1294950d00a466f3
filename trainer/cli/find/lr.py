"""`leyden find lr`: a training whose learning rate grows from step to step."""

from collections.abc import Sequence
from typing import Any

from ...compose.composer import Composer
from ..train_verbs import start_run
from .settings import STEPS_ALONE, compose_here, divide_words, with_values

_LOGGERS = "leyden.trainer.components.loggers."


def find_lr(words: Sequence[str], config_dir: str | None) -> int:
    """Run the range test on the training that the overrides compose. Returns its exit code.

    Raises:
        ConfigError: a mistake in the words; nothing is started.
    """
    settings, overrides = divide_words("lr", words)
    composer = Composer(config_dir)
    run = compose_here(composer, "lr", overrides)
    run = with_values(composer, run, overrides, _changes(run.values, settings))
    # not at the top: a mistake in the config does not wait for it
    from ...api.training import new_run

    with new_run(composer, run, overrides) as (job, _):
        return start_run(job)


def _changes(values: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """What differs from the training of the config: rates from the test, no evaluation, no checkpoint."""
    loggers = {name: node for name, node in values["logger"].items() if node and node["_target_"].startswith(_LOGGERS)}
    callbacks = {
        name: node for name, node in values["callbacks"].items() if name not in ("checkpoint", "early_stopping")
    }
    return {
        **STEPS_ALONE,
        "schedule": None,
        "logger": loggers,
        "callbacks": {**callbacks, "lr_range_test": settings},
        "trainer.max_epochs": settings["steps"],
        "trainer.max_steps": settings["steps"],
    }
