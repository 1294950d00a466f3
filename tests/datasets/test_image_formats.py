"""Formats of image files: each is found by its suffix and read by its bytes, in folders and in archives."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from image_layouts import LAYOUTS, Build, encoded
from PIL import Image
from shard_examples import pixels, png

from leyden.datasets.decode import decode, resized_crop, resized_crops, square
from leyden.datasets.decoding import pillow_decoder
from leyden.datasets.decoding.grey import is_grey
from leyden.datasets.image_folder import ImageFolder
from leyden.datasets.shards import webdataset
from leyden.datasets.shards.dataset import Shards

KINDS = {
    "1.jpe": "JPEG", "2.jfif": "JPEG", "3.JFIF": "JPEG", "4.apng": "PNG",
    "5.tif": "TIFF", "6.TIFF": "TIFF", "7.avif": "AVIF",
}  # fmt: skip


@LAYOUTS
def test_files_of_every_suffix_are_read(tmp_path: Path, build: Build) -> None:
    tree = {f"cat/{name}": encoded((30 * n, 90, 7), kind=kind) for n, (name, kind) in enumerate(KINDS.items())}
    data = ImageFolder("train", build(tmp_path / "set", {**tree, "dog/0.png": encoded()}), image_size=8)
    assert len(data) == len(KINDS) + 1
    for number in range(len(KINDS)):
        colour = data[number][0].float().mean((1, 2))
        assert np.abs(colour.numpy() - [30 * number, 90, 7]).max() < 4


@pytest.mark.parametrize("kind", ["TIFF", "AVIF", "PNG", "GIF"])
def test_the_first_of_several_pictures_is_taken(kind: str) -> None:
    pictures = [Image.new("RGB", (16, 16), (200 - 90 * number,) * 3) for number in range(3)]
    file = io.BytesIO()
    pictures[0].save(file, kind, save_all=True, append_images=pictures[1:])
    assert np.abs(decode(file.getvalue(), "x").astype(int) - 200).max() < 4


def test_a_tiff_of_numbers_is_refused_and_one_of_16_bits_is_read() -> None:
    """Of 32 bits nobody knows what is white: Pillow would show numbers from 0 to 1 as black."""
    for values in (np.linspace(0, 1, 64, dtype=np.float32), np.arange(64, dtype=np.int32)):
        file = io.BytesIO()
        Image.fromarray(values.reshape(8, 8)).save(file, "TIFF")
        with pytest.raises(ValueError, match=r"x: .*numbers of 32 bits"):
            decode(file.getvalue(), "x")
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8), 128 << 8, np.uint16)).save(file, "TIFF")
    assert (decode(file.getvalue(), "x") == 128).all()


def test_texts_and_profiles_of_a_png_are_not_decompressed() -> None:
    """A PNG of a few kilobytes that decompresses to megabytes, which Pillow refuses."""
    plain = encoded()
    text = zlib.compress(bytes(3 << 20))
    chunks = {
        b"zTXt": b"a\0\0" + text,
        b"iTXt": b"a\0\1\0\0\0" + text,
        b"iCCP": b"a\0\0" + text,
        b"tEXt": b"a\0" + bytes(2 << 20),
    }
    for places in (chunks, dict.fromkeys(chunks, b"no such data")):
        more = b"".join(chunk(kind, data) for kind, data in places.items())
        for at in (33, len(plain) - 12):  # behind the header, and before the end
            assert np.array_equal(decode(plain[:at] + more + plain[at:], "x"), decode(plain, "x"))
    with pytest.raises(ValueError, match=r"^x: the image cannot be read"):
        decode(plain[:33] + chunk(b"zTXt", b"x")[:-9] + plain[33:], "x")


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGB"])
def test_grey_pictures_are_read_as_the_same_ones_in_colour(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are converted in strips, and resized by Pillow, one channel of three."""
    picture = Image.fromarray(pixels(5, 61, 47)).convert(mode)
    file = io.BytesIO()
    picture.save(file, "PNG")
    found, colour = decode(file.getvalue(), "x"), np.array(picture.convert("RGB"))
    monkeypatch.setattr(pillow_decoder, "_STRIP", 200)
    assert np.array_equal(found, colour)
    assert np.array_equal(decode(file.getvalue(), "x"), colour)
    assert is_grey(found) == (mode != "RGB")
    for side in (47, 24, 60):
        assert torch.equal(square(found, side), square(colour, side))
    for size in ((30, 20), (10, 12), (1, 1), (60, 90)):
        ours, theirs = (resized_crop(each, (3, 5, 20, 30), size) for each in (found, colour))
        assert (ours.int() - theirs.int()).abs().max() <= 2
        assert ours.stride() == theirs.stride()
    ours, theirs = (resized_crops(each, 32, 24, 10) for each in (found, colour))
    assert (ours.int() - theirs.int()).abs().max() <= 2


def test_pillows_limit_of_pixels_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert decode(encoded(), "x").shape == (30, 40, 3)
    with pytest.raises(ValueError, match=r"^x: .* more pixels than Pillow reads, .*dataset\.limits\.pixels$"):
        decode(encoded(kind="BMP"), "x")


def test_foreign_tars_that_were_indexed_by_fewer_suffixes_are_indexed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tar_shards import tar

    picture = encoded((9, 9, 9), kind="TIFF")
    tar(tmp_path / "0.tar", [("0.png", png(1, 9, 9)), ("0.cls", b"0"), ("1.tif", picture), ("1.cls", b"0")])
    with monkeypatch.context() as patch:
        patch.setattr(webdataset, "SUFFIXES", (".png",))
        patch.setattr(webdataset, "is_image", lambda name: name.endswith(".png"))
        assert len(Shards("train", tmp_path, 8)) == 1
    assert len(Shards("train", tmp_path, 8)) == 2
