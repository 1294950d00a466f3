"""MNIST, Fashion-MNIST and CIFAR-100 from their official files."""

import gzip
import io
import os
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leyden.datasets.cifar100 import CIFAR100
from leyden.datasets.limits import Limits
from leyden.datasets.mnist import MNIST, FashionMNIST

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (12, 28, 28), dtype=np.uint8)
LABELS = np.arange(12, dtype=np.uint8) % 10


def idx(values: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    return b"\0\0\x08" + bytes([values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def files(prefix: str = "train", separator: str = "-") -> dict[str, bytes]:
    images, labels = (f"{prefix}-{what}{separator}idx{n}-ubyte" for what, n in (("images", 3), ("labels", 1)))
    return {images: idx(IMAGES), labels: idx(LABELS)}


def folder(root: Path, found: dict[str, bytes]) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for name, data in found.items():
        (root / name).write_bytes(data)
    return root


def assert_batches_are_samples(data: MNIST | CIFAR100) -> None:
    images, labels = data.batch(torch.tensor([3, 0, 2]))
    assert [(label, image.tolist()) for image, label in zip(images, labels.tolist(), strict=True)] == [
        (data[index][1], data[index][0].tolist()) for index in (3, 0, 2)
    ]
    assert labels.dtype is torch.int64


@pytest.mark.parametrize("place", ["", "raw", "MNIST/raw"])
@pytest.mark.parametrize("packed", [False, True])
def test_mnist(tmp_path: Path, place: str, packed: bool) -> None:
    found = {**files(), **files("t10k", ".")}
    folder(tmp_path / place, {f"{k}.gz": gzip.compress(v) for k, v in found.items()} if packed else found)
    data = MNIST("train", tmp_path)
    assert (len(data), data.classes, data.image_shape) == (12, 10, (1, 28, 28))
    assert all(np.array_equal(data[i][0][0].numpy(), IMAGES[i]) and data[i][1] == i % 10 for i in range(12))
    assert data[3][0].dtype is torch.uint8
    assert_batches_are_samples(data)
    assert len(MNIST("test", str(tmp_path))) == 12


def test_fashion_mnist(tmp_path: Path) -> None:
    folder(tmp_path / "FashionMNIST" / "raw", files())
    data = FashionMNIST("train", tmp_path)
    assert data.class_names[data[9][1]] == "Ankle boot"
    with pytest.raises(FileNotFoundError, match=r"no train-images-idx3-ubyte, nor train-images-idx3-ubyte\.gz"):
        MNIST("train", tmp_path)


BAD = {
    "no magic": ("images", b"\x01\0\x08\x03" + bytes(12)),
    "of floats": ("images", b"\0\0\x0d\x03" + bytes(12)),
    "labels as images": ("images", idx(LABELS)),
    "empty": ("images", b""),
    "cut off": ("images", idx(IMAGES)[:-1]),
    "longer": ("images", idx(IMAGES) + b"x"),
    "of 2^96 bytes": ("images", b"\0\0\x08\x03" + b"\xff" * 12),
    "other sides": ("images", idx(IMAGES[:, :27])),
    "more images": ("images", idx(np.concatenate([IMAGES, IMAGES]))),
    "a label of 10": ("labels", idx(LABELS + 1)),
    "a pickle": ("labels", b"cos\nsystem\n(S'touch canary'\ntR."),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_idx_files_are_named(tmp_path: Path, name: str) -> None:
    kind, data = BAD[name]
    path = next(tmp_path / file for file in files() if kind in file)
    folder(tmp_path, {**files(), path.name: data})
    with pytest.raises(ValueError, match="train-"):
        MNIST("train", tmp_path)
    assert not list(tmp_path.rglob("canary"))


def test_bombs_and_special_files_are_refused(tmp_path: Path) -> None:
    folder(tmp_path, files())
    name = "train-images-idx3-ubyte"
    (tmp_path / name).unlink()
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(bytes(1 << 20)))
    with pytest.raises(ValueError, match=r"more bytes than dataset\.limits\.file_bytes=5000"):
        MNIST("train", tmp_path, limits=Limits(file_bytes=5000))
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(idx(IMAGES))[:-20])
    with pytest.raises(ValueError, match=r"idx3-ubyte\.gz is damaged"):
        MNIST("train", tmp_path)
    for special in (name, f"{name}.gz"):
        (tmp_path / special).unlink(missing_ok=True)
        os.mkfifo(tmp_path / special)
        with pytest.raises(ValueError, match="not a regular file"):
            MNIST("train", tmp_path)
        (tmp_path / special).unlink()
    with pytest.raises(ValueError, match="no split 'val'"):
        MNIST("val", tmp_path)
    with pytest.raises(FileNotFoundError, match="is no folder"):
        MNIST("train", tmp_path / "nowhere")


def cifar(count: int) -> tuple[bytes, np.ndarray[Any, np.dtype[np.uint8]]]:
    """Records of coarse label, fine label and planes."""
    images = RANDOM.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    return b"".join(bytes([19 - i, 90 + i]) + image.tobytes() for i, image in enumerate(images)), images


@pytest.mark.parametrize("place", ["folder", "parent", "tar.gz"])
def test_cifar100(tmp_path: Path, place: str) -> None:
    data, images = cifar(5)
    inner = folder(tmp_path / "cifar-100-binary", {"train.bin": data, "test.bin": data[: 2 * 3074]})
    root = {"folder": inner, "parent": tmp_path, "tar.gz": tmp_path / "cifar-100-binary.tar.gz"}[place]
    if place == "tar.gz":
        with tarfile.open(root, "w:gz") as archive:
            archive.add(inner, "cifar-100-binary")
    found = CIFAR100("train", root)
    assert [found[i][1] for i in range(5)] == [90, 91, 92, 93, 94], "the class, not its group"
    assert np.array_equal(found.images.numpy(), images)
    assert found.class_names[found[0][1]] == "train"
    assert_batches_are_samples(found)
    assert len(CIFAR100("test", root)) == 2


def test_cifar100_refuses(tmp_path: Path) -> None:
    folder(tmp_path / "a", {"train.bin": bytes([0, 100]) + bytes(3072)})
    with pytest.raises(ValueError, match=r"labels above 99, so it is not CIFAR-100's"):
        CIFAR100("train", tmp_path / "a")
    folder(tmp_path / "b", {"train.bin": bytes(3073)})
    with pytest.raises(ValueError, match="not a multiple of 3074"):
        CIFAR100("train", tmp_path / "b")
    folder(tmp_path / "c" / "cifar-100-python", {"meta": b"", "train": b"cos\nsystem\n(S'touch canary'\ntR."})
    with pytest.raises(ValueError, match=r"Python version of CIFAR-100: pickles.*cifar-100-binary\.tar\.gz"):
        CIFAR100("train", tmp_path / "c")
    with tarfile.open(tmp_path / "d.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo("cifar-100-python/meta")
        archive.addfile(info, io.BytesIO())
    with pytest.raises(ValueError, match="Python version of CIFAR-100"):
        CIFAR100("train", tmp_path / "d.tar.gz")
