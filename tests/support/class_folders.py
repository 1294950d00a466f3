"""Folders of images in classes and splits."""

import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

Build = Callable[[Path, Iterable[str]], Path]


def directory(root: Path, names: Iterable[str]) -> Path:
    """Empty files: opening a set of images reads none of them."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def zipped(root: Path, names: Iterable[str]) -> Path:
    path = root.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"")
    return path


def tarred(root: Path, names: Iterable[str]) -> Path:
    path = root.with_suffix(".tar")
    with tarfile.open(path, "w") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    return path


KINDS = pytest.mark.parametrize("build", [directory, zipped, tarred])
CLASSES = ["cat/1.png", "cat/2.png", "dog/1.png"]


def below(*folders: str) -> list[str]:
    return [f"{folder}/{name}" for folder in folders for name in CLASSES]
