"""Folders of images in classes and splits."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from image_layouts import as_directory, as_tar, as_zip

Build = Callable[[Path, Iterable[str]], Path]


def directory(root: Path, names: Iterable[str]) -> Path:
    """Empty files: opening a set of images reads none of them."""
    return as_directory(root, dict.fromkeys(names, b""))


def zipped(root: Path, names: Iterable[str]) -> Path:
    return as_zip(root, dict.fromkeys(names, b""))


def tarred(root: Path, names: Iterable[str]) -> Path:
    return as_tar(root, dict.fromkeys(names, b""))


KINDS = pytest.mark.parametrize("build", [directory, zipped, tarred])
CLASSES = ["cat/1.png", "cat/2.png", "dog/1.png"]


def below(*folders: str) -> list[str]:
    return [f"{folder}/{name}" for folder in folders for name in CLASSES]
