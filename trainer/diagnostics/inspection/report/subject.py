"""The network under inspection, and the images that it is shown."""

from collections import OrderedDict
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from ....base.errors import CannotStart
from ....core.network.trained_network import network_of
from ....core.task_contract import class_probabilities


class Subject:
    """A run's network in float32 and evaluation mode, and images of its validation set (else of its test set).

    Args:
        task: of the run, with the weights that evaluation uses. Its network is `task.model`, or the task itself.
        data: of the run, an ImageData or a LightningData.
        class_names: names of the classes by number; may be empty.
        count: images at most.
        batch_size: images that go through the network at once.

    Attributes:
        network: a copy with the weights that evaluation uses.
        split: "val" or "test".
        labels: numbers of classes (images,); None: the batches have no such labels.

    Raises:
        CannotStart: the run has no images of 1 or 3 channels to evaluate.
        BadSamples: more are unreadable than dataset.max_bad_samples.
    """

    def __init__(
        self, task: nn.Module, data: Any, class_names: Sequence[str], device: torch.device, count: int, batch_size: int
    ):
        self._data, self._class_names, self.device, self.batch_size = data, class_names, device, batch_size
        self._task = type(task)
        self.network: nn.Module = _without_hooks(network_of(task)).float().eval().requires_grad_(False)
        self.split, self._images, self.labels = _evaluated_images(data, count)

    def __len__(self) -> int:
        return len(self._images)

    @property
    def image_shape(self) -> tuple[int, ...]:
        return tuple(self._images.shape[1:])

    @property
    def shown(self) -> str:
        """The images in words."""
        return f"{len(self)} {'validation' if self.split == 'val' else 'test'} images"

    def inputs(self, images: Tensor) -> Tensor:
        """Inputs of the network for images by number, float32."""
        found = self._images[images].to(self.device)
        if found.dtype is torch.uint8:
            found = self._data.on_after_batch_transfer((found, None), 0)[0]
        return found.float()

    def as_probabilities(self, scores: Tensor) -> Tensor:
        """Probabilities of the classes from the network's scores (batch, classes)."""
        return class_probabilities(self._task, scores)

    def probabilities(self, inputs: Tensor) -> Tensor:
        """Probabilities of the classes (batch, classes), for inputs of the network."""
        return self.as_probabilities(self.network(inputs))

    def pixels(self, images: Tensor) -> Tensor:
        """Images by number, uint8 (batch, channels, height, width) on the CPU."""
        found = self._images[images]
        return found if found.dtype is torch.uint8 else self.as_pixels(found)

    def as_pixels(self, found: Tensor) -> Tensor:
        """Inputs of the network as images, uint8 (batch, channels, height, width) on the CPU."""
        found = found.cpu()
        known: Tensor | None = self._data.pixels(found)
        if known is not None:
            return known
        low, high = found.amin((1, 2, 3), keepdim=True), found.amax((1, 2, 3), keepdim=True)
        return (found - low).mul(255.0 / (high - low).clamp(min=1e-30)).to(torch.uint8)

    def batches(self) -> tuple[Tensor, ...]:
        """Numbers of all images, by batch."""
        return torch.arange(len(self)).split(self.batch_size)

    def name(self, number: int) -> str:
        """The name of a class."""
        names = self._class_names
        return str(names[number]) if number < len(names) else str(number)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _without_hooks(network: nn.Module) -> nn.Module:
    """A copy of a network. A strategy's hooks stay behind: copied as well, they would copy its threads and buffers."""
    modules = list(network.modules())
    kept = [{name: module.__dict__[name] for name in _HOOKS} for module in modules]
    try:
        for module in modules:
            module.__dict__.update({name: OrderedDict() for name in _HOOKS})
        return deepcopy(network)
    finally:
        for module, hooks in zip(modules, kept, strict=True):
            module.__dict__.update(hooks)


def _evaluated_images(data: Any, count: int) -> tuple[str, Tensor, Tensor | None]:
    split = next((name for name in ("val", "test") if data.has(name)), None)
    if split is None:
        raise CannotStart("has no validation or test images, which are drawn")
    images: list[Tensor] = []
    labels: list[Tensor] = []
    for batch, samples in data.evaluation_batches(split):
        if not samples:  # a dummy batch
            continue
        first, *others = batch if isinstance(batch, list | tuple) else [batch]
        if not isinstance(first, Tensor) or first.ndim != 4 or first.shape[1] not in (1, 3):
            raise CannotStart("has batches without images (batch, 1 or 3 channels, height, width), which are drawn")
        images.append(first.cpu())
        if others and isinstance(others[0], Tensor) and others[0].ndim == 1 and not others[0].is_floating_point():
            labels.append(others[0].cpu())
        if sum(map(len, images)) >= count:
            break
    if not images:
        raise CannotStart("has no validation or test images on the first worker, which draws them")
    return split, torch.cat(images)[:count], torch.cat(labels)[:count] if len(labels) == len(images) else None
