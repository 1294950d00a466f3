"""Layouts of folders and archives that hold the same images."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from tar_shards import tar


def encoded(colour: tuple[int, int, int] = (200, 30, 90), size: tuple[int, int] = (40, 30), kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, kind)
    return buffer.getvalue()


def as_directory(root: Path, tree: dict[str, bytes], prefix: str = "") -> Path:
    for name, data in tree.items():
        path = root / (prefix + name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def as_zip(root: Path, tree: dict[str, bytes], prefix: str = "") -> Path:
    path = root.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for number, (name, data) in enumerate(tree.items()):
            method = zipfile.ZIP_DEFLATED if number % 2 else zipfile.ZIP_STORED
            archive.writestr(prefix + name, data, compress_type=method)
    return path


def as_tar(root: Path, tree: dict[str, bytes], prefix: str = "", mode: str = "w") -> Path:
    return tar(root.with_suffix(".tar"), [(prefix + name, data) for name, data in tree.items()], mode)


LAYOUTS = pytest.mark.parametrize("build", [as_directory, as_zip, as_tar])
Build = Callable[[Path, dict[str, bytes]], Path]
