"""Photographs without classes, prepared as evaluation prepares images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .decode import Least, decode, is_image
from .files import Files, open_files
from .image_samples import ImageSamples, Label
from .limits import DEFAULTS, Limits, read_regular


class Photographs(ImageSamples):
    """An image file, or all images of a directory, a .zip or an uncompressed .tar, in subfolders too, by name.

    Each is prepared as `ImageSamples` prepares images for evaluation; the label is -1.

    Args:
        root: file, directory or archive; `~` is expanded.
        image_shape: channels (3, or 1 for grey), height and width of the dataset's images.
        limits: sizes beyond which a file is not read.
        resize, crop: of evaluation, as `ImageSamples` takes them.
        exif_orientation: as `ImageSamples`.

    Raises:
        FileNotFoundError: there is nothing at `root`.
        ValueError: no images, an archive that cannot be read in place, or inputs that are not square RGB or grey.
    """

    thread_safe: bool = True

    def __init__(
        self,
        root: str | Path,
        image_shape: Sequence[int],
        limits: Limits = DEFAULTS,
        resize: int | Literal["auto"] | None = None,
        crop: int | None = None,
        exif_orientation: bool = True,
    ) -> None:
        channels, height, width = image_shape
        if channels not in (1, 3) or height != width:
            raise ValueError(f"a photograph becomes a square RGB or grey image, not {list(image_shape)}")
        super().__init__(height, limits, resize, crop, exif_orientation=exif_orientation)
        self.channels = channels
        self.root = Path(root).expanduser()
        alone = self.root.is_file() and is_image(self.root.name)
        self._files: Files = _OneFile(self.root, limits) if alone else open_files(self.root, is_image, limits)
        if not len(self._files.names):
            raise ValueError(f"{self.root} holds no images")

    def __len__(self) -> int:
        return len(self._files.names)

    def evaluation_sample(self, index: int) -> tuple[Tensor, Label]:
        """Image (uint8 [channels, crop, crop]) as evaluation sees it, and -1."""
        image, label = super().evaluation_sample(index)
        return (image if self.channels == 3 else _grey(image)), label

    def name(self, index: int) -> str:
        """The path of a photograph below the root; of a single one its file name."""
        return self._files.names[index]

    def _pixels(self, index: int, least: Least) -> NDArray[np.uint8]:
        return decode(self._files.read(index), self._files.path(index), least, self.limits, self.exif_orientation)

    def _label(self, index: int) -> int:
        return -1


class _OneFile:
    def __init__(self, path: Path, limits: Limits) -> None:
        self.names: Sequence[str] = [path.name]
        self._path, self._limits = path, limits

    def path(self, index: int) -> str:
        return str(self._path)

    def read(self, index: int) -> bytes:
        return read_regular(str(self._path), self._limits)

    def sizes(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.full(len(indices), self._path.stat().st_size)

    def start(self, index: int, most: int) -> bytes:
        return read_regular(str(self._path), self._limits, most)


def _grey(image: Tensor) -> Tensor:
    """Luma of RGB (ITU-R BT.601) with Pillow's integer weights: uint8 [1, height, width]."""
    weights = torch.tensor([19595, 38470, 7471]).view(3, 1, 1)
    return ((image.int() * weights).sum(0, keepdim=True) + 0x8000 >> 16).to(torch.uint8)
