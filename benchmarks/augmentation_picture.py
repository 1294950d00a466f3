"""docs/images/deep_image_augmentation.png: three of Deep Image's changes, each alone.

    python benchmarks/augmentation_picture.py                      # of a photograph that scikit-learn has
    python benchmarks/augmentation_picture.py PHOTO.jpg OUT.png    # of yours

That photograph may be handed on with its author's name: danielbuechele, CC BY 2.0. Those of ImageNet may not.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from PIL import Image
from sklearn.datasets import load_sample_image
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


def pixels(picture: Image.Image) -> Tensor:
    """The centre of a picture, (3, 224, 224) from 0 to 1."""
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    cut = picture.convert("RGB").resize((SIDE, SIDE), box=(left, top, left + side, top + side))
    return torch.frombuffer(bytearray(cut.tobytes()), dtype=torch.uint8).view(SIDE, SIDE, 3).permute(2, 0, 1) / 255


def main() -> None:
    given = [Path(word) for word in sys.argv[1:]]
    image = pixels(Image.open(given[0]) if given else Image.fromarray(load_sample_image("china.jpg")))
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
