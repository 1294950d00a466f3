"""Inspection of a run: what its network has learned, as pictures and histograms."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..base.errors import CannotStart, refuse
from ..base.paths import shorten_path
from ..core.batch import BadSamples
from ..core.network.trained_network import network_of
from ..diagnostics.inspection.report.distributions import gradients
from ..diagnostics.inspection.report.findings import Distribution, Omitted, Picture
from ..diagnostics.inspection.report.report import report
from ..diagnostics.inspection.report.subject import Subject
from ..engine.inference.gradients import compute_gradients
from ..engine.inference.predictor import Predictor
from ..engine.kernels import hold_kernels
from .run import Run


def inspect_run(run: Run, settings: Mapping[str, Any]) -> Iterator[Picture | Distribution | Omitted]:
    """Pictures of a run's network, each when it is ready, then values for histograms.

    Args:
        settings: of conf/inspect.yaml.

    Raises:
        ConfigError: the run has no checkpoint, cannot be built here, or has no images that can be drawn.
    """
    predictor = run.trained
    try:
        subject = Subject(
            predictor.task, predictor.state.data, predictor.class_names, predictor.device, settings["images"],
            settings["batch_size"],
        )  # fmt: skip
    except CannotStart as error:
        raise error.as_config_error() or refuse("RUN", str(error), shorten_path(run.folder), executed=True) from error
    except (BadSamples, OSError) as error:
        raise refuse(
            "RUN", str(error), shorten_path(run.folder), "dataset.max_bad_samples=10", executed=True
        ) from error
    with hold_kernels(run.config):
        yield from report(subject, settings)
        yield from _gradients(predictor, subject.split)


def _gradients(predictor: Predictor, split: str) -> Iterator[Distribution | Omitted]:
    problem = compute_gradients(predictor.state, split)
    if problem is not None:
        yield Omitted(f"no histograms of gradients: {problem}")
        return
    yield from gradients(network_of(predictor.task))
