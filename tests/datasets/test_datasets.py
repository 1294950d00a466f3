"""Datasets: what they hold, where they read it from, and how they refuse what they cannot read."""

import gzip
import io
import multiprocessing
import operator
import os
import pickle
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from folders import SHARED_DATA
from image_layouts import LAYOUTS, Build, as_directory, as_tar, as_zip, encoded
from PIL import Image

from leyden.datasets import decode as decoding
from leyden.datasets.cifar10 import CIFAR10
from leyden.datasets.decode import decode, decode_square
from leyden.datasets.digits import Digits
from leyden.datasets.files import Names, open_files
from leyden.datasets.hashing import splitmix64
from leyden.datasets.image_folder import ImageFolder
from leyden.datasets.limits import Limits
from leyden.datasets.synthetic import Synthetic

CIFAR_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def photograph(height: int = 96, width: int = 128) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Smooth, different in every pixel and channel, so that mirrored or shifted copies show."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 255 // width, y * 255 // height, (x + y) * 255 // (width + height)], axis=2).astype(np.uint8)


TREE = {
    "train/cat/1.jpg": encoded((250, 0, 0), kind="JPEG"),
    "train/cat/deep/2.PNG": encoded((240, 0, 0)),
    "train/dog/1.webp": encoded((0, 250, 0), kind="WEBP"),
    "train/dog/notes.txt": b"no image",
    "val/dog/1.bmp": encoded((0, 240, 0), kind="BMP"),
    "val/cat/9.gif": encoded((230, 0, 0), kind="GIF"),
    "labels.csv": b"a,b",
    "__MACOSX/train/cat/._1.jpg": b"junk",
    "train/cat/@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg": b"junk",
    "train/cat/._1.jpg": b"junk",
}


# --- digits


def test_digits_cut_the_whole_file_once() -> None:
    train, test = Digits("train", image_size=8), Digits("test", image_size=8)
    assert (len(train), len(test)) == (1437, 360)
    assert train.image_shape == (1, 8, 8)
    assert train[0][0].shape == (1, 8, 8)
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    whole = Counter((row.tobytes(), label) for row, label in zip(bunch.images, bunch.target.tolist(), strict=True))
    ours: Counter[tuple[bytes, int]] = Counter()
    for part in (train, test):
        for i in range(len(part)):
            image, label = part[i]
            ours[((image[0].double() * 16 / 255).round().numpy().tobytes(), label)] += 1
    assert ours == whole
    assert min(Counter(test.labels).values()) >= 25  # all ten digits are well represented


def test_digits_are_enlarged_and_described() -> None:
    data = Digits("train")
    image, label = data[5]
    assert image.shape == (1, 32, 32)
    assert image.dtype == torch.uint8
    assert type(label) is int
    small = Digits("train", image_size=8)
    assert small.labels == data.labels
    # Bilinear enlarging by four keeps the mean of every image, up to the rounding and the border.
    assert (data.images.float().mean((1, 2, 3)) - small.images.float().mean((1, 2, 3))).abs().max() < 3
    scaled = data.images.double() / 255
    assert data.mean[0] == pytest.approx(scaled.mean().item())
    assert data.std[0] == pytest.approx(scaled.std().item(), rel=1e-5)
    assert Digits("test").mean == data.mean


def test_digits_are_the_same_every_time() -> None:
    one, two = Digits("test"), Digits("test")
    assert torch.equal(one.images, two.images)
    assert one.labels == two.labels
    assert one.labels[:20] == GOLDEN_DIGITS  # a resumed run, or another torch, must see the same test set


GOLDEN_DIGITS = [2, 0, 9, 0, 1, 6, 1, 1, 7, 2, 6, 9, 8, 8, 8, 3, 7, 6, 7, 9]


def test_digits_refuse() -> None:
    with pytest.raises(ValueError, match="no split 'val'"):
        Digits("val")
    with pytest.raises(ValueError, match="at least 8"):
        Digits("train", image_size=4)


@pytest.mark.slow
def test_digits_do_not_import_sklearn() -> None:
    code = "import sys; from leyden.datasets.digits import Digits; Digits('test'); assert 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# --- synthetic


def test_hash_is_splitmix64() -> None:
    assert splitmix64(0) == 0xE220A8397B1DCDAF  # the reference program's first output from seed 0
    assert splitmix64(1234567) == 6457827717110365317


def test_synthetic_is_a_pure_function_of_split_and_index() -> None:
    one = Synthetic("train", samples=500, classes=7, image_shape=[3, 8, 9])
    two = Synthetic("train", samples=900, classes=7, image_shape=[3, 8, 9])
    for i in (499, 0, 17):
        assert torch.equal(one[i][0], two[i][0])
        assert one[i][1] == two[i][1]
    image, label = one[3]
    assert image.shape == (3, 8, 9)
    assert image.dtype == torch.uint8
    assert type(label) is int
    image.zero_()  # a caller may change what it was given
    assert one[3][0].any()
    assert one.synthetic


def test_synthetic_samples_differ_and_labels_are_even() -> None:
    images: set[bytes] = set()
    for split in Synthetic.splits:
        data = Synthetic(split, samples=1000, image_shape=(1, 4, 4))
        images |= {data[i][0].numpy().tobytes() for i in range(1000)}
        counts = Counter(data[i][1] for i in range(1000))
        assert sorted(counts) == list(range(10))
        assert min(counts.values()) > 60
    assert len(images) > 2990
    pixels = torch.stack([Synthetic("val")[i][0] for i in range(50)]).float()
    assert abs(pixels.mean().item() - 127.5) < 1


def test_synthetic_refuses() -> None:
    with pytest.raises(ValueError, match="image_shape"):
        Synthetic("train", image_shape=[32, 32])
    with pytest.raises(ValueError, match="samples=0"):
        Synthetic("train", samples=0)
    with pytest.raises(ValueError, match="'dev'"):
        Synthetic("dev")
    with pytest.raises(IndexError):
        Synthetic("train", samples=4)[4]


# --- image folders


@LAYOUTS
@pytest.mark.parametrize("prefix", ["", "photos/"])
def test_image_folder_reads_every_layout(tmp_path: Path, build: Any, prefix: str) -> None:
    root = build(tmp_path / "set", TREE, prefix)
    root = root / prefix if root.is_dir() else root
    train, val = ImageFolder("train", root, image_size=16), ImageFolder("val", str(root), image_size=16)
    assert train.splits == ("train", "val")
    assert train.class_names == val.class_names == ("cat", "dog")
    assert (train.classes, train.image_shape) == (2, (3, 16, 16))
    assert [train[i][1] for i in range(len(train))] == [0, 0, 1]
    assert [val[i][1] for i in range(len(val))] == [0, 1]
    expected = [(250, 0, 0), (240, 0, 0), (0, 250, 0)]
    for i, colour in enumerate(expected):
        image = train[i][0]
        assert image.shape == (3, 16, 16)
        assert image.dtype == torch.uint8
        assert (image.float().mean((1, 2)) - torch.tensor(colour)).abs().max() < 6  # JPEG and WebP lose a little
    assert torch.equal(val[0][0][0], torch.full((16, 16), 230, dtype=torch.uint8))
    assert torch.equal(train[-1][0], train[2][0])
    with pytest.raises(IndexError):
        train[3]
    with pytest.raises(ValueError, match=r"no split 'test', only train, val"):
        ImageFolder("test", root, image_size=16)


@LAYOUTS
def test_image_folder_without_splits_is_training_data(tmp_path: Path, build: Build) -> None:
    # `train` is a class here: its images lie in it directly.
    tree = {"train/1.png": encoded(), "bus/1.png": encoded(), "bus/2.png": encoded()}
    root = build(tmp_path / "set", tree)
    data = ImageFolder("train", root, image_size=8)
    assert data.splits == ("train",)
    assert data.class_names == ("bus", "train")
    assert [data[i][1] for i in range(3)] == [0, 0, 1]
    with pytest.raises(ValueError, match="no split 'val'"):
        ImageFolder("val", root, image_size=8)


@LAYOUTS
def test_image_folder_refuses_odd_layouts(tmp_path: Path, build: Build) -> None:
    image = encoded()
    root = build(tmp_path / "a", {"train/cat/1.png": image, "val/cow/1.png": image, "val/bird/1.png": image})
    with pytest.raises(ValueError, match=r"val has classes that train does not have: bird, cow"):
        ImageFolder("val", root)
    with pytest.raises(ValueError, match=r"train/stray\.png is not in a class folder; expected train/CLASS/IMAGE"):
        ImageFolder("train", build(tmp_path / "b", {"train/cat/1.png": image, "train/stray.png": image}))
    with pytest.raises(ValueError, match="no images"):
        ImageFolder("train", build(tmp_path / "c", {"train/cat/1.txt": b""}))


def test_image_folder_refuses_what_is_no_place_for_images(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        ImageFolder("train", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="gunzip it first"):
        ImageFolder("train", as_tar(tmp_path / "packed", TREE, mode="w:gz"))
    text = tmp_path / "readme.zip"
    text.write_text("hello" * 200)
    with pytest.raises(ValueError, match=r"readme\.zip is not a \.zip or \.tar"):
        ImageFolder("train", text)
    whole = as_tar(tmp_path / "cut", TREE)
    whole.write_bytes(whole.read_bytes()[:1500])
    with pytest.raises(ValueError, match=r"damaged|lies|no images"):
        ImageFolder("train", whole)


def test_archives_leave_out_links_and_names_that_lead_out(tmp_path: Path) -> None:
    path = as_tar(tmp_path / "set", {"./cat/1.png": b"one", "../cat/2.png": b"two", "/cat/3.png": b"three"})
    with tarfile.open(path, "a") as archive:
        link = tarfile.TarInfo("cat/4.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        again = tarfile.TarInfo("cat/1.png")  # appended later: the newer one counts, as for tar itself
        again.size = 3
        archive.addfile(again, io.BytesIO(b"new"))
    files = open_files(path, decoding.is_image)
    assert list(files.names) == ["cat/1.png"]
    assert files.read(0) == b"new"

    zipped = as_zip(tmp_path / "set", {"cat/1.png": b"one", "../cat/2.png": b"two", "cat/.3.png": b"three"})
    with zipfile.ZipFile(zipped, "a") as archive:
        entry = zipfile.ZipInfo("cat/4.png")
        entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, "/etc/passwd")
    assert list(open_files(zipped, decoding.is_image).names) == ["cat/1.png"]


@pytest.mark.parametrize("build", [as_zip, as_tar])
def test_an_archive_cut_off_later_is_named(tmp_path: Path, build: Build) -> None:
    path = build(tmp_path / "set", {"cat/1.png": bytes(3000), "cat/2.png": os.urandom(3000)})
    files = open_files(path, decoding.is_image)
    os.truncate(path, 2000 if build is as_zip else 5000)
    with pytest.raises(ValueError, match=rf"{path.name}/cat/2\.png: the archive"):
        files.read(1)


def test_an_entry_of_a_zip_without_a_name_is_passed_over(tmp_path: Path) -> None:
    """Found by fuzzing: ZipInfo.is_dir of Python 3.11 raises IndexError."""
    path = tmp_path / "photographs.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.jpg", b"x")
        archive.writestr("b.jpg", b"y")
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\1\2")  # of a.jpg in the central directory: its name becomes an extra field
    data[entry + 28 : entry + 32] = bytes([0, 0, 5, 0])
    data[entry + 46 : entry + 51] = bytes([1, 0, 1, 0, 0])
    path.write_bytes(data)
    assert list(open_files(path, lambda name: True, Limits()).names)[-1:] == ["b.jpg"]


def test_a_zip_of_a_version_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    """Found by fuzzing: zipfile raises NotImplementedError."""
    path = tmp_path / "photographs.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.jpg", b"x")
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\1\2") + 6] = 64  # version that is needed to extract it: 6.4
    path.write_bytes(data)
    with pytest.raises(ValueError, match="damaged: zip file version"):
        open_files(path, lambda name: True, Limits())


def test_damage_inside_a_zip_is_named(tmp_path: Path) -> None:
    path = as_zip(tmp_path / "set", {"cat/1.png": b"A" * 50, "cat/2.png": b"B" * 5000})
    data = path.read_bytes()
    path.write_bytes(data.replace(b"A" * 50, b"A" * 49 + b"C"))
    files = open_files(path, decoding.is_image)
    with pytest.raises(ValueError, match=r"set\.zip/cat/1\.png: .*checksum"):
        files.read(0)
    assert files.read(1) == b"B" * 5000


@pytest.mark.parametrize("build", [as_zip, as_tar])
def test_archives_made_on_windows_with_backslashes(tmp_path: Path, build: Build) -> None:
    names = ["train/cat/1.png", "train/dog/2.png", "val/dog/3.png"]
    tree = {name.replace("/", "\\"): encoded((10 * n, 0, 0)) for n, name in enumerate(names)}
    root = build(
        tmp_path / "set", {"train\\cat\\": b"", **tree, "..\\1.png": b"x", "\\x\\1.png": b"x", ".x\\1.png": b"x"}
    )
    files = open_files(root, decoding.is_image)
    assert list(files.names) == names
    data = ImageFolder("train", root, image_size=8)
    assert (data.class_names, data.splits) == (("cat", "dog"), ("train", "val"))
    assert [first_pixel(data, index) for index in range(2)] == [0, 10]
    odd = open_files(build(tmp_path / "odd", {"cat/a\\b.png": b"x"}), decoding.is_image)
    assert list(odd.names) == ["cat/a\\b.png"], "a name that Linux allows"


def test_directories_linked_into_themselves_end(tmp_path: Path) -> None:
    as_directory(tmp_path / "set", {"cat/1.png": b"x"})
    (tmp_path / "set" / "cat" / "loop").symlink_to(tmp_path / "set")
    assert list(open_files(tmp_path / "set", decoding.is_image).names) == ["cat/1.png"]


def test_names_in_one_block() -> None:
    names = ["a", "", "größe/\udcff.png", "b" * 300]
    packed = Names(names)
    assert list(packed) == names
    assert packed[1:] == names[1:]
    with pytest.raises(IndexError):
        packed[4]


def first_pixel(dataset: ImageFolder, index: int) -> int:
    return int(dataset[index][0][0, 0, 0])


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("build", "method"),
    [
        (as_zip, "fork"),
        (as_tar, "fork"),
        (as_zip, "spawn"),
        pytest.param(as_tar, "spawn", marks=pytest.mark.campaign),
    ],
)
def test_image_folder_survives_pickling_and_new_processes(tmp_path: Path, build: Build, method: str) -> None:
    tree = {f"cat/{i:02}.png": encoded((i, 0, 0)) for i in range(30)}
    data = ImageFolder("train", build(tmp_path / "set", tree), image_size=8)
    assert first_pixel(data, 7) == 7  # its archive is open now
    packed = pickle.dumps(data)
    del data  # and with it the handle
    copy = pickle.loads(packed)
    assert [first_pixel(copy, i) for i in range(30)] == list(range(30))
    with multiprocessing.get_context(method).Pool(2) as pool:
        # no function of this file: new processes cannot import it
        read = pool.starmap(operator.getitem, [(copy, i) for i in range(30)], chunksize=3)
        assert [int(image[0, 0, 0]) for image, _ in read] == list(range(30))
    assert first_pixel(copy, 8) == 8


def test_forked_readers_share_no_position(tmp_path: Path) -> None:
    tree = {f"cat/{i:03}.png": encoded((i, 0, 0), size=(9, 9)) for i in range(200)}
    data = ImageFolder("train", as_zip(tmp_path / "set", tree), image_size=9)
    assert first_pixel(data, 0) == 0
    pid = os.fork()
    right = all(first_pixel(data, i) == i for _ in range(5) for i in range(200))
    if pid == 0:
        os._exit(0 if right else 1)
    assert right
    assert os.waitpid(pid, 0)[1] == 0


# --- bad files


@LAYOUTS
def test_bad_files_are_named(tmp_path: Path, build: Build) -> None:
    jpeg = simplejpeg.encode_jpeg(photograph(), quality=90)
    png = encoded()
    tree = {
        "train/cat/1.jpg": jpeg[: len(jpeg) // 2],
        "train/cat/2.jpg": b"this is text",
        "train/cat/3.jpg": b"",
        "train/cat/4.png": png[:-30],
        "train/cat/5.jpg": jpeg,
        "train/cat/6.JPEG": png,  # a PNG by another name is what it is
    }
    root = build(tmp_path / "set", tree)
    data = ImageFolder("train", root, image_size=32)
    for index, reason in enumerate(("remature end", "not a JPEG, PNG", "empty", "truncated|cannot be read")):
        name = f"{root}/train/cat/{index + 1}."
        with pytest.raises((OSError, ValueError), match=reason) as caught:
            data[index]
        assert name in str(caught.value)
        assert data.name(index).startswith(name)
    assert data[4][0].shape == data[5][0].shape == (3, 32, 32)


def test_a_file_that_vanished_is_named(tmp_path: Path) -> None:
    root = as_directory(tmp_path / "set", {"cat/1.png": encoded()})
    data = ImageFolder("train", root)
    (root / "cat" / "1.png").unlink()
    with pytest.raises(OSError, match=r"set/cat/1\.png"):
        data[0]
    path = as_zip(tmp_path / "set", {"cat/1.png": encoded()})
    data = ImageFolder("train", path)
    path.unlink()
    with pytest.raises(OSError, match=r"set\.zip/cat/1\.png"):
        data[0]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "AVIF"])
def test_no_truncated_image_passes(kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, kind)
    data = buffer.getvalue()
    decode(data, "whole")
    for part in range(1, 20):
        with pytest.raises(ValueError, match=r"^some/name\.jpg: "):
            decode(data[: len(data) * part // 20], "some/name.jpg")


def test_a_jpeg_whose_end_was_faked_is_damaged() -> None:
    data = simplejpeg.encode_jpeg(photograph())
    with pytest.raises(ValueError, match="premature end"):
        decode(data[: len(data) // 2] + b"\xff\xd9", "x")


def test_too_large_images_are_refused() -> None:
    for kind in ("JPEG", "PNG"):
        with pytest.raises(ValueError, match="40 x 30 pixels"):
            decode(encoded(kind=kind), "x", limits=Limits(pixels=1000))
    bomb = bytearray(encoded(kind="BMP"))
    bomb[18:26] = (20000).to_bytes(4, "little") * 2  # 400 Mpx by its header
    with pytest.raises(ValueError, match=r"exceeds limit|pixels"):
        decode(bytes(bomb), "x")


def test_other_formats_are_not_opened() -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "PPM")
    with pytest.raises(ValueError, match="not a JPEG"):
        decode(buffer.getvalue(), "x.png")


# --- decoding


def test_jpeg_as_pillow_decodes_it() -> None:
    data = simplejpeg.encode_jpeg(photograph(), quality=95)
    ours = decode(data, "x").astype(int)
    theirs = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
    assert ours.shape == (96, 128, 3)
    assert np.abs(ours - theirs).max() <= 2
    assert np.abs(ours - photograph()).mean() < 2


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "1", "I;16", "CMYK"])
def test_every_colour_mode_becomes_rgb(mode: str) -> None:
    buffer = io.BytesIO()
    if mode == "I;16":
        Image.fromarray(np.full((6, 5), 128 << 8, dtype=np.uint16)).save(buffer, "PNG")
    else:
        kind = "JPEG" if mode == "CMYK" else "PNG"
        grey = 255 if mode == "1" else 128
        image = Image.new("RGB", (5, 6), (grey, grey, grey))
        image = image.quantize(4) if mode == "P" else image.convert(mode)
        image.save(buffer, kind)
    pixels = decode(buffer.getvalue(), "x")
    assert pixels.shape == (6, 5, 3)
    assert pixels.dtype == np.uint8
    assert np.abs(pixels.astype(int) - (255 if mode == "1" else 128)).max() <= 3


@pytest.mark.parametrize("size", [(40, 24), (24, 40), (24, 24), (240, 100), (13, 12)])
def test_square_is_resized_shorter_side_then_centre(size: tuple[int, int]) -> None:
    width, height = size
    pixels = photograph(height, width)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    square = decode_square(buffer.getvalue(), "x", 24)
    assert square.shape == (3, 24, 24)
    assert square.is_contiguous()
    scale = 24 / min(size)
    whole = Image.fromarray(pixels).resize((round(width * scale), round(height * scale)), Image.Resampling.BILINEAR)
    left, top = (whole.width - 24) // 2, (whole.height - 24) // 2
    expected = np.asarray(whole)[top : top + 24, left : left + 24].transpose(2, 0, 1)
    difference = np.abs(square.numpy().astype(int) - expected)
    # Rounding the longer side and the window's corner moves it by up to a pixel; neighbours differ by up to 11.
    assert difference.mean() < 6
    mirrored = pixels[::-1, ::-1]  # the centre is the centre from all sides
    buffer = io.BytesIO()
    Image.fromarray(mirrored).save(buffer, "PNG")
    difference = np.abs(decode_square(buffer.getvalue(), "x", 24).numpy()[:, ::-1, ::-1].astype(int) - square.numpy())
    assert difference.max() <= 1
    if size == (40, 24):
        assert np.array_equal(square.numpy(), pixels[:, 8:32].transpose(2, 0, 1))


def test_a_large_jpeg_shrunk_by_the_decoder_looks_the_same() -> None:
    data = simplejpeg.encode_jpeg(photograph(1200, 1600), quality=95)
    assert decode(data, "x", least=200).shape[0] < 1200
    assert decode(data, "x").shape == (1200, 1600, 3)
    full = Image.fromarray(decode(data, "x")).resize((100, 100), Image.Resampling.BILINEAR, box=(200, 0, 1400, 1200))
    difference = np.abs(decode_square(data, "x", 100).numpy().astype(int) - np.asarray(full).transpose(2, 0, 1))
    assert difference.mean() < 1


# --- CIFAR-10


def batch(first: int, count: int) -> tuple[bytes, np.ndarray[Any, np.dtype[np.uint8]], list[int]]:
    """A binary batch, its images and its labels; sample i is different from all others."""
    images = np.random.default_rng(first).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    labels = [(first + i) % 10 for i in range(count)]
    return b"".join(bytes([y]) + x.tobytes() for x, y in zip(images, labels, strict=True)), images, labels


def binary_tree() -> dict[str, bytes]:
    tree = {f"cifar-10-batches-bin/data_batch_{i}.bin": batch(i * 10, 3)[0] for i in range(1, 6)}
    return {**tree, "cifar-10-batches-bin/test_batch.bin": batch(7, 4)[0], "cifar-10-batches-bin/readme.html": b"hi"}


@pytest.mark.parametrize("place", ["folder", "parent", "tar.gz", "folder of tar.gz"])
def test_cifar_binary(tmp_path: Path, place: str) -> None:
    root = tmp_path / "data"
    if place in ("folder", "parent"):
        as_directory(root, binary_tree())
        root = root / "cifar-10-batches-bin" if place == "folder" else root
    else:
        root.mkdir()
        packed = as_tar(root / "packed", dict(reversed(binary_tree().items())), mode="w:gz")
        packed = packed.rename(root / "cifar-10-binary.tar.gz")
        root = packed if place == "tar.gz" else root
    train, test = CIFAR10("train", root), CIFAR10("test", str(root))
    assert (len(train), len(test)) == (15, 4)
    images = np.concatenate([batch(i * 10, 3)[1] for i in range(1, 6)])
    assert np.array_equal(train.images.numpy(), images)
    assert train.labels == [0, 1, 2] * 5
    assert np.array_equal(test[2][0].numpy(), batch(7, 4)[1][2])
    assert [test[i][1] for i in range(4)] == [7, 8, 9, 0]
    assert train[0][0].dtype == torch.uint8
    if root.is_file():
        assert [path.name for path in root.parent.iterdir()] == [root.name]  # nothing was unpacked


@LAYOUTS
def test_cifar_class_folders(tmp_path: Path, build: Build) -> None:
    tree: dict[str, bytes] = {}
    for number, name in enumerate(CIFAR_NAMES):
        for split in ("train", "test"):
            tree[f"{split}/{name}/0.png"] = encoded((number * 20, len(split), 7), size=(32, 32))
    root = build(tmp_path / "set", tree)
    data = CIFAR10("test", root)
    assert data.labels == list(range(10))
    assert data.class_names == CIFAR_NAMES
    assert data.images.shape == (10, 3, 32, 32)
    assert data.images[:, 0, 0, 0].tolist() == [i * 20 for i in range(10)]
    assert (data.images[:, 1] == 4).all()
    assert data.left_out == {}


@LAYOUTS
def test_cifar_counts_what_it_does_not_read_of_class_folders(tmp_path: Path, build: Build) -> None:
    tree = {f"{split}/cat/{n}.png": encoded((n, 0, 7), size=(32, 32)) for split in ("train", "test") for n in (1, 2)}
    odd = {"val/cat/1.png": b"", "readme.txt": b"", "train/cat/a.heic": b"", "old/1.png": b""}
    data = CIFAR10("train", build(tmp_path / "set", tree | odd))
    assert data.left_out == {".heic": 1, ".txt": 1, "folder old/": 1, "folder val/": 1}


def test_cifar_refuses(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone does not exist; expected cifar-10-batches-bin"):
        CIFAR10("train", tmp_path / "gone")
    with pytest.raises(ValueError, match="no split 'val'"):
        CIFAR10("val", tmp_path)
    pickled = as_directory(tmp_path / "p", {"cifar-10-batches-py/data_batch_1": b"\x80"})
    with pytest.raises(ValueError, match=r"unsafe .*binary version"):
        CIFAR10("train", pickled)
    with pytest.raises(ValueError, match="unsafe"):
        CIFAR10("train", as_tar(tmp_path / "q", {"x/data_batch_1": b"\x80"}, mode="w:gz").rename(tmp_path / "q.tgz"))
    with pytest.raises(FileNotFoundError, match="no images in train/CLASS"):
        CIFAR10("train", as_directory(tmp_path / "empty", {"readme.txt": b""}))


def test_cifar_refuses_damaged_files(tmp_path: Path) -> None:
    root = as_directory(tmp_path / "set", binary_tree()) / "cifar-10-batches-bin"
    whole = (root / "test_batch.bin").read_bytes()
    (root / "test_batch.bin").write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=r"test_batch\.bin has 12291 bytes"):
        CIFAR10("test", root)
    (root / "test_batch.bin").write_bytes(b"\x0a" + whole[1:])
    with pytest.raises(ValueError, match="labels above 9"):
        CIFAR10("test", root)
    (root / "data_batch_3.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_3\.bin is missing"):
        CIFAR10("train", root)
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(gzip.compress(os.urandom(4000))[:2000])
    with pytest.raises(ValueError, match=r"cut\.tar\.gz is not a tar\.gz, or damaged"):
        CIFAR10("test", cut)


def test_cifar_names_bad_images(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train/cat/1\.png has 40 x 30 pixels, not 32 x 32"):
        CIFAR10("train", as_directory(tmp_path / "a", {"train/cat/1.png": encoded()}))
    with pytest.raises(ValueError, match=r"train/cat/1\.png: not a JPEG"):
        CIFAR10("train", as_zip(tmp_path / "b", {"train/cat/1.png": b"text"}))
    with pytest.raises(ValueError, match=r"'zebra' is not a class of CIFAR-10"):
        CIFAR10("train", as_directory(tmp_path / "c", {"train/zebra/1.png": encoded()}))


# --- real data


@pytest.mark.skipif(not (SHARED_DATA / "cifar10.zip").is_file(), reason="needs ../shared/data/cifar10.zip")
def test_real_cifar() -> None:
    data = CIFAR10("test", SHARED_DATA / "cifar10.zip")
    assert len(data) == 10000
    assert set(Counter(data.labels).values()) == {1000}
    mean = data.images.double().mean((0, 2, 3)) / 255
    assert (mean - torch.tensor(data.mean)).abs().max() < 0.01


@pytest.mark.skipif(
    not (SHARED_DATA / "imagenet-sample.zip").is_file(), reason="needs ../shared/data/imagenet-sample.zip"
)
def test_real_photographs() -> None:
    data = ImageFolder("train", SHARED_DATA / "imagenet-sample.zip", image_size=64)
    assert (len(data), data.classes, data.splits) == (600, 600, ("train",))
    images = torch.stack([data[i][0] for i in range(0, 600, 10)]).double() / 255
    assert (images.mean((0, 2, 3)) - torch.tensor(data.mean)).abs().max() < 0.06
    assert (images.std((0, 2, 3)) - torch.tensor(data.std)).abs().max() < 0.06
