"""Filters of the first layer, as images."""

from math import prod

from torch import Tensor, nn


def first_filters(layer: nn.Module, image_shape: tuple[int, ...]) -> Tensor | None:
    """Weights of the layer that sees the image: (filters, channels, height, width), or None if they are no images.

    Args:
        layer: a convolution, or a fully connected layer over all pixels.
        image_shape: channels, height, width.
    """
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, Tensor):
        return None
    weight = weight.detach().float().cpu()
    if weight.ndim == 2 and weight.shape[1] == prod(image_shape):
        return weight.view(-1, *image_shape)
    return weight if weight.ndim == 4 and weight.shape[1] in (1, 3) else None


def filters_by_position(layer: nn.Module, image_shape: tuple[int, ...]) -> Tensor | None:
    """Weights of a layer with separate filters at each position: (positions, maps, channels, height, width), or None.

    Args:
        layer: of weight (rows, columns, maps, values), as it declares by `receptive_field`.
    """
    weight, window = getattr(layer, "weight", None), getattr(layer, "receptive_field", None)
    if not isinstance(weight, Tensor) or weight.ndim != 4 or window is None:
        return None
    shape = (image_shape[0], window.size, window.size)
    if weight.shape[3] != prod(shape) or image_shape[0] not in (1, 3):
        return None
    return weight.detach().float().cpu().flatten(0, 1).view(-1, weight.shape[2], *shape)
