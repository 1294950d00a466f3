"""Resource bombs in data sets: refused by name before they take memory or time; their harmless neighbours are read."""

import gzip
import io
import os
import socket
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from edited_checkpoints import edited, reshaped
from image_bombs import claims_pixels, encoded, overstated, tiff, understated, with_scans, zeros
from limited_process import within_limits
from PIL import Image

from leyden.datasets import decode as decoding
from leyden.datasets.cifar10 import CIFAR10
from leyden.datasets.decode import decode, is_image
from leyden.datasets.decoding.jpeg_scans import count_scans
from leyden.datasets.files import open_files
from leyden.datasets.image_folder import ImageFolder
from leyden.datasets.limits import Limits
from leyden.trainer.core.checkpoints import checkpoint_io
from leyden.trainer.engine.init_weights import weights_of

READ = """
try:
    print(ImageFolder("train", {root!r}, image_size=8)[{index}][0].shape)
except ValueError as error:
    print(error)
"""
IMPORT = "from leyden.datasets.image_folder import ImageFolder"


ZIPS: dict[Callable[[Path, int], None], str] = {
    zeros: "limits.file_bytes",
    understated: "more bytes than its header says",
    overstated: "limits.file_bytes",
}
IMAGES = {
    "2,000 scans are more than dataset.limits.scans=64": with_scans(2000),
    "limits.pixels": claims_pixels(65500),
}


@pytest.mark.campaign
def test_bombs_in_zips_take_neither_memory_nor_time(tmp_path: Path) -> None:
    """Together not more than one process may take."""
    paths = [tmp_path / f"{number}.zip" for number in range(len(ZIPS))]
    for path, make in zip(paths, ZIPS, strict=True):
        make(path, 640 << 20)  # more than the process may take
    told = within_limits("".join(READ.format(root=str(path), index=i) for path in paths for i in (0, 1)), IMPORT)
    lines = told.splitlines()
    for path, reason, bomb in zip(paths, ZIPS.values(), lines[::2], strict=True):
        assert bomb.startswith(f"{path}/cat/bomb.jpg")
        assert reason in bomb
    assert lines[1::2] == ["torch.Size([3, 8, 8])"] * len(ZIPS)


@pytest.mark.slow
def test_bombs_of_images_take_neither_memory_nor_time(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    for number, data in enumerate(IMAGES.values()):
        (tmp_path / "cat" / f"{number}.jpg").write_bytes(data)
    told = within_limits("".join(READ.format(root=str(tmp_path), index=i) for i in range(len(IMAGES))), IMPORT)
    for number, (reason, line) in enumerate(zip(IMAGES, told.splitlines(), strict=True)):
        assert line.startswith(f"{tmp_path}/cat/{number}.jpg: ")
        assert reason in line


@pytest.mark.campaign
def test_a_large_picture_of_one_bit_is_read_within_the_memory_of_two_bytes_a_pixel(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    Image.new("1", (14_093, 14_093), 1).save(tmp_path / "cat" / "1.png")
    code = f"""
data = ImageFolder("train", {str(tmp_path)!r}, image_size=8, resize=16)
for image, _ in (data[0], data.evaluation_sample(0), data.crops(0, lambda h, w: [(0, 0, w, h)], (8, 8))):
    print(image.unique().tolist())
"""
    assert within_limits(code, IMPORT).splitlines() == ["[255]"] * 3


def test_scans_are_counted_from_the_markers() -> None:
    assert count_scans(encoded()) == 1
    assert count_scans(encoded(progressive=True)) == 10
    assert count_scans(with_scans(64)) == 64
    thumbnail = b"\xff\xe1" + (2 + 200).to_bytes(2, "big") + b"\xff\xda" * 100
    data = encoded(progressive=True)
    assert count_scans(data[:2] + thumbnail + data[2:]) == 10, "those of an EXIF thumbnail do not count"
    for damaged in (b"", b"\xff\xd8", data[:40], b"\xff\xd8" + b"\xff" * 100, b"\xff\xd8\xff\xe1\0\0"):
        assert count_scans(damaged) == 0


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_neighbours_of_a_limit_pass(kind: str) -> None:
    data = encoded(kind)
    assert decode(data, "x", limits=Limits(pixels=24 * 32)).shape == (24, 32, 3)
    with pytest.raises(ValueError, match=r"x: .*dataset\.limits\.pixels=767"):
        decode(data, "x", limits=Limits(pixels=24 * 32 - 1))
    assert decode(with_scans(64), "x").shape == (240, 320, 3)
    with pytest.raises(ValueError, match="65 scans"):
        decode(with_scans(65), "x")


def test_a_tiff_is_judged_by_its_size_and_by_that_of_its_tiles() -> None:
    assert not decode(tiff(8, 8), "x").any()
    assert decode(tiff(8, 8, {322: 16, 323: 16}), "x").shape == (8, 8, 3), "a tile may be larger than the image"
    with pytest.raises(ValueError, match=r"x: .*65536 x 65536 pixels are more than dataset\.limits\.pixels"):
        decode(tiff(8, 8, {322: 65536, 323: 65536}), "x")
    with pytest.raises(ValueError, match=r"x: .* more pixels than Pillow reads, .*dataset\.limits\.pixels"):
        decode(tiff(65500, 65500), "x")


def test_scans_of_a_tiny_image_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting takes half as long as decoding it. As many as can take time are counted."""
    counted: list[int] = []
    monkeypatch.setattr(decoding, "count_scans", lambda data: (counted.append(len(data)), count_scans(data))[1])
    assert decode(encoded(shape=(32, 32)), "x").shape == (32, 32, 3)
    assert decode(encoded(progressive=True), "x").shape == (24, 32, 3)
    assert not counted
    with pytest.raises(ValueError, match=r"more than dataset\.limits\.scans=64"):
        decode(with_scans(3000, (32, 32)), "x")


def test_scans_are_counted_for_pillow_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It decodes what has no header for simplejpeg."""

    def refuses(data: bytes) -> None:
        raise ValueError("no header")

    monkeypatch.setattr(decoding.simplejpeg, "decode_jpeg_header", refuses)
    assert decode(encoded(), "x").shape == (24, 32, 3)
    with pytest.raises(ValueError, match="2,000 scans"):
        decode(with_scans(2000), "x")


@pytest.mark.parametrize("archive", [False, True])
def test_the_size_of_a_file(tmp_path: Path, archive: bool) -> None:
    root = tmp_path / "set.zip" if archive else tmp_path
    (tmp_path / "cat").mkdir()
    data = encoded()
    (tmp_path / "cat" / "1.jpg").write_bytes(data)
    if archive:
        with zipfile.ZipFile(root, "w", zipfile.ZIP_DEFLATED) as made:
            made.writestr("cat/1.jpg", data)
    assert ImageFolder("train", root, 8, Limits(file_bytes=len(data) + 100))[0][0].shape == (3, 8, 8)
    with pytest.raises(ValueError, match=rf"cat/1\.jpg.*limits\.file_bytes={len(data) - 1}"):
        ImageFolder("train", root, 8, Limits(file_bytes=len(data) - 1))[0]


def test_what_is_no_regular_file_is_an_unreadable_sample(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    os.mkfifo(tmp_path / "cat" / "1.jpg")
    (tmp_path / "cat" / "2.jpg").symlink_to("/dev/zero")
    (tmp_path / "photo").write_bytes(encoded())
    (tmp_path / "cat" / "4.jpg").symlink_to(tmp_path / "photo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "cat" / "3.jpg"))
        data = ImageFolder("train", tmp_path, 8)
        for index in range(3):
            with pytest.raises((OSError, ValueError), match=rf"cat/{index + 1}\.jpg"):
                data[index]
    assert data[3][0].shape == (3, 8, 8), "links to regular files are followed"
    os.mkfifo(tmp_path / "set.zip")
    with pytest.raises(ValueError, match=r"set\.zip is not a regular file"):
        open_files(tmp_path / "set.zip", is_image)


def test_links_that_multiply_folders_end(tmp_path: Path) -> None:
    for level in range(12):
        (tmp_path / f"{level}").mkdir()
        for name in "abcd":
            (tmp_path / f"{level}" / name).symlink_to(tmp_path / f"{level + 1}")
    (tmp_path / "12").mkdir()
    with pytest.raises(ValueError, match=r"dataset\.limits\.links=100"):
        open_files(tmp_path / "0", is_image)
    deep = tmp_path / "deep"
    for _ in range(70):
        deep = deep / "x"
    deep.mkdir(parents=True)
    with pytest.raises(ValueError, match=r"dataset\.limits\.depth=64"):
        open_files(tmp_path / "deep", is_image)


@pytest.mark.parametrize("kind", ["folder", "zip", "tar"])
def test_the_number_of_files(tmp_path: Path, kind: str) -> None:
    names = [f"cat/{number}.jpg" for number in range(20)]
    root = tmp_path / f"set.{kind}"
    if kind == "folder":
        (root / "cat").mkdir(parents=True)
        for name in names:
            (root / name).write_bytes(b"x")
    elif kind == "zip":
        with zipfile.ZipFile(root, "w") as archive:
            for name in names:
                archive.writestr(name, b"x")
    else:
        with tarfile.open(root, "w") as archive:
            for name in names:
                archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    assert len(open_files(root, is_image, Limits(members=21)).names) == 20
    with pytest.raises(ValueError, match=r"set\.\w+.* more files than dataset\.limits\.members=19"):
        open_files(root, is_image, Limits(members=19))


def test_a_header_of_a_tar_that_declares_gigabytes(tmp_path: Path) -> None:
    header = tarfile.TarInfo("././@PaxHeader")
    header.type, header.size = tarfile.XHDTYPE, 1 << 30
    path = tmp_path / "set.tar"
    path.write_bytes(header.tobuf(tarfile.USTAR_FORMAT) + bytes(512))
    os.truncate(path, 2 << 30)
    with pytest.raises(ValueError, match=r"set\.tar: a header of 1,073,741,824 bytes at byte 512"):
        open_files(path, is_image)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        (1 << 32, r"binary\.tar\.gz/readme: 4,294,967,296 bytes are more than dataset\.limits\.file_bytes"),
        (1 << 28, r"binary\.tar\.gz: more bytes than dataset\.limits\.file_bytes"),
    ],
)
def test_a_tar_gz_that_decompresses_to_gigabytes(tmp_path: Path, declared: int, reason: str) -> None:
    path = tmp_path / "cifar-10-binary.tar.gz"
    header = tarfile.TarInfo("readme")
    header.size = declared
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    with path.open("wb") as file:
        file.write(packer.compress(header.tobuf(tarfile.GNU_FORMAT)) + packer.flush(zlib.Z_FULL_FLUSH))
        # after a full flush nothing refers to what was before: the same bytes are the same zeros, however often
        file.write((packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)) * (1 << 9))
    with pytest.raises(ValueError, match=reason):
        CIFAR10("train", path)


def test_a_batch_of_cifar10_is_limited_too(tmp_path: Path) -> None:
    batch = tmp_path / "test_batch.bin"
    batch.write_bytes(bytes(3073 * 2))
    assert len(CIFAR10("test", tmp_path)) == 2
    with pytest.raises(
        ValueError, match=r"test_batch\.bin: 6,146 bytes are more than dataset\.limits\.file_bytes=6145"
    ):
        CIFAR10("test", tmp_path, Limits(file_bytes=6145))
    with tarfile.open(tmp_path / "whole.tar", "w") as archive:
        archive.add(batch, "test_batch.bin")
    (tmp_path / "set.tar.gz").write_bytes(gzip.compress((tmp_path / "whole.tar").read_bytes()))
    assert len(CIFAR10("test", tmp_path / "set.tar.gz")) == 2


def test_limits_are_positive() -> None:
    with pytest.raises(ValueError, match=r"limits\.pixels=0 must be at least 1"):
        Limits(pixels=0)


def test_checkpoints_that_declare_more_than_they_hold(tmp_path: Path) -> None:
    same = edited(tmp_path / "same.ckpt", lambda name, data: data)
    assert torch.equal(checkpoint_io.read(same)["model"]["w"], torch.zeros(4))
    for path, reason in (
        (edited(tmp_path / "zeros.ckpt", lambda name, data: bytes(1 << 24), zipfile.ZIP_DEFLATED), "compressed"),
        (edited(tmp_path / "long.ckpt", reshaped(10**12, 1)), "is damaged"),
        (edited(tmp_path / "repeated.ckpt", reshaped(10**12, 0)), "declare 4,000,000,000,000 bytes (model.w: "),
    ):
        with pytest.raises(checkpoint_io.DamagedCheckpoint) as caught:
            checkpoint_io.read(path)
        assert str(path) in str(caught.value)
        assert reason in str(caught.value)


@pytest.mark.parametrize("declared", [b"\xff" * 7 + b"\x7f", (10**9).to_bytes(8, "little")])
def test_weights_whose_header_is_longer_than_the_file(tmp_path: Path, declared: bytes) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(declared + b"{}")
    with pytest.raises(ValueError, match=r"init_from=.*w\.safetensors cannot be read"):
        weights_of("init_from", str(path))


def test_weights_whose_offsets_are_outside_the_file(tmp_path: Path) -> None:
    header = b'{"w":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}'
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    with pytest.raises(ValueError, match=r"w\.safetensors cannot be read"):
        weights_of("init_from", str(path))
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(ValueError, match=r"pipe\.safetensors is not a file"):
        weights_of("init_from", str(tmp_path / "pipe.safetensors"))
