"""A dataset whose targets are vectors of labels."""

import torch
from torch import Tensor


class Halves:
    """Images of two by two bright or dark quarters; the classes are the bright ones."""

    multi_label = True

    classes = 4
    image_shape = (1, 4, 4)
    splits = ("train", "val", "test")

    def __init__(self, split: str) -> None:
        self.offset = self.splits.index(split)

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[Tensor, list[float]]:
        generator = torch.Generator().manual_seed(1000 * self.offset + index)
        bright = torch.randint(0, 2, (4,), generator=generator).float()
        image = bright.view(1, 2, 2).repeat_interleave(2, 1).repeat_interleave(2, 2)
        return image + 0.1 * torch.randn(1, 4, 4, generator=generator), bright.tolist()
