"""Pictures of an autoencoder: reconstructions, receptive fields, best stimuli, selectivity of single neurons."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from ...pictures.colours import around_grey
from ...pictures.tiles import sheet, tile
from ..best_stimulus import best_stimuli
from ..first_layer import filters_by_position
from ..forward_trace import layers_with_weights
from ..selectivity import selectivity
from ..top_activations import evenly_spaced
from .basis import draw_basis, has_basis
from .findings import Omitted, Picture
from .subject import Subject

_SIDE, _FILTER, _PATCH = 112, 56, 48
"""Pixels a side of a tile."""
_POSITIONS = 8
"""Positions of the first layer whose filters are drawn."""
_NEURONS = 4096
"""Neurons whose selectivity is measured, at most."""
_TOP = 9


def is_autoencoder(network: nn.Module) -> bool:
    """Whether a network is one of task=reconstruction; classifiers have stages, too."""
    return hasattr(network, "stages") and hasattr(network, "reconstruction")


def draw_autoencoder(subject: Subject, maps: int, images: int) -> Iterator[Picture | Omitted]:
    """Everything of an autoencoder (`core.protocols.Autoencoder`).

    Args:
        maps: of each stage, whose best stimuli are drawn.
        images: that are reconstructed.
    """
    if images:
        yield _draw_reconstructions(subject, images)
    yield draw_basis(subject) if has_basis(subject.network) else _draw_filters(subject)
    with torch.no_grad():
        shapes = [each.shape for each in stage_features(subject.network, subject.inputs(torch.arange(1)))]
    norm = float(subject.inputs(subject.batches()[0]).flatten(1).norm(dim=1).mean())
    for stage, shape in enumerate(shapes):
        yield _draw_stimuli(subject, stage, shape, maps, norm)
    yield _draw_selectivity(subject, shapes[-1])


def stage_features(network: nn.Module, inputs: Tensor) -> list[Tensor]:
    """Features of every stage, (batch, maps, height, width) each."""
    kept: list[Tensor] = []
    stages: Any = network.stages
    with ExitStack() as stack:
        for stage in stages:
            stack.callback(stage.register_forward_hook(lambda _, __, features: kept.append(features)).remove)
        network(inputs)
    return kept


@torch.no_grad()
def _draw_reconstructions(subject: Subject, images: int) -> Picture:
    network: Any = subject.network
    chosen = torch.tensor(evenly_spaced(range(len(subject)), images))
    inputs = subject.inputs(chosen)
    made = network.reconstruction(inputs)
    left = (made - inputs).square().flatten(1).sum(1) / inputs.square().flatten(1).sum(1).clamp(min=1e-30)
    pairs = zip(subject.pixels(chosen), subject.as_pixels(made), strict=True)
    tiles = [sheet([tile(image, _SIDE), tile(copy, _SIDE)], columns=2, gap=2) for image, copy in pairs]
    captions = [[f"{100 * float(each):.3g} % unexplained"] for each in left]
    title = f"reconstructions by the first stage (right) of {len(chosen)} of {subject.shown}"
    return Picture("reconstructions", sheet(tiles, captions, title), title)


def _draw_filters(subject: Subject) -> Picture | Omitted:
    """The filters of the first stage: one row of tiles for each of some positions."""
    name, layer = next(iter(layers_with_weights(subject.network)), ("", subject.network))
    filters = filters_by_position(layer, subject.image_shape)
    if filters is None:
        return Omitted(f"no receptive fields: {name or 'the network'} has no separate filters at each position")
    positions, maps, *shape = filters.shape
    drawn = filters[evenly_spaced(range(positions), _POSITIONS)][:, : 256 // _POSITIONS]
    tiles = [tile(around_grey(each), _FILTER) for each in drawn.flatten(0, 1)]
    title = f"{name}: {drawn.shape[1]} of {maps} filters at {len(drawn)} of {positions} positions, a row each"
    text = f"{title}; {' x '.join(map(str, shape))}, grey is 0"
    return Picture("receptive_fields", sheet(tiles, title=text, columns=drawn.shape[1], gap=2), text)


def _draw_stimuli(subject: Subject, stage: int, shape: torch.Size, maps: int, norm: float) -> Picture:
    """The best stimulus of the neuron in the middle of some maps of a stage, beside the images that it likes best."""
    chosen = evenly_spaced(range(shape[1]), maps)
    row, column, of_map = shape[2] // 2, shape[3] // 2, torch.arange(len(chosen))
    numbers = torch.tensor(chosen)

    def responses(images: Tensor) -> Tensor:
        return stage_features(subject.network, images)[stage][of_map, numbers, row, column]

    stimuli, found = best_stimuli(responses, subject.image_shape, len(chosen), norm, subject.device)
    with torch.no_grad():
        answers = torch.cat([
            stage_features(subject.network, subject.inputs(batch))[stage][:, numbers, row, column].cpu()
            for batch in subject.batches()
        ])  # fmt: skip
    best = answers.topk(min(_TOP, len(answers)), dim=0)
    tiles = [
        sheet([tile(around_grey(stimulus), 3 * _PATCH + 2),
               sheet([tile(each, _PATCH) for each in subject.pixels(best.indices[:, number])], columns=3, gap=1)],
              columns=2, gap=2)
        for number, stimulus in enumerate(stimuli)
    ]  # fmt: skip
    captions = [
        [f"map {number}: {float(found[i]):.3g}; images {float(best.values[0, i]):.3g} and less"]
        for i, number in enumerate(chosen)
    ]
    title = f"stage {stage + 1}: best stimuli by gradient, as long as images are, of the neurons at {row}, {column}"
    text = f"{title}; beside each the {len(best.indices)} best of {subject.shown}"
    return Picture(f"stimuli_{stage + 1}", sheet(tiles, captions, text, 2 if len(tiles) > 1 else 1), text)


@torch.no_grad()
def _draw_selectivity(subject: Subject, shape: torch.Size) -> Picture | Omitted:
    """Draw the last stage's most selective neuron of each class (`Selectivity`)."""
    labels = subject.labels
    if labels is None or len(labels.unique()) < 2:
        return Omitted("no selectivity of neurons: the images have no labels of two classes")
    classes = evenly_spaced(labels.unique().tolist(), 16)
    neurons = torch.tensor(evenly_spaced(range(shape[1:].numel()), _NEURONS))
    activations = torch.cat([
        stage_features(subject.network, subject.inputs(batch))[-1].flatten(1)[:, neurons].cpu()
        for batch in subject.batches()
    ])  # fmt: skip
    found = selectivity(activations, labels, classes)
    tiles, captions = [], []
    for label, accuracy, neuron in zip(classes, found.accuracy.tolist(), found.neuron.tolist(), strict=True):
        top = activations[:, neuron].topk(min(_TOP, len(activations))).indices
        tiles.append(sheet([tile(each, _PATCH) for each in subject.pixels(top)], columns=3, gap=1))
        place, column = divmod(int(neurons[neuron]), shape[3])
        number, row = divmod(place, shape[2])
        captions.append([f"{subject.name(label)}: {100 * accuracy:.1f} %", f"map {number} at {row}, {column}"])
    mean = 100 * float(found.accuracy.mean())
    title = (
        f"selectivity: best of {len(neurons)} neurons of the last stage for each class by a threshold, {subject.shown}"
    )
    text = f"{title}; mean {mean:.1f} %, chance 50 %"
    return Picture("selectivity", sheet(tiles, captions, text), text)
