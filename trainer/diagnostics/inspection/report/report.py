"""Everything that an inspection shows of a network, in order."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..top_activations import evenly_spaced
from .autoencoder import draw_autoencoder, is_autoencoder
from .distributions import distributions
from .evidence import draw_evidence
from .features import draw_features, draw_filters
from .findings import Distribution, Omitted, Picture
from .ranking import ranking, structure
from .subject import Subject


def report(subject: Subject, settings: Mapping[str, Any]) -> Iterator[Picture | Distribution | Omitted]:
    """Pictures of a network, each when it is ready, then values for histograms.

    Args:
        settings: of conf/inspect.yaml.
    """
    if is_autoencoder(subject.network):
        yield from draw_autoencoder(subject, settings["maps"], settings["explained"])
        yield from distributions(subject)
        return
    yield draw_filters(subject)
    trace = structure(subject)
    ranked, probabilities = ranking(subject, evenly_spaced(list(trace.maps), settings["layers"]))
    if settings["layers"]:
        yield from draw_features(subject, trace, ranked, settings["maps"])
    yield from draw_evidence(subject, probabilities, settings["explained"], settings["mistakes"])
    yield from distributions(subject)
