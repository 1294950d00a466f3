"""Augmentation of a batch on its device: mirroring of views, and the second part of a TwoPartAugmentation."""

from typing import Any

import torch
from torch import Tensor

from ..base.device_copy import on_device
from ..base.rng import mix
from ..core.keyed.dropout import hash_keys
from ..core.protocols import BatchDraws
from .view_reader import ViewKeys, mirror_views

_LARGE = 1 << 15
"""Bytes of an image from which on it is mirrored alone on a CPU: it stays in the cache, and the others are left out."""


def mirror_images(images: Tensor, flips: Tensor | None) -> Tensor:
    """The images (batch, channels, height, width), mirrored where `flips` (batch,) is true."""
    if flips is None or (images.device.type == "cpu" and not flips.any()):
        return images
    if images.device.type == "cpu" and images[0].nbytes >= _LARGE:
        return mirror_views(images, flips.tolist(), in_place=False)
    flips = flips[:, None, None, None]
    if images.dtype is not torch.uint8:
        return torch.where(flips, images.flip(3), images)
    # a choice of bytes by their bits: torch.where on bytes takes twice as long on a CPU as all of this
    return images.flip(3).bitwise_xor_(images).bitwise_and_(flips.to(torch.uint8) * 255).bitwise_xor_(images)


class BatchAugmentation:
    """Calls the second part of an augmentation with the draws of a batch.

    Args:
        augment: has `augment_batch`.
        seed: of the run.
        classes: of the dataset.
        mean: of each channel, (1, channels, 1, 1).
    """

    def __init__(self, augment: Any, seed: int, classes: int, mean: Tensor):
        self._augment = augment
        self._salt = mix(seed)
        self._classes = classes
        self._mean = mean

    def __call__(self, images: Tensor, labels: Tensor, keys: ViewKeys) -> tuple[Tensor, Tensor]:
        self._mean = on_device(self._mean, images.device)
        sample_keys = hash_keys(keys.indices ^ self._salt) & (2**63 - 1)
        draws = BatchDraws(keys.keys, sample_keys, keys.epoch, keys.views, self._classes, self._mean)
        changed, labels = self._augment.augment_batch(images.float(), labels, draws)
        return changed.to(images.dtype), labels
