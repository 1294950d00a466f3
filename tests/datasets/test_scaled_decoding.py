"""dataset.scaled_decoding: large JPEGs are decoded at a fraction of their size where the crops allow it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image
from runs import Freeze

from leyden.datasets.decode import Box
from leyden.datasets.image_folder import ImageFolder
from leyden.trainer.config.schema import load
from leyden.trainer.data.datamodule import ImageData

HEIGHT, WIDTH = 601, 803
SIZE = (64, 96)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A photograph, in effect: smooth, with some detail; as JPEG and as PNG."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    waves = [128 + 90 * np.sin(x / (19 + 4 * n)) * np.cos(y / (23 - 3 * n)) for n in range(3)]
    pixels = np.ascontiguousarray(np.stack(waves, axis=2).astype(np.uint8))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.jpg").write_bytes(simplejpeg.encode_jpeg(pixels, quality=95))
    Image.fromarray(pixels).save(tmp_path / "a" / "1.png")
    return tmp_path


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Sizes of what simplejpeg has decoded."""
    found: list[tuple[int, ...]] = []
    decode = simplejpeg.decode_jpeg

    def noted(*args: Any, **kwargs: Any) -> Any:
        pixels = decode(*args, **kwargs)
        found.append(pixels.shape[:2])
        return pixels

    monkeypatch.setattr(simplejpeg, "decode_jpeg", noted)
    return found


@pytest.mark.parametrize(
    ("boxes", "fraction"),
    [
        ([(0, 0, WIDTH, HEIGHT)], 8),
        ([(200, 0, 603, 601)], 6),
        ([(11, 7, 200, 300)], 2),
        ([(11, 7, 200, 300), (0, 0, WIDTH, HEIGHT)], 2),
        ([(11, 7, 100, 300), (0, 0, WIDTH, HEIGHT)], 1),
        ([(0, 600, 803, 1)], 1),
    ],
)
def test_crops_are_decoded_with_as_many_pixels_as_they_get(
    folder: Path, decoded: list[tuple[int, ...]], boxes: Sequence[Box], fraction: int
) -> None:
    exact, _ = ImageFolder("train", folder).crops(0, lambda *_: boxes, SIZE)
    decoded.clear()
    asked: list[tuple[int, int]] = []

    def chosen(height: int, width: int) -> Sequence[Box]:
        asked.append((height, width))
        return boxes

    found, _ = ImageFolder("train", folder, scaled_decoding=True).crops(0, chosen, SIZE)
    assert asked == [(HEIGHT, WIDTH)], "crops are chosen from the whole image"
    ((rows, columns),) = decoded
    if fraction == 1:
        assert (rows, columns) == (HEIGHT, WIDTH)
        assert torch.equal(found, exact)
    else:
        assert rows < HEIGHT * 0.51
        for _, _, width, height in boxes:
            assert width * columns / WIDTH >= SIZE[1] - 1
            assert height * rows / HEIGHT >= SIZE[0] - 1
        assert 0 < (found.int() - exact.int()).abs().float().mean() < 4
        assert found.shape == exact.shape


def test_other_formats_and_errors_of_the_augmentation_are_as_without(folder: Path) -> None:
    def wrong(height: int, width: int) -> Sequence[Box]:
        raise KeyError("of the augmentation")

    scaled = ImageFolder("train", folder, scaled_decoding=True)
    exact = ImageFolder("train", folder).crops(1, lambda h, w: [(0, 0, w, h)], SIZE)[0]
    assert torch.equal(scaled.crops(1, lambda h, w: [(0, 0, w, h)], SIZE)[0], exact)
    for index in (0, 1):
        with pytest.raises(KeyError, match="of the augmentation"):
            scaled.crops(index, wrong, SIZE)


def test_the_key_reaches_training_alone(freeze: Freeze, folder: Path, decoded: list[tuple[int, ...]]) -> None:
    options = ["dataset=image_folder", f"dataset.root={folder}", "dataset.val_fraction=0.5", "dataset.image_size=64",
               "augment=imagenet", "augment.crop.scale=[1,1]", "model=mlp", "batch_size=1", "dataset.threads=0",
               "dataset.scaled_decoding=true"]  # fmt: skip
    data = ImageData(load(freeze("run", *options)), (0, 1))
    data.train_set.indices = data.val_set.indices = [0]  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    next(iter(data.train_parts(0)))
    next(iter(data.evaluation_batches("val")))
    assert len(decoded) == 2
    assert decoded[0][0] < HEIGHT / 2
    assert decoded[1] == (HEIGHT, WIDTH)
