"""Images that are all held in memory, read one by one or a batch at a time."""

import numpy as np
import torch
from torch import Tensor


class ImagesInMemory:
    """Base of datasets that decode all their images at the start.

    Attributes:
        images: uint8 [N, channels, height, width].
        labels: N classes.
    """

    thread_safe: bool = True

    def _hold(self, images: Tensor, labels: Tensor) -> None:
        """Take the images and their classes (int64 [N])."""
        self.images = images
        self.labels: list[int] = labels.tolist()
        self._label_of = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Image (uint8 [channels, height, width]) and class."""
        return self.images[index], self.labels[index]

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of images (uint8 [samples, channels, height, width]) and classes (int64 [samples])."""
        # an image is one value of as many bytes: NumPy copies it at once
        image = np.dtype((np.void, self.images[0].numel()))
        chosen = self.images.numpy().reshape(len(self), -1).view(image)[indices.numpy()]
        images = torch.from_numpy(chosen.view(np.uint8)).view(-1, *self.images.shape[1:])
        return images, self._label_of[indices]
