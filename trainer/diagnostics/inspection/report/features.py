"""Pictures of features: filters of the first layer, feature maps projected down to the pixels."""

import re
from collections.abc import Iterator, Mapping

import torch
from PIL import Image
from torch import Tensor

from ...pictures.colours import around_grey
from ...pictures.tiles import sheet, tile
from ..deconvolution import Backward, backward_of, project
from ..first_layer import first_filters
from ..forward_trace import ForwardTrace, layers_with_weights
from ..receptive_field import Box, ReceptiveFields
from ..top_activations import TopActivations
from .findings import Omitted, Picture
from .subject import Subject

_FILTERS = 256
"""Filters that are drawn at most."""
_FILTER, _PATCH = 56, 48
"""Pixels a side of a tile."""
_GREY = 127


def draw_filters(subject: Subject) -> Picture | Omitted:
    """The filters of the first layer, each scaled by its largest weight."""
    name, layer = next(iter(layers_with_weights(subject.network)), ("", subject.network))
    filters = first_filters(layer, subject.image_shape)
    if filters is None:
        return Omitted(f"no filters: {name or 'the network'} is neither a convolution nor fully connected to the image")
    drawn = filters[:_FILTERS]
    title = f"{name}: {len(drawn)} of {len(filters)} filters, {' x '.join(map(str, filters.shape[1:]))}; grey is 0"
    picture = sheet([tile(around_grey(each), _FILTER) for each in drawn], title=title, gap=2)
    return Picture("filters", picture, title)


def draw_features(
    subject: Subject, structure: ForwardTrace, ranked: Mapping[str, TopActivations], maps: int
) -> Iterator[Picture | Omitted]:
    """The largest activations of some maps of each ranked layer, projected down, beside their patches.

    Args:
        structure: the trace of a forward pass.
    """
    if not ranked:
        yield Omitted("no feature maps: no layer of the network has maps of height and width")
    backward, why = backward_of(structure)
    for number, (layer, top) in enumerate(ranked.items(), 1):
        yield _draw_layer(subject, number, layer, top, maps, backward, why)


def _draw_layer(
    subject: Subject, number: int, layer: str, top: TopActivations, maps: int, backward: Backward, why: str
) -> Picture | Omitted:
    chosen = top.spread(maps)
    if not chosen:
        return Omitted(f"no feature maps of {layer}: none is active for any image")
    images, positions = top.images[chosen], top.positions[chosen]
    of_map = torch.tensor(chosen)[:, None].expand_as(images)
    # map by map: a backward pass keeps all activations of its images
    device, inputs = subject.device, subject.inputs
    projections = torch.cat([
        project(subject.network, inputs(image), layer, of.to(device), at.to(device), backward)
        for image, of, at in zip(images, of_map, positions, strict=True)
    ]).cpu()  # fmt: skip
    fields = ReceptiveFields(subject.network, subject.image_shape, layer, subject.device)
    boxes = [fields.box(*divmod(each, top.shape[1])) for each in positions.flatten().tolist()]
    patches, each_map = subject.pixels(images.flatten()), images.shape[1]
    active = [top.active[number] for number in chosen]  # of the others there is nothing to project
    blocks = [
        _block(projections[first : first + count], patches[first : first + count], boxes[first:], fields.largest)
        for first, count in zip(range(0, len(boxes), each_map), active, strict=True)
    ]
    captions = [
        [f"map {number}: {values[0]:.3g} to {values[count - 1]:.3g}"]
        for number, values, count in zip(chosen, top.values[chosen], active, strict=True)
    ]
    method = f"{backward.value} ({why})" if why else backward.value
    title = f"{layer}: {method}; the {each_map} largest activations of {len(chosen)} maps over {subject.shown}"
    name = f"features_{number}_{re.sub(r'[^A-Za-z0-9._-]', '_', layer)[:80]}"
    return Picture(name, sheet(blocks, captions, title, columns=2 if len(blocks) > 1 else 1), title)


def _block(projections: Tensor, patches: Tensor, boxes: list[Box], largest: tuple[int, int]) -> Image.Image:
    """Projections of one map on the left, the patches that caused them on the right."""
    sides = [
        sheet([tile(_cut(around_grey(image) if rescaled else image, box, largest), _PATCH)
               for image, box in zip(images, boxes, strict=False)], columns=3, gap=1)
        for images, rescaled in ((projections, True), (patches, False))
    ]  # fmt: skip
    return sheet(sides, columns=2, gap=1)


def _cut(image: Tensor, box: Box, largest: tuple[int, int]) -> Tensor:
    """The box of an image, with grey where it goes beyond the image's border."""
    cut = image[:, box.top : box.bottom, box.left : box.right]
    canvas = torch.full((len(image), *largest), _GREY, dtype=torch.uint8)
    top = largest[0] - cut.shape[1] if box.top == 0 else 0
    left = largest[1] - cut.shape[2] if box.left == 0 else 0
    canvas[:, top : top + cut.shape[1], left : left + cut.shape[2]] = cut
    return canvas
