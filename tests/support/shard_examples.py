"""Folders of images, and shards made of them."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

from leyden.datasets.image_folder import ImageFolder
from leyden.datasets.shards.prepare import Preparation

SIDE = 24


def pixels(number: int, height: int, width: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Smooth, and different for every number."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 200 // width, y * 200 // height, np.full_like(x, 10 * number)], axis=2).astype(np.uint8)


def jpeg(number: int, height: int, width: int) -> bytes:
    return simplejpeg.encode_jpeg(np.ascontiguousarray(pixels(number, height, width)), quality=95)


def png(number: int, height: int, width: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels(number, height, width)).save(buffer, "PNG")
    return buffer.getvalue()


TREE = {
    "train/cat/1.jpg": jpeg(1, 40, 60),
    "train/cat/2.jpg": jpeg(2, 20, 30),
    "train/cat/3.png": png(3, 24, 31),
    "train/dog/4.png": png(4, 90, 48),
    "train/dog/5.jpg": jpeg(5, 200, 150),
    "val/dog/6.jpg": jpeg(6, 30, 30),
    "val/cat/7.png": png(7, 10, 12),
}
"""Larger than SIDE: 1, 4, 5, 6."""


def photographs(folder: Path) -> Path:
    for name, data in TREE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def preparation(root: Path, out: Path, **options: Any) -> Preparation:
    sources: Any = {split: ImageFolder(split, root, image_size=16) for split in ("train", "val")}
    return Preparation(**{"out": out, "sources": sources, "size": SIDE, "shard_size": 2, "threads": 2, **options})


def prepared(folder: Path, **options: Any) -> Path:
    """Shards of TREE."""
    task = preparation(photographs(folder / "photographs"), folder / "shards", **options)
    assert task.check()
    assert task.run(silent) == 0
    return folder / "shards"


def silent(done: int, total: int, size: int) -> None:
    """Progress that nobody looks at."""


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
