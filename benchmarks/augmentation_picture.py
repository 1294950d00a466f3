"""docs/images/deep_image_augmentation.png: three of Deep Image's changes, each alone.

    python benchmarks/augmentation_picture.py                      # of a test chart
    python benchmarks/augmentation_picture.py PHOTO.jpg OUT.png    # of a photograph

The chart is drawn here: photographs of ImageNet may be used, and not handed on.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from leyden.datasets.augmentation.color import ColorCast, Vignette
from leyden.datasets.augmentation.warps import LensDistortion
from leyden.trainer.diagnostics.pictures.tiles import sheet, tile

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "deep_image_augmentation.png"
SIDE, SHOWN, EACH = 224, 112, 5
CHANGES = {
    "colour casting": ColorCast(levels=20),
    "vignetting": Vignette(p=1.0),
    "lens distortion": LensDistortion(p=1.0),
}


def chart() -> Image.Image:
    """A grid, on which a warp shows, over patches of colour, on which a cast shows."""
    picture = Image.new("RGB", (SIDE, SIDE), "white")
    draw = ImageDraw.Draw(picture)
    colours = ["#c23b22", "#e8a33d", "#77a65c", "#3f7cac", "#7d5ba6", "#888888", "#dddddd"]
    step = SIDE // len(colours)
    for row in range(len(colours)):
        for column in range(len(colours)):
            place = (column * step, row * step, (column + 1) * step, (row + 1) * step)
            draw.rectangle(place, fill=colours[(row + column) % len(colours)], outline="black", width=2)
    return picture


def pixels(picture: Image.Image) -> Tensor:
    """The centre of a picture, (3, 224, 224) from 0 to 1."""
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    cut = picture.convert("RGB").resize((SIDE, SIDE), box=(left, top, left + side, top + side))
    return torch.frombuffer(bytearray(cut.tobytes()), dtype=torch.uint8).view(SIDE, SIDE, 3).permute(2, 0, 1) / 255


def main() -> None:
    given = [Path(word) for word in sys.argv[1:]]
    image = pixels(Image.open(given[0]) if given else chart())
    keys = torch.randint(1 << 62, (EACH,), generator=torch.Generator().manual_seed(4))
    draws = SimpleNamespace(keys=keys, mean=torch.full((1, 3, 1, 1), 0.5))
    tiles, captions = [], []
    for name, change in CHANGES.items():
        tiles.append(tile((image * 255).to(torch.uint8), SHOWN))
        captions.append([name])
        changed, _ = change.augment_batch(image.repeat(EACH, 1, 1, 1), torch.zeros(EACH), draws)
        tiles += [tile((each * 255).round().to(torch.uint8), SHOWN) for each in changed]
        captions += [[""] for _ in changed]
    file = given[1] if given else PICTURE
    sheet(tiles, captions, columns=1 + EACH).quantize(256).save(file, optimize=True)
    print(f"{file}: {file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
