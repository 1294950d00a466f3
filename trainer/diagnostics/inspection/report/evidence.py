"""Pictures of decisions: occlusion maps, class activation maps, worst mistakes."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ...pictures.colours import heat, overlay_map
from ...pictures.tiles import sheet, tile
from ..class_activation import class_activation_maps
from ..mistakes import worst_mistakes
from ..occlusion import occlusion_map
from ..top_activations import evenly_spaced
from .findings import Omitted, Picture
from .subject import Subject

_SIDE = 144
_PATCHES, _POSITIONS = 4, 12
"""Occluding squares along the shorter side of an image, and their positions along it."""


def choose_images(subject: Subject, found: Tensor, count: int) -> Tensor:
    """Numbers of images to explain: of some classes, evenly spaced, the one that most surely gets it rightly."""
    sure, classes = found.max(1)
    if subject.labels is not None:
        sure = sure.where(classes == subject.labels, -1.0)
    best = {int(each): int(sure.where(classes == each, -1.0).argmax()) for each in classes[sure >= 0].unique()}
    return torch.tensor(sorted(evenly_spaced(list(best.values()), count)), dtype=torch.int64)


def draw_occlusion(subject: Subject, found: Tensor, images: Tensor) -> Picture:
    """Beside each image, the probability of its class while a grey square covers a part of it."""
    shorter = min(subject.image_shape[1:])
    patch, stride = max(1, shorter // _PATCHES), max(1, -(-shorter // _POSITIONS))
    tiles, captions = [], []
    for image, pixels, label in zip(images, subject.pixels(images), found[images].argmax(1).tolist(), strict=True):
        covered = occlusion_map(subject.probabilities, subject.inputs(image[None])[0], label, patch, stride)
        tiles.append(sheet([tile(pixels, _SIDE), tile(heat(covered, 0.0, 1.0), _SIDE)], columns=2, gap=2))
        before = 100 * float(found[image, label])
        range_shown = f"{before:.0f} %, covered {100 * float(covered.min()):.0f} to {100 * float(covered.max()):.0f} %"
        captions.append([subject.name(label), range_shown])
    title = (
        f"occlusion: probability of the class with a square of {patch} pixels a side on each place; violet 0, yellow 1"
    )
    return Picture("occlusion", sheet(tiles, captions, title, columns=2), title)


def draw_class_activation(subject: Subject, found: Tensor, images: Tensor) -> Picture | Omitted:
    """Beside each image, the map of the evidence for the class that it gets."""
    classes = found[images].argmax(1)
    made = class_activation_maps(subject.network, subject.inputs(images), classes.to(subject.device))
    if made is None:
        return Omitted("no class activation maps: no layer of the network has maps of height and width")
    maps, method, layer = made
    tiles = [
        sheet([tile(pixels, _SIDE), tile(overlay_map(pixels, each), _SIDE)], columns=2, gap=2)
        for pixels, each in zip(subject.pixels(images), maps, strict=True)
    ]
    title = f"{method} of {layer}, yellow for the class"
    return Picture("class_activation", sheet(tiles, [[subject.name(n)] for n in classes.tolist()], title, 2), title)


def draw_mistakes(subject: Subject, found: Tensor, count: int) -> Picture | Omitted:
    """The images with the surest mistakes."""
    if subject.labels is None:
        return Omitted("no mistakes: the images have no label of one class")
    mistakes = worst_mistakes(found, subject.labels, count)
    if not mistakes:
        return Omitted(f"no mistakes: all of {subject.shown} get their class")
    pixels = subject.pixels(torch.tensor([each.image for each in mistakes]))
    captions = [
        [f"{100 * each.of_found:.0f} % {subject.name(each.found)}",
         f"is {subject.name(each.label)}, {100 * each.of_label:.2g} %"]
        for each in mistakes
    ]  # fmt: skip
    wrong = int((found.argmax(1) != subject.labels).sum())
    title = f"the {len(mistakes)} worst of {wrong} mistakes on {subject.shown}"
    return Picture("mistakes", sheet([tile(each, _SIDE) for each in pixels], captions, title), title)


def draw_evidence(subject: Subject, found: Tensor | None, images: int, mistakes: int) -> Iterator[Picture | Omitted]:
    """Occlusion maps and class activation maps of some images, and the worst mistakes.

    Args:
        found: probabilities (images, classes).
    """
    if found is None:
        yield Omitted("no occlusion maps, class activation maps, mistakes: the network makes no score per class")
        return
    chosen = choose_images(subject, found, images)
    if images and len(chosen):
        yield draw_occlusion(subject, found, chosen)
        yield draw_class_activation(subject, found, chosen)
    elif images:
        yield Omitted("no occlusion maps, class activation maps: no image gets its class")
    if mistakes:
        yield draw_mistakes(subject, found, mistakes)
