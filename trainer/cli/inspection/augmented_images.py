"""`leyden inspect augment`: a contact sheet of training images as the network sees them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...base.errors import CannotStart, refuse
from ...compose.composer import Composer
from ...config.schema import Config

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

_SAMPLES, _EPOCHS = 8, 8


def draw_augmented_images(overrides: Sequence[str], config_dir: str | None, file: Path) -> int:
    """Write an image with a row for each of the first training samples and a column for each epoch.

    Args:
        file: a .png, or a folder, where TensorBoard shows it.

    Raises:
        ConfigError: a mistake in the config, data that cannot be read, or a file that cannot be written.
    """
    if not file.is_dir() and (file.suffix.lower() != ".png" or not file.absolute().parent.is_dir()):
        text = "must be a .png file in a folder that exists, or a folder, for TensorBoard"
        raise refuse("--out", text, str(file), "--out augment.png")
    config = Composer(config_dir).run(overrides).config
    try:
        sheet = _sheet(config)
    except CannotStart as error:
        raise error.as_config_error() or refuse("dataset", str(error), executed=True) from error
    except ValueError as error:
        raise refuse("dataset", str(error), executed=True) from error
    # not above: a mistake in the config does not wait for torch
    from ...components.callbacks.train_images import grid

    picture = grid(sheet, _EPOCHS)
    try:
        if file.is_dir():
            _log(picture, file)
        else:
            picture.save(file)
    except OSError as error:
        raise refuse("--out", f"cannot be written: {error}", str(file), "--out FILE.png", executed=True) from error
    print(f"{file}: {len(sheet) // _EPOCHS} training samples, one a row, in epochs 0 to {_EPOCHS - 1}")
    return 0


def _log(picture: "Image", folder: Path) -> None:
    from numpy import asarray
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        writer.add_image("images/augment", asarray(picture), dataformats="HWC")


def _sheet(config: Config) -> "Tensor":
    """uint8 (samples x epochs, channels, height, width), all epochs of a sample one after the other."""
    import torch
    from torch.nn.functional import interpolate

    from ...config.targets import is_data_module, make_importable
    from ...data.datamodule import ImageData

    make_importable(config)
    if is_data_module(config.dataset.target):
        raise refuse("dataset", "is a LightningDataModule, which augments its own images", config.dataset.target,
                     "dataset=image_folder")  # fmt: skip
    data = ImageData(config, (0, 1))
    samples = torch.cat(data.order.batches(0))[:_SAMPLES].tolist()
    columns: list[Tensor] = []
    for epoch in range(_EPOCHS):
        images, _ = data.augment_batch(samples, epoch)
        pixels = data.pixels(images[:: len(images) // len(samples)])
        columns.append(interpolate(pixels, size=tuple(data.image_shape[1:]), mode="nearest"))
    return torch.stack(columns, 1).flatten(0, 1)
