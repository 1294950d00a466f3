"""Classes of the data among the outputs of public weights, which are evaluated as they are: by their names."""

import json
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...base.errors import CannotStart, Problem, join_names
from ...config.evaluation_data import evaluates_initial_weights
from ...config.hub_weights import packaged_file
from ...config.schema import Config, PackagedWeights, PinnedWeights
from ...core import declarations


class NamedOutputs(NamedTuple):
    """Outputs of a network whose classes have names."""

    names: tuple[str, ...]
    """Names of all outputs."""
    of_classes: Tensor
    """The output of each class of the data, int64 (classes,)."""


def named_outputs(config: Config, whole: Any) -> NamedOutputs | None:
    """The outputs of the data's classes; None: label n is output n.

    Raises:
        CannotStart: the network does not know a class of the data, or their names cannot be read.
    """
    model, own = config.model, declarations.of_dataset(whole).class_names
    if not evaluates_initial_weights() or model is None or own is None:
        return None
    public, source = model.public_weights, model.weights
    if public is None or public.classes is None or not isinstance(source, PinnedWeights) or not source.of(public):
        return None
    if declarations.of_dataset(whole).multi_label:
        raise CannotStart(Problem("dataset", f"has images of several classes, and {source.source} names one for each"))
    outputs = _read(public)
    unknown = [name for name in own if name not in outputs]
    if unknown:
        text = f"has {len(unknown)} of {len(own)} classes that {source.source} does not know: {join_names(unknown)}"
        raise CannotStart(Problem("dataset", f"{text}; its names are those of {public.classes.package}"))
    names = tuple(sorted(outputs, key=outputs.__getitem__))
    return NamedOutputs(names, torch.tensor([outputs[name] for name in own]))


def _read(public: PackagedWeights) -> dict[str, int]:
    """Outputs by the names of their classes."""
    assert public.classes is not None
    path = packaged_file(public.classes)
    if path is None:
        text = f"the names of its classes need the package {public.classes.package}, which is not installed"
        raise CannotStart(Problem("model.pretrained", text, True, public.install))
    return json.loads(path.read_text())
