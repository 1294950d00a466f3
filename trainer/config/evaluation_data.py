"""What `leyden eval` hands its workers: a run's own dataset, that there is no run, and the file of the metrics."""

import json
import os
from pathlib import Path

from ..base.errors import refuse
from .schema import EVALUATION_DATASET, Config, DatasetConfig

OUT = "LEYDEN_EVALUATION_OUT"
"""Environment variable with the file."""
INITIAL = "LEYDEN_EVALUATION_INITIAL"
"""Environment variable that is set where a config's initial weights are evaluated, in place of a run's checkpoint."""


def refuse_without_model(config: Config) -> None:
    """Refuse to evaluate a run that has no model: started, it would do what it is for, whatever the verb.

    Raises:
        ConfigError: it measures hardware, or trains the models of other runs.
    """
    if config.doctor is not None:
        raise refuse("RUN", "measures hardware, and has no model to evaluate", remedy="leyden doctor")
    if config.pipeline is not None:
        text = "trains the models of other runs, and has none of its own to evaluate"
        raise refuse("RUN", text, remedy="leyden eval of one of its trials, which leyden status lists")


def evaluates_initial_weights() -> bool:
    """Whether this process evaluates the weights that a config begins with."""
    return bool(os.environ.get(INITIAL))


def own_dataset() -> DatasetConfig | None:
    """The dataset with which the run was trained, if this process evaluates it on another; else None."""
    own = json.loads(os.environ.get(EVALUATION_DATASET) or "{}").get("own")
    return None if own is None else DatasetConfig.model_validate(own)


def metrics_file() -> Path | None:
    """The file for the metrics; None: there is none."""
    return Path(os.environ[OUT]) if os.environ.get(OUT) else None
