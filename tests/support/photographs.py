"""Pictures of classes, made of noise."""

from pathlib import Path

import numpy as np
from PIL import Image


def picture(path: Path, seed: int, side: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (side, side, 3), dtype=np.uint8)).save(path)


def pictures(root: Path, each: int = 10) -> Path:
    for number in range(each):
        for name in ("cat", "dog", "owl"):
            picture(root / f"{name}/{number}.png", number)
    return root
