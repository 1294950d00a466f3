"""dataset.exif_orientation: pictures are seen as every viewer shows them, whatever reads them."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_layouts import as_directory, as_zip
from PIL import Image, ImageOps
from runs import Freeze
from shard_examples import pixels, silent
from tar_shards import tar

from leyden.datasets.decode import Box, decode
from leyden.datasets.decoding.exif_orientation import exif_tag, jpeg_tag, upright
from leyden.datasets.image_folder import ImageFolder
from leyden.datasets.photographs import Photographs
from leyden.datasets.shards.dataset import Shards
from leyden.datasets.shards.prepare import Preparation
from leyden.trainer.config.schema import load
from leyden.trainer.engine.inference.predictor import preparation_of

TAG = 0x0112
STORED = pixels(5, 40, 64)


def tagged(tag: int, kind: str = "JPEG", mode: str = "RGB") -> bytes:
    exif = Image.Exif()
    exif[TAG] = tag
    options: dict[str, Any] = {"WEBP": {"lossless": True}, "JPEG": {"quality": 95}, "AVIF": {"quality": 95}}.get(
        kind, {}
    )
    file = io.BytesIO()
    Image.fromarray(STORED).convert(mode).save(file, kind, exif=exif, **options)
    return file.getvalue()


def shown(tag: int) -> Any:
    """As Pillow shows it."""
    picture = Image.fromarray(STORED)
    picture.getexif()[TAG] = tag
    return np.asarray(ImageOps.exif_transpose(picture)).astype(int)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("JPEG", "RGB"), ("JPEG", "CMYK"), ("PNG", "RGB"), ("WEBP", "RGB"), ("TIFF", "RGB"), ("AVIF", "RGB")],
)
def test_every_format_is_turned_by_its_tag(kind: str, mode: str) -> None:
    for tag in range(10):
        data = tagged(tag, kind, mode)
        found = decode(data, "x")
        assert found.shape == shown(tag).shape, tag
        assert np.abs(found - shown(tag)).max() < 12, tag
        torch.from_numpy(found)  # which takes no negative strides
        if kind != "TIFF":
            assert np.abs(decode(data, "x", exif_orientation=False) - STORED.astype(int)).max() < 12, tag
        if tag == 6:
            assert decode(data, "x", least=lambda height, width: 0 if height > width else 1 / 0).shape == (64, 40, 3)  # pyright: ignore[reportArgumentType]


def test_damaged_and_odd_tags() -> None:
    whole = tagged(6)
    at = whole.index(b"Exif")
    for length in range(at + 4, at + 40):  # cut off in the segment
        assert jpeg_tag(whole[:length]) in (1, 6)
    little = b"II*\0" + (8).to_bytes(4, "little") + b"\1\0"
    entry = TAG.to_bytes(2, "little")
    assert exif_tag(little + entry + b"\3\0\1\0\0\0\6\0\xff\xff") == 6, "what is behind a short number says nothing"
    assert exif_tag(little + entry + b"\4\0\1\0\0\0\6\0\0\0") == 6, "some write a long number"
    assert exif_tag(little + entry + b"\3\0\1\0\0\0\x09\0\0\0") == 1
    assert exif_tag(little[:4] + b"\xff" * 4 + entry) == 1
    assert exif_tag(b"") == exif_tag(b"Exif\0\0nothing") == 1
    comment = b"\xff\xfe\0\6note"
    assert jpeg_tag(whole[:2] + comment + whole[2:]) == 6
    assert jpeg_tag(whole[: at - 4] + b"\xff\xdb" + whole[at - 2 :]) == 1, "only before the tables"


def test_pictures_without_the_tag_are_not_copied() -> None:
    assert upright(STORED, 1) is STORED


@pytest.fixture
def ways(tmp_path: Path) -> dict[str, Any]:
    """The same picture by every way of reading, as datasets of one sample."""
    tree = {"cat/0.jpg": tagged(6)}
    options: dict[str, Any] = {"image_size": 24, "resize": 32}
    folder = as_directory(tmp_path / "set", tree)
    tars = tar(tmp_path / "tars" / "0.tar", [("0.jpg", tree["cat/0.jpg"]), ("0.cls", b"0")]).parent
    found: dict[str, Any] = {
        "folder": ImageFolder("train", folder, **options),
        "zip": ImageFolder("train", as_zip(tmp_path / "set", tree), **options),
        "others' tar": Shards("train", tars, **options),
        "photographs": Photographs(folder, (3, 24, 24), resize=32),
    }  # fmt: skip
    for name, format, size in (("jpeg", "jpeg", None), ("smaller jpeg", "jpeg", 32), ("raw", "raw", 36)):
        Preparation(tmp_path / name, {"train": found["folder"]}, format=format, size=size, quality=95).run(silent)  # pyright: ignore[reportArgumentType]
        found[name] = Shards("train", tmp_path / name, **options)
    return found


def test_all_ways_of_reading_agree(ways: dict[str, Any]) -> None:
    def top(height: int, width: int) -> list[Box]:
        assert height > width, "crops are chosen from the upright picture"
        return [(0, 0, width, height // 2)]

    expected = ways["folder"].evaluation_sample(0)[0].int()
    assert np.abs(expected[:, 0, 0].numpy() - shown(6)[20, 5]).max() < 20
    crop = ways["folder"].crops(0, top, (16, 20))[0].int()
    for name, data in ways.items():
        assert (data.evaluation_sample(0)[0].int() - expected).abs().float().mean() < 2, name
        assert (data.crops(0, top, (16, 20))[0].int() - crop).abs().float().mean() < 2, name
        data.scaled_decoding = True
        assert (data.crops(0, top, (4, 5))[0].shape) == (1, 3, 4, 5), name
    for name in ("jpeg", "smaller jpeg"):
        data, _ = ways[name].original(0)
        assert decode(data, "", exif_orientation=False).shape[0] > decode(data, "").shape[1], "stored upright"


def test_pictures_as_they_are_stored(tmp_path: Path, freeze: Freeze) -> None:
    folder = as_directory(tmp_path / "set", {"cat/0.jpg": tagged(6), "cat/1.jpg": tagged(1)})
    data = ImageFolder("train", folder, image_size=24, exif_orientation=False)
    assert torch.equal(data[0][0], data[1][0])
    Preparation(tmp_path / "out", {"train": data}).run(silent)
    stored = Shards("train", tmp_path / "out", image_size=24)
    assert (stored[0][0].int() - data[0][0].int()).abs().float().mean() < 2, "the tag is gone, and turns nothing later"
    run = freeze("run", "dataset=image_folder", f"dataset.root={folder}", "dataset.exif_orientation=false", "model=mlp")
    assert preparation_of(load(run))["exif_orientation"] is False
