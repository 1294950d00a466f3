"""`leyden eval KEY=VALUE ...`: metrics of the weights that a config begins with, without a run."""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from ..base.errors import ConfigError, refuse
from ..compose.composer import ComposedRun, Composer
from ..compose.reopen import evaluate_with
from ..config.evaluation_data import INITIAL, refuse_without_model
from ..config.evaluation_views import EvaluationViews
from ..config.job import JobSpec, freeze
from ..config.schema import Config
from ..entrypoints.fork_server import prepare
from .train_verbs import start_run


def evaluate_weights(parsed: argparse.Namespace, variables: dict[str, str]) -> int:
    """Evaluate the initial weights of a composed config.

    Args:
        variables: further environment variables of the workers.
    """
    composer = Composer(parsed.config_dir)
    run = composer.run(parsed.words, _prepare)
    if run.is_sweep:
        raise refuse("hydra.mode", "is a sweep, and one config is evaluated", "MULTIRUN", "hydra.mode=RUN")
    views = EvaluationViews.of_flags(parsed.crops, parsed.scales, run.config.dataset)
    try:
        with (
            TemporaryDirectory(prefix="leyden-") as folder,
            evaluate_with(None, views, {INITIAL: "1", **variables}),
        ):
            return start_run(_job(composer, run, Path(folder)))
    except ConfigError as error:
        located = error.with_places(composer.origin(parsed.words).where)
        raise composer.with_remedies(located, parsed.words) from None


def _prepare(config: Config) -> None:
    refuse_without_model(config)
    if config.init_from is None and not (config.model and config.model.pretrained):
        text = "and init_from name no weights, and a network that nobody has trained is not evaluated"
        remedy = "model.pretrained=true" if config.model and config.model.public_weights else "leyden eval RUN"
        raise refuse("model.pretrained", text, None, remedy)
    if config.launcher != "local":
        text = "weights without a run are evaluated on this machine, whose workers this command starts itself"
        raise refuse("topology.launcher", text, config.launcher, "topology.launcher=local")
    prepare(config)


def _job(composer: Composer, run: ComposedRun, folder: Path) -> JobSpec:
    """The evaluation, as of a run in this folder that makes no step: the data may be too small for its training."""
    values = composer.freeze_in(run, folder)
    return JobSpec(
        freeze(folder, {**values, "schedule": None, "trainer": {**values["trainer"], "max_steps": 0}}), folder, "eval"
    )
